"""``python -m validate.bench.refit --measurements DIR --output FILE``: fit rows that are there.

Says how good each table is, and how far the profile and the shipped tables are from every row.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from topology.catalogue import hardware
from topology.errors import InputError
from validate.bench import harness
from validate.calibrate import Task, finish
from validate.fit_profile import fabric_of, hardware_of, release_of
from validate.profiles import report
from validate.profiles.misses import HEADERS, Place, miss_rows, misses
from validate.rows import read_rows, whole


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write and judge; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m validate.bench.refit")
    parser.add_argument("--measurements", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args(argv)
    try:
        _refit(asked.measurements, asked.output)
    except InputError as error:
        harness.say(f"refit: {error}")
        return 2
    return 0


def _refit(folder: Path, output: Path) -> None:
    rows = harness.read(folder / harness.ROWS)
    manifest = harness.read(folder / harness.MANIFEST)
    task = replace(Task(output=output), measured=folder)
    found = finish(task, rows, manifest, harness.write_new)
    harness.say(report.calibrated(found))
    document = harness.document(folder / harness.MANIFEST)
    name = hardware_of(document)
    place = Place(
        device=hardware(name).device,
        fabric=fabric_of(document, name),
        nccl=release_of(document),
    )
    for title, profile in (("profile", found.profile), ("shipped tables", None)):
        lines = list(miss_rows(misses(read_rows(whole(rows)), place, profile)))
        harness.say(f"\n{title}, in percent\n" + report.lines(HEADERS, lines))


if __name__ == "__main__":
    raise SystemExit(main())
