"""REST routes of an account: its audit log, and its limits with their use."""
