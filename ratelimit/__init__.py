"""Rate limits: leaky buckets on the storages of the limits library.  Imports none of the layers."""
