"""Encryption at rest: master keys, data keys of tenants, encrypted credentials."""
