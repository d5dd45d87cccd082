"""What a program does with each client library. No module imports more than one of them."""
