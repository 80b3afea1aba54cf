"""The own integration tests of a Kafka client, run at a real service."""

SIGN_INS = "SUITE_SIGN_INS"
"""Environment variable of the suite's run: sign-ins as JSON, by mechanism."""
