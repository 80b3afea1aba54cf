"""The HTTP frontend of the service: protocols, signatures, validation, and the dispatch to the backend."""
