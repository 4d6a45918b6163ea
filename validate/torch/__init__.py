"""Run a program on PyTorch, one process a rank: NCCL between GPUs, gloo between CPU processes.

A rank is started as `worker`, meets the others (`rendezvous`), and takes the cases of a job one by
one (`session`, `case_run`): each is proved (`proof`), timed (`timing`) and compared at full size
(`full`). A program becomes a `routine` of `steps` and `messages` on the `state` of a rank.
"""
