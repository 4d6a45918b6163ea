"""An output of nccl-tests beside what is predicted, and why the two part.

python examples/compare_log.py [LOG]
"""

import sys
from pathlib import Path

from topology.base.table import terminal
from validate.nccl_tests import LogOptions, compare_all, parts_of

log = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "all_reduce.log"
tables = compare_all(log.read_text(encoding="utf-8"), LogOptions(name=log.name))
print(terminal(parts_of(tables)))

for table in tables:
    worst = max(table.rows, key=lambda row: abs(row.error))
    print(f"\nfarthest apart: {worst.message_bytes:,} bytes, {100 * worst.error:+.0f} %")
