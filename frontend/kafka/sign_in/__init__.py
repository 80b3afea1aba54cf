"""Sign-in by SASL."""
