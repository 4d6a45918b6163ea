"""Logs of nccl-tests: what was measured, beside what is predicted.

`lines` and `log` read a log, `links` the links that it ran on; `compare` prices its tables there,
`diagnosis` says why the two part, and `report` writes both.
"""

from validate.nccl_tests.compare import LogOptions, compare_all
from validate.nccl_tests.report import parts_of, rows_of

__all__ = ["LogOptions", "compare_all", "parts_of", "rows_of"]
