"""Logs of nccl-tests: what was measured, beside what is predicted.

`lines` and `log` read a log, `links` the links that it ran on; `compare` prices its tables there,
`diagnosis` says why the two part, and `shown` writes both.
"""
