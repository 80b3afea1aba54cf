"""Faults done to a real ``holdfast serve``: kill -9, lost power, rotten files, full and failing disks, hard stops.

``python -m tests.faults`` is the long campaign.
"""
