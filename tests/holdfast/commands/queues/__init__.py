"""Tests of the commands of queues and their messages."""
