"""Rows of a session as a table small enough to keep beside the code, and a manifest without names.

What a row says besides the usual statistics stands in one column, ``share=0.33 messages=25``; the
sizes of a case are those in its key. Reading a written table gives the same rows again.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from topology.base import InputError
from validate.fit.rows import Row

COLUMNS: Final = ("case", "mode", "rank", "seconds", "low", "high", "repeats", "more", "error")
STATISTICS: Final = COLUMNS[3:7]
KEPT: Final = ("NCCL_", "TORCH_", "NVSHMEM_")  # settings that change what is measured
IMAGE: Final = ("NCCL_VERSION", "TORCH_CUDA_ARCH_LIST")  # what an image came with, not what ran
_COLOUR: Final = re.compile(r"\x1b\[\d*m")


def to_csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV, in the order of their cases; equal cases keep their order."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: row.key):
        more = {name: value for name, value in row.values.items() if name not in STATISTICS}
        usual = [_number(row.values[n]) if n in row.values else "" for n in STATISTICS]
        other = " ".join(f"{name}={_number(value)}" for name, value in more.items())
        table.writerow([row.key, row.mode, row.rank, *usual, other, row.error])
    return text.getvalue()


def read_csv(text: str, name: str = "rows.csv") -> list[Row]:
    """Read what `to_csv` wrote.

    Raises
    ------
    InputError
        If the columns are others, or a line is no row.

    Examples
    --------
    >>> row = Row(
    ...     key="pointwise how=copy bytes=4096", family="pointwise",
    ...     sizes={"how": "copy", "bytes": 4096}, mode="short", values={"seconds": 2e-6},
    ... )
    >>> read_csv(to_csv([row])) == [row]
    True
    """
    table = csv.DictReader(text.splitlines())
    if tuple(table.fieldnames or ()) != COLUMNS:
        raise InputError(f"{name}: got {text[:40]!r}, wanted columns {', '.join(COLUMNS)}")
    return list(_rows(table, name))


def _rows(table: Iterable[Mapping[str, str]], name: str) -> Iterator[Row]:
    for number, cells in enumerate(table, 2):
        try:
            usual = {key: float(cells[key]) for key in STATISTICS if cells[key]}
            more = {key: float(value) for key, value in _pairs(cells["more"])}
            yield Row(
                key=cells["case"],
                family=cells["case"].split()[0],
                sizes={key: _size(value) for key, value in _pairs(cells["case"])},
                mode=cells["mode"],
                values=usual | more,
                rank=int(cells["rank"]),
                error=cells["error"],
            )
        except (ValueError, TypeError, IndexError, KeyError, AttributeError):
            raise InputError(f"{name}, line {number}: wanted one measurement") from None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            yield key, value


def _size(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _number(value: float) -> str:
    return f"{value:.6g}"


def without_names(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest without what names one machine, or says nothing of how it is run.

    Examples
    --------
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
    found = {**manifest, "machine": machine}
    if "environment" in found:
        found["environment"] = " ".join(
            word
            for word in str(found["environment"]).split()
            if word.startswith(KEPT) and not word.startswith(IMAGE)
        )
    if "topology" in found:
        plain = _COLOUR.sub("", str(found["topology"]))
        found["topology"] = plain.partition("\n\nLegend")[0]
    return found


def to_json(manifest: Mapping[str, Any]) -> str:
    """Write a manifest."""
    return json.dumps(manifest, indent=2) + "\n"
