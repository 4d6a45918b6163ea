"""The program of one rank: operations over tensors, and how they are emitted."""
