"""The journal in Cassandra: rows, segments and checkpoint chunks in tables."""
