"""Checks of the console's pages: looks, keyboard, and functions that were called."""
