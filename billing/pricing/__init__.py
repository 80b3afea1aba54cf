"""Plans, rating, costs and invoices."""
