"""Tables of the metadata store in Cassandra, and their versions."""
