"""Run a program on PyTorch, one process a rank: NCCL between GPUs, gloo between CPU processes."""
