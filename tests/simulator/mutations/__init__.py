"""Rules taken out of the code, one at a time: the simulator has to notice each."""
