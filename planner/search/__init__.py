"""Which plans there are, what each costs, and which is best; it ends at a ranking."""
