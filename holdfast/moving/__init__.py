"""Queues on their way into a Holdfast, and out of it: what ``holdfast export`` and ``holdfast import`` are made of."""
