"""The metadata store in Cassandra."""
