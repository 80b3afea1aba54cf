"""Checks of policies: the decision for a caller, an action and conditions, without a call."""
