"""The commands of the client's side, one noun a file: thin shells over the SDK.

A command parses, calls the SDK, and prints. What takes time to import is imported when a command
runs: `--help` and completion must not wait for it.
"""
