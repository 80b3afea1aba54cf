"""Connection to Cassandra, and the keyspace that statements run in."""
