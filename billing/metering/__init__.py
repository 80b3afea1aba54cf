"""Counting of calls and storage, and the local files that keep the counts until they are uploaded."""
