"""Parts that the commands share: clients, tables, progress, offline access."""
