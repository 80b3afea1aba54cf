"""Commands on usage, reports, months and invoices."""
