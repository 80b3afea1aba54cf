"""Reports, invoice documents, exports and answers to questions about usage."""
