"""Parts that processes are made of: stores, data folder, keyring, health, observability."""
