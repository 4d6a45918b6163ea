"""What links carry: the table of rates and the names GPUs go by."""
