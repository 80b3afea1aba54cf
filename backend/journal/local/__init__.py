"""The journal in files of one machine: preallocated segments, group commits by a thread."""
