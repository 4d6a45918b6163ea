"""Plans run on this host: cases, proofs, times, and their comparison with predictions."""
