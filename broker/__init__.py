"""The daemon: sockets, requests, partitions. Not built yet."""
