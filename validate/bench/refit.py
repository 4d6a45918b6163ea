"""``python -m validate.bench.refit --measurements DIR --output FILE``: fit rows that are there.

Says how good each table is, and how far the profile and the shipped tables are from every row;
``--against FILE`` says the same of rows that the fit does not see. ``--keep DIR`` writes rows and
manifest as they are kept in `validate/data`, and fits those.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from costmodels.profile import Profile
from planner.command.options import Parser
from topology.base import InputError, write_new
from topology.base.table import Table, terminal
from validate.bench import system
from validate.fit import report
from validate.fit.collectives import MeasuredOn
from validate.fit.misses import HEADERS, miss_rows, misses
from validate.fit.profile import Measurements, fit_profile, measured_on, source_of
from validate.fit.rows import Row, read_csv, read_rows, to_csv, whole_lines
from validate.fit.text import to_toml

TABLE: Final = "rows.csv"
KEPT_PREFIXES: Final = ("NCCL_", "TORCH_", "NVSHMEM_")  # settings that change what is measured
IMAGE_SETTINGS: Final = (
    "NCCL_VERSION",
    "TORCH_CUDA_ARCH_LIST",
)  # what an image came with, not what ran
_COLOUR: Final = re.compile(r"\x1b\[\d*m")


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write and judge; returns the exit code."""
    parser = Parser(prog="python -m validate.bench.refit")
    parser.add_argument("--measurements", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--keep", type=Path)
    try:
        arguments = parser.parse_args(argv)
        if arguments.keep is not None:
            _keep(arguments.measurements, arguments.keep)
        _refit(arguments.keep or arguments.measurements, arguments.output, arguments.against)
    except InputError as error:
        system.say(f"refit: {error}")
        return 2
    return 0


def _keep(measurements: Path, folder: Path) -> None:
    """Write the small form of measurements, which goes with the project."""
    manifest = system.read_document(measurements / system.MANIFEST)
    write_new(folder / TABLE, to_csv(read(file_in(measurements))))
    write_new(folder / system.MANIFEST, json.dumps(without_names(manifest), indent=2) + "\n")


def without_names(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest without what names one machine, or says nothing of how it is run.

    >>> without_names({
    ...     "machine": {"gpus": [{"name": "NVIDIA L4", "uuid": "1-2"}]},
    ...     "environment": "CUDA_HOME=/usr/local/cuda NCCL_NVLS_ENABLE=0 NCCL_VERSION=2.1",
    ... })
    {'machine': {'gpus': [{'name': 'NVIDIA L4'}]}, 'environment': 'NCCL_NVLS_ENABLE=0'}
    """
    machine = dict(manifest["machine"])
    machine["gpus"] = [
        {key: value for key, value in gpu.items() if key != "uuid"} for gpu in machine["gpus"]
    ]
    anonymous = {**manifest, "machine": machine}
    if "environment" in anonymous:
        anonymous["environment"] = " ".join(
            word
            for word in str(anonymous["environment"]).split()
            if word.startswith(KEPT_PREFIXES) and not word.startswith(IMAGE_SETTINGS)
        )
    if "topology" in anonymous:
        topology_text = _COLOUR.sub("", str(anonymous["topology"]))
        anonymous["topology"] = topology_text.partition("\n\nLegend")[0]
    return anonymous


def file_in(folder: Path) -> Path:
    """Return the file of a folder's rows."""
    path = folder / TABLE
    return path if path.exists() else folder / system.ROWS


def read(path: Path) -> list[Row]:
    """Read rows as a session writes them, or as they are kept.

    Raises InputError if the file cannot be read, or is damaged.
    """
    text = system.read(path)
    if path.suffix == ".csv":
        return read_csv(text, str(path))
    return read_rows(whole_lines(text), str(path))


def fit(folder: Path) -> Profile:
    """Fit the profile of a folder of measurements.

    Raises InputError if a file cannot be read, or says too little.
    """
    path = file_in(folder)
    source = source_of(f"{folder.name}/{path.name}", system.read(path))
    manifest = system.read_document(folder / system.MANIFEST)
    return fit_profile(Measurements(rows=read(path), manifest=manifest, source=source))


def _refit(measurements: Path, output: Path, against: Path | None) -> None:
    profile, rows = fit(measurements), read(file_in(measurements))
    write_new(output, to_toml(profile))
    failures = report.failures_of(rows)
    calibration = report.Calibrated(profile=profile, output=output, failures=failures)
    system.say(terminal(report.calibration_parts(calibration)))
    place = measured_on(system.read_document(measurements / system.MANIFEST))
    _judge(rows, place, profile, "")
    if against is not None:
        _judge(read(against), place, profile, f" on {against.name}")


def _judge(rows: Sequence[Row], place: MeasuredOn, profile: Profile, suffix: str) -> None:
    for title, priced_by in (("profile", profile), ("shipped tables", None)):
        lines = list(miss_rows(misses(rows, place, priced_by)))
        table = Table(head=HEADERS, rows=lines)
        system.say(f"\n{title}{suffix}, in percent\n{table.text()}")


if __name__ == "__main__":
    raise SystemExit(main())
