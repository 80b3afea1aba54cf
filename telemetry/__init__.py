"""Seeing inside: what the other rooms count and measure with, and what brings it to those who watch.

A leaf: it imports no other room, and at import time nothing but the standard library.
"""
