"""The generator of the codec, and the table that it reads.  The service does not import it."""
