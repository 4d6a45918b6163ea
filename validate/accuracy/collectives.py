"""How far modelled collectives are from measured ones, group by group."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from costmodels.collectives import Settings, collective_time
from costmodels.collectives.operations import read_op
from costmodels.collectives.parameters import link_class
from topology.base import MIB, InputError
from topology.catalogue import Hardware
from validate.fit.collectives import Measurement

COLUMNS: Final = (
    "hardware", "op", "gpus", "nodes", "message_bytes", "seconds",
    "algorithm", "launch", "launcher", "engine", "source",
)  # fmt: skip
_DEFAULT: Final = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured collective, and how it was run."""

    measured: Measurement
    algorithm: str = "auto"
    launch: str = "graph"
    settings: Settings = _DEFAULT
    source: str = ""

    @property
    def error(self) -> float:
        """Relative error of the model, positive where it is slow."""
        row = self.measured
        modelled = collective_time(
            row.op,
            row.message_bytes,
            row.fabric,
            algorithm=self.algorithm,
            launch=self.launch,
            settings=self.settings,
        )
        return modelled / row.time - 1


def read_figures(text: str, hardware: Mapping[str, Hardware]) -> list[Figure]:
    """Read a CSV `text` with `COLUMNS`; `hardware` gives the links of a name.

    Raises
    ------
    InputError
        If a column is missing, or a row has no source.
    """
    table = csv.DictReader(text.splitlines())
    missing = set(COLUMNS) - set(table.fieldnames or ())
    if missing:
        raise InputError(f"figures of collectives: missing columns {sorted(missing)}")
    return [_figure(row, hardware) for row in table]


def _figure(row: Mapping[str, str], hardware: Mapping[str, Hardware]) -> Figure:
    if not row["source"].strip():
        raise InputError(f"figure of {row['op']} on {row['hardware']}: no source")
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    fabric = hardware[row["hardware"]].fabric(gpus, nodes if nodes > 1 else 0)
    return Figure(
        measured=Measurement(
            op=read_op(row["op"]),
            fabric=fabric,
            message_bytes=float(row["message_bytes"]),
            time=float(row["seconds"]),
        ),
        algorithm=row["algorithm"],
        launch=row["launch"],
        settings=Settings(
            launcher="single" if row["launcher"] == "single" else "process",
            engine=row["engine"],
        ),
        source=row["source"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupError:
    """Relative errors of one operation on one kind of group.

    median, ninth, worst : of the absolute values; ninth is the ninth decile.
    bias : median with its sign, positive where the model is slow.
    large : median over messages of 1 MiB and more, NaN where there are none.
    """

    place: str
    op: str
    ranks: int
    nodes: int
    rows: int
    median: float
    ninth: float
    worst: float
    bias: float
    large: float


def score(figures: Iterable[Figure]) -> list[GroupError]:
    """Compare figures with the model: one line over all of them, then one a group.

    The groups are generation and link, operation, ranks and nodes.
    """
    pairs = [(figure.measured, figure.error) for figure in sorted(figures, key=_key)]
    whole = [_summary(("all", "all", 0, 0), pairs)] if pairs else []
    return whole + [
        _summary(key, list(group)) for key, group in groupby(pairs, lambda pair: _place(pair[0]))
    ]


def as_text(scores: Iterable[GroupError]) -> str:
    """Write scores as a table with one line each, in percent.

    >>> group = GroupError(
    ...     place="hopper.nvlink", op="all_gather", ranks=8, nodes=1, rows=21, median=0.02,
    ...     ninth=0.05, worst=0.1, bias=-0.01, large=0.015,
    ... )
    >>> print(as_text([group]).splitlines()[1])
    hopper.nvlink    all_gather         8     1    21    2.0    5.0   10.0   -1.0    1.5
    """
    lines = ["place            op             ranks nodes  rows    med    p90    max   bias >=1MiB"]
    for s in scores:
        percent = (100 * x for x in (s.median, s.ninth, s.worst, s.bias, s.large))
        numbers = " ".join(f"{x:6.1f}" for x in percent)
        lines.append(f"{s.place:16} {s.op:14} {s.ranks:5d} {s.nodes:5d} {s.rows:5d} {numbers}")
    return "\n".join(lines)


def _key(figure: Figure) -> tuple[str, str, int, int]:
    return _place(figure.measured)


def _place(row: Measurement) -> tuple[str, str, int, int]:
    place = f"{row.fabric.architecture}.{link_class(row.fabric)}"
    return place, row.op, row.fabric.ranks, row.fabric.nodes


def _summary(
    key: tuple[str, str, int, int], pairs: Sequence[tuple[Measurement, float]]
) -> GroupError:
    signed = np.array([error for _, error in pairs])
    large = np.array([abs(error) for row, error in pairs if row.message_bytes >= MIB])
    size = np.abs(signed)
    place, op, ranks, nodes = key
    return GroupError(
        place=place,
        op=op,
        ranks=ranks,
        nodes=nodes,
        rows=size.size,
        median=float(np.median(size)),
        ninth=float(np.quantile(size, 0.9)),
        worst=float(size.max()),
        bias=float(np.median(signed)),
        large=float(np.median(large)) if large.size else float("nan"),
    )
