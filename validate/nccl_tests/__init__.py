"""Logs of nccl-tests: what was measured, beside what is predicted."""
