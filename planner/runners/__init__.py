"""Who may run a request, why others cannot, and what to type."""
