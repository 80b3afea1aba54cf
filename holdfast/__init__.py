"""Command line and composition of the processes.  Imports all other packages; none imports it."""

__version__ = "0.1.0"
