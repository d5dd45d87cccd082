"""The load on each client library. No module imports more than one of them."""
