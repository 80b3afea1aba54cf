"""Test steps for all of SQS, for any botocore: a current one over JSON, an old one over Query.

Each step is a function that creates its own queues and asserts the behaviour of SQS.  The steps depend neither on
pytest nor on Holdfast, so that the interpreter of another virtual environment can run them (``python -m
tests.compat.walk``).
"""
