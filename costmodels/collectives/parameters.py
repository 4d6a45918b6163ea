"""Curves and where they come from: the tables of `costmodels/data`, read from text."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, Literal, cast, get_args

from costmodels.collectives.curve import Curve
from topology.base import Bytes, CatalogueError, Kind, UncalibratedError, parse
from topology.base.values import dataclass
from topology.catalogue import Fabric

LinkClass = Literal["nvlink", "bridge", "pcie", "host"]

CLASSES: Final[tuple[LinkClass, ...]] = get_args(LinkClass)  # fast to slow

UNITS: Final = {
    "launch": "s", "step": "s", "rise": "s", "rise_bytes": "B", "pool": "B/s", "tree": "B/s",
}  # fmt: skip
_COVER: Final = ("kind", "source", "ops", "smallest", "largest", "ranks")
_ERRORS: Final = ("median_error", "worst_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A curve, its provenance, and what it has been checked against.

    ops : the collectives seen. smallest, largest : B, the messages seen.
    ranks : fewest and most GPUs seen.
    median_error, worst_error : relative, over the rows of the fit; NaN where nothing was fitted.
    carried : taken over from another generation or link. own : fitted on the very machine.
    """

    curve: Curve
    kind: Kind
    source: str
    ops: tuple[str, ...]
    smallest: Bytes
    largest: Bytes
    ranks: tuple[int, int]
    median_error: float
    worst_error: float
    carried: bool = False
    own: bool = False

    def covers(self, op: str, fabric: Fabric) -> bool:
        """Whether `op` on groups of this many ranks, on one node, was seen."""
        fewest, most = self.ranks
        return op in self.ops and fabric.nodes == 1 and fewest <= fabric.ranks <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Curves by generation, link class and name; `like` says what stands in for a missing one."""

    curves: Mapping[str, Fitted]
    like: Mapping[str, str]

    def get(self, fabric: Fabric, name: str) -> Fitted:
        """Find the curve `name` for the links inside a node of `fabric`."""
        link = link_class(fabric)
        fitted = self._fitted_at(fabric.architecture, link, name)
        if fitted is None:
            raise UncalibratedError(f"no {name} for {fabric.architecture} over {link}")
        return fitted

    def _fitted_at(self, architecture: str, link: LinkClass, name: str) -> Fitted | None:
        place = wanted_place = f"{architecture}.{link}"
        while place and f"{place}.{name}" not in self.curves:
            place = self.like.get(place, "")
        if not place:
            return None
        fitted = self.curves[f"{place}.{name}"]
        if place == wanted_place:
            return fitted
        curve = self._start_bounded(fitted.curve, architecture, link, name)
        return replace(fitted, curve=curve, carried=True)

    def _start_bounded(self, curve: Curve, architecture: str, link: LinkClass, name: str) -> Curve:
        """Keep a curve of other GPUs from starting before a faster link of these GPUs does.

        What a kernel takes to launch belongs to the GPU, what a step takes to GPU and link: no
        slower link starts earlier, and no faster one later than what was measured.
        """
        place = CLASSES.index(link)
        for slower in CLASSES[place + 1 :]:
            measured = self.curves.get(f"{architecture}.{slower}.{name}")
            if measured is not None:
                curve = curve.starting(min, measured.curve)
        faster = self._fitted_at(architecture, CLASSES[place - 1], name) if place else None
        return curve if faster is None else curve.starting(max, faster.curve)


def link_class(fabric: Fabric) -> LinkClass:
    """Name what a copy between two GPUs of one node goes over.

    ``nvlink`` is a switch, or direct links to several GPUs, of which rings use all at once;
    ``bridge`` joins two that have no other links, ``host`` is the memory of the host.

    >>> from topology.catalogue import find_hardware
    >>> names = ("h100-sxm", "h100-nvl", "t4", "l40s")
    >>> [link_class(find_hardware(name).fabric(2)) for name in names]
    ['nvlink', 'bridge', 'pcie', 'host']
    """
    if not fabric.peer_to_peer:
        return "host"
    if fabric.link == "pcie":
        return "pcie"
    is_bridge = fabric.link == "nvlink" and fabric.local <= 2 and not fabric.direct
    return "bridge" if is_bridge else "nvlink"


def load_library(*tables: Mapping[str, Any]) -> Library:
    """Read curves of collectives from tables.

    A table ``[hopper.nvlink.ring_ll]`` holds the fields of a curve, as text with units, and its
    provenance; ``[like]`` maps ``"volta.nvlink"`` to the place that stands in for it.
    """
    like = {
        place: stand_in for table in tables for place, stand_in in table.get("like", {}).items()
    }
    rows = {
        f"{architecture}.{link}.{name}": row
        for table in tables
        for architecture, links in table.items()
        if architecture != "like"
        for link, curves_by_name in links.items()
        for name, row in curves_by_name.items()
    }
    return Library(
        curves={where: read_fitted(where, row) for where, row in rows.items()}, like=like
    )


def read_fitted(where: str, row: Mapping[str, object]) -> Fitted:
    """Read one table: a curve with its provenance."""
    names = {field.name for field in fields(Curve)}
    measured = row.get("kind") == "measured"
    unexpected = set(row) - names - {*_COVER, *_ERRORS, "note"}
    missing = {"launch", "efficiency", *_COVER, *(_ERRORS if measured else ())} - set(row)
    if unexpected or missing:
        raise CatalogueError(f"{where}: missing {sorted(missing)}, unexpected {sorted(unexpected)}")
    numbers = {key: parse(str(row[key]), UNITS.get(key, "1")) for key in names & set(row)}
    fewest, _, most = str(row["ranks"]).partition("..")
    return Fitted(
        curve=Curve(**numbers),  # type: ignore[arg-type]  # NewTypes are floats
        kind=cast(Kind, row["kind"]),
        source=str(row["source"]),
        ops=tuple(str(row["ops"]).replace(",", " ").split()),
        smallest=Bytes(parse(str(row["smallest"]), "B")),
        largest=Bytes(parse(str(row["largest"]), "B")),
        ranks=(int(fewest), int(most)),
        median_error=parse(str(row["median_error"]), "1") if measured else math.nan,
        worst_error=parse(str(row["worst_error"]), "1") if measured else math.nan,
    )
