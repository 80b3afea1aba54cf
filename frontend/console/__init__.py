"""The web console under ``/console``: static files, a client of the REST interface."""
