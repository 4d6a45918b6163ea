"""What to know of a ranking: why, what else would do, what cannot be run."""
