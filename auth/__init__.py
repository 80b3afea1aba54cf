"""Authentication: tenants, access keys and signatures.  Imports none of the layers."""
