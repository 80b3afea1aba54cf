"""One walk through all of SQS, taken by any botocore: today's over JSON, an old one over Query.

Each step is a function that makes its own queues and asserts what SQS promises.  The steps know nothing of pytest and
of Holdfast, so that the interpreter of another virtual environment can run them (``python -m tests.compat.walk``).
"""
