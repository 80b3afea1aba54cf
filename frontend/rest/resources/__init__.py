"""Routes of the REST interface, one module for each kind of resource."""
