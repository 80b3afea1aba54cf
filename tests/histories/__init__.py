"""Histories of what clients did and saw, and checkers that say whether a queue service may have answered so.

All of it is pure: a history goes in, what was broken comes out.  ``tests/faults`` records histories of real clients.
"""
