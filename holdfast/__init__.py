"""The command line and what composes the process.  Imports everyone; nobody imports it."""

__version__ = "0.1.0"
