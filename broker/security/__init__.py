"""Authentication: TLS, SASL, and the credentials of users."""
