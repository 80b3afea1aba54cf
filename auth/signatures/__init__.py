"""AWS Signature Version 4."""
