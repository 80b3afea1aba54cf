"""The HTTP door of the service: protocols, signatures, validation, and the dispatch to the backend."""
