"""``python -m validate.bench.refit --measurements DIR --output FILE``: fit rows that are there.

Says how good each table is, and how far the profile and the shipped tables are from every row;
``--against FILE`` says the same of rows that the fit does not see. ``--keep DIR`` writes rows and
manifest as they are kept in `validate/data`, and fits those.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from costmodels.profiles.profile import Profile
from planner.command.arguments import Parser
from topology.base import InputError
from topology.catalogue import find_hardware
from validate.bench import system as harness
from validate.bench.compact import read_csv, to_csv, to_json, without_names
from validate.calibrate import Calibrated
from validate.fit import report
from validate.fit.misses import HEADERS, Place, miss_rows, misses
from validate.fit.profile import Measured, fabric_of, fit_profile, hardware_of, release_of
from validate.fit.rows import Row, read_rows, whole
from validate.fit.table import fit_rows
from validate.fit.text import to_toml
from validate.tables import recipes

TABLE: Final = "rows.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is fitted, where it goes, and what judges it besides."""

    folder: Path
    output: Path
    against: Path | None
    keep: Path | None


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write and judge; returns the exit code."""
    parser = Parser(prog="python -m validate.bench.refit")
    parser.add_argument("--measurements", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--keep", type=Path)
    try:
        found = parser.parse_args(argv)
        asked = Asked(
            folder=found.measurements, output=found.output, against=found.against, keep=found.keep
        )
        _refit(_kept(asked))
    except InputError as error:
        harness.say(f"refit: {error}")
        return 2
    return 0


def _kept(asked: Asked) -> Asked:
    """Write the small form of the measurements where that is asked for, and go on with it."""
    if asked.keep is None:
        return asked
    manifest = harness.read_document(asked.folder / harness.MANIFEST)
    rows = read(file_in(asked.folder))
    harness.write_new(asked.keep / TABLE, to_csv(rows))
    harness.write_new(asked.keep / harness.MANIFEST, to_json(without_names(manifest)))
    return replace(asked, folder=asked.keep)


def file_in(folder: Path) -> Path:
    """Return the file of a folder's rows."""
    path = folder / TABLE
    return path if path.exists() else folder / harness.ROWS


def read(path: Path) -> list[Row]:
    """Read rows as a session writes them, or as they are kept.

    Raises
    ------
    InputError
        If the file cannot be read, or is damaged.
    """
    text = harness.read(path)
    if path.suffix == ".csv":
        return read_csv(text, str(path))
    return read_rows(whole(text), str(path))


def fit(folder: Path) -> Profile:
    """Fit the profile of a folder of measurements.

    Raises
    ------
    InputError
        If a file cannot be read, or says too little.
    """
    path = file_in(folder)
    digest = hashlib.sha256(harness.read(path).encode()).hexdigest()
    source = f"{folder.name}/{path.name}, sha256 {digest[:16]}"
    manifest = harness.read_document(folder / harness.MANIFEST)
    return fit_profile(Measured(rows=read(path), manifest=manifest, source=source), recipes())


def place_of(manifest: dict[str, Any]) -> Place:
    """Say where rows were measured."""
    name = hardware_of(manifest)
    return Place(
        device=find_hardware(name).device,
        fabric=fabric_of(manifest, name),
        nccl=release_of(manifest),
    )


def _refit(asked: Asked) -> None:
    profile, rows = fit(asked.folder), read(file_in(asked.folder))
    harness.write_new(asked.output, to_toml(profile))
    failures = tuple(f"{row.key}: {row.error}" for row in rows if row.error)
    summary = tuple(map(tuple, fit_rows(profile)))
    found = Calibrated(profile=profile, output=asked.output, summary=summary, failures=failures)
    harness.say(report.calibrated(found))
    place = place_of(harness.read_document(asked.folder / harness.MANIFEST))
    _judge(rows, place, profile, "")
    if asked.against is not None:
        _judge(read(asked.against), place, profile, f" on {asked.against.name}")


def _judge(rows: Sequence[Row], place: Place, profile: Profile, where: str) -> None:
    for title, known in (("profile", profile), ("shipped tables", None)):
        lines = list(miss_rows(misses(rows, place, known)))
        harness.say(f"\n{title}{where}, in percent\n" + report.lines(HEADERS, lines))


if __name__ == "__main__":
    raise SystemExit(main())
