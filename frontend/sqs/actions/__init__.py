"""The operations: typed functions from a call and its members to a result."""
