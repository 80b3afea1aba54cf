"""Faults injected into a real ``holdfast serve``: kill -9, power loss, bit rot, full and failing disks, hard stops.

``python -m tests.faults`` is the long campaign.
"""
