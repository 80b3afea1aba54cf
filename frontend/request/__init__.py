"""Steps that every request takes, whatever its protocol: authentication, limits, retries, usage, traces."""
