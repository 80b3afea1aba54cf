"""The fault campaign: forms of the service, faults, plans and results."""
