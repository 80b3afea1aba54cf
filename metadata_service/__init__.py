"""Storage of metadata behind one interface: queues, logs, shards, tenants and access keys."""
