"""Units, errors and sources: what every number and message is made of."""
