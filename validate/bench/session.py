"""``python3 -m validate.bench.session --output DIR --minutes 9``: measure this machine.

Rows go to ``DIR/rows.jsonl``, what they were measured on to ``DIR/manifest.json``. Run it again
with the same DIR and it goes on behind the last row. It needs PyTorch and no GPU of its own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from planner.command.options import Parser, real
from topology.base import InputError, one_line
from validate.bench import system
from validate.fit.rows import Row, read_rows
from validate.plans.checks import check_gpus, check_positive

QUICK_TIERS: Final = 1
SHOWN: Final = 20  # failures


def main(argv: Sequence[str] | None = None) -> int:
    """Run a session; returns the exit code."""
    parser = Parser(prog="python3 -m validate.bench.session")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=real, default=9.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="only the most informative cases")
    parser.add_argument("--small", action="store_true", help="a few sizes that suit a CPU")
    try:
        options = parser.parse_args(argv)
        check_positive("minutes", options.minutes)
        check_gpus(options.ranks)
        session = system.BenchSession(
            ranks=options.ranks,
            folder=options.output.resolve(),
            minutes=options.minutes,
            device=options.device,
            tiers=QUICK_TIERS if options.quick else 3,
            small=options.small,
        )
        deaths = system.run(session)
    except (InputError, OSError) as error:
        system.say(f"bench: {one_line(str(error))}")
        return 2
    text = system.mended_rows(session.folder)
    system.say("\n".join(summary(read_rows(text, system.ROWS))))
    system.say(f"bench: rows in {session.folder / system.ROWS}; workers died {deaths} times")
    return 0


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Count rows and failures of each family, and say why the first ones failed."""
    for family, count in Counter(row.family for row in rows).items():
        failed = sum(bool(row.error) for row in rows if row.family == family)
        yield f"bench: {family:12} {count:5} rows, {failed} failed"
    for row in [row for row in rows if row.error][:SHOWN]:
        yield f"bench: {row.key}: {row.error}"


if __name__ == "__main__":
    raise SystemExit(main())
