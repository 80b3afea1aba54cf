"""Checks of the project's text: words, names, documents."""
