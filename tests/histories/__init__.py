"""Histories of clients' calls and answers, and checkers that decide if a queue service may have answered so.

All of it is pure: the input is a history, the output the violations.  ``tests/faults`` records histories of
real clients.
"""
