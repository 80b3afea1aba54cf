"""SQS's protocols: members, limits, errors, JSON and Query."""
