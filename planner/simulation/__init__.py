"""A plan as events on every rank's streams."""
