"""Tests of SNS's protocol, in so far as it needs no store, no engine and no network."""
