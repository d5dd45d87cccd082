"""Requests: dispatch to one handler per API, error codes, fetch sessions and long polls."""
