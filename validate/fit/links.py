"""Fit what GPUs do together: collectives, what a call costs the host, what compute hides.

Two GPUs say nothing of how a collective grows with the number of ranks. What belongs to a step or
to a copy at home is then held firmly where larger groups have put it, so that the fit moves what
all group sizes share: the launch, the efficiency of the link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from costmodels.collectives.calibration import CurveCalibration
from costmodels.collectives.curve import Curve
from costmodels.collectives.operations import read_op
from costmodels.collectives.parameters import Fitted, link_class
from costmodels.collectives.tables import library, tuning
from costmodels.profiles.profile import Fit
from topology.base import Bytes, Seconds, Sourced, UncalibratedError
from topology.catalogue import Fabric
from validate.fit.collectives import Measurement, Recipe, builder, curve_of
from validate.fit.judging import LEAST, judge
from validate.fit.robust import Problem, Values, Vector
from validate.fit.rows import Row

FIRM: Final = 2.0
BY_RANKS: Final[tuple[str, ...]] = ("step", "rise", "copy_gather", "copy_reduce")
ONE_WAY: Final = ("broadcast", "reduce", "gather", "scatter")
"""Where a rank only sends or only receives: quicker to start, and undisturbed by traffic the other
way, which a curve that all collectives share cannot say. Plans use none; their times are kept."""
DEVICE_BOUND: Final = 2.0  # a call this many times longer than the host's part shows the gap


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFits:
    """What was fitted, with how far to trust each curve by its name in a profile."""

    calibration: CurveCalibration
    fits: tuple[tuple[str, Fit], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What the rows were measured on.

    recipes : which fields of a curve are free, and between which bounds. nccl : its release.
    """

    fabric: Fabric
    recipes: Mapping[str, Recipe]
    nccl: tuple[int, int]
    source: str
    identity: str


def fit_links(rows: Sequence[Row], links: Links) -> LinkFits:
    """Fit every curve that the rows say something about."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = _curve_name(row, links)
        if name:
            groups.setdefault(name, []).append(row)
    place = f"{links.fabric.architecture}.{link_class(links.fabric)}"
    curves, fits = [], []
    for name, some in sorted(groups.items()):
        found = _fit_curve(name, some, links)
        if found is not None:
            curves.append((f"{place}.{name}", found[0]))
            fits.append((f"curves.{place}.{name}", found[1]))
    host, gap = _calls(rows)
    return LinkFits(
        calibration=CurveCalibration(
            identity=links.identity, curves=tuple(curves), host=host, gap=gap
        ),
        fits=tuple(fits),
    )


def _curve_name(row: Row, links: Links) -> str:
    """Name the curve that a message was sent by; empty for what shapes none."""
    if row.error or row.mode != "graph" or links.fabric.ranks < 2:
        return ""
    if row.family == "collective" and row.sizes["op"] in ONE_WAY:
        return ""
    if row.family == "collective":
        return curve_of(_measurement(row, links.fabric), tuning().at(links.nccl))
    if row.family == "forced" and row.sizes["algorithm"] == "Ring":
        return f"ring_{row.sizes['protocol']}".lower()
    return ""


def _measurement(row: Row, fabric: Fabric) -> Measurement:
    return Measurement(
        op=read_op(str(row.sizes["op"])),
        fabric=fabric,
        message_bytes=float(row.number("bytes")),
        time=row.seconds,
    )


def _fit_curve(name: str, rows: Sequence[Row], links: Links) -> tuple[Fitted, Fit] | None:
    link = link_class(links.fabric)
    recipe = links.recipes.get(f"{'nvlink' if link == 'bridge' else link}.{name}")
    try:
        start = library().get(links.fabric, name)
    except UncalibratedError:
        return None
    if recipe is None or len(rows) < LEAST:
        return None
    first = {field: float(getattr(start.curve, field)) for field in recipe.bounds}
    few = links.fabric.ranks < start.ranks[1]
    firm = {field: FIRM for field in BY_RANKS if few and field in first}
    limits = {
        field: (min(low, first[field]), max(high, first[field]))
        for field, (low, high) in recipe.bounds.items()
    }

    def problem(some: Sequence[Row]) -> Problem:
        return Problem(
            first=first,
            ratio=lambda values: _ratio(_curve(start.curve, values), name, some, links.fabric),
            limits=limits,
            firm=firm,
        )

    judged = judge(rows, problem)
    sizes = [row.number("bytes") for row in rows]
    found = Fitted(
        curve=_curve(start.curve, judged.minimum.values),
        kind="measured",
        source=links.source,
        ops=tuple(sorted({str(row.sizes["op"]) for row in rows})),
        smallest=Bytes(float(min(sizes))),
        largest=Bytes(float(max(sizes))),
        ranks=(links.fabric.ranks, links.fabric.ranks),
        median_error=judged.median_error,
        worst_error=judged.fit.worst_error,
    )
    return found, judged.fit


def _curve(start: Curve, values: Values) -> Curve:
    return replace(start, **values)  # type: ignore[arg-type]  # NewTypes are floats


def _ratio(curve: Curve, name: str, rows: Sequence[Row], fabric: Fabric) -> Vector:
    """Predicted over measured of every row, operation by operation."""
    result = np.empty(len(rows))
    build = builder(name)
    for op in {str(row.sizes["op"]) for row in rows}:
        places = [place for place, row in enumerate(rows) if row.sizes["op"] == op]
        sizes = np.array([float(rows[place].number("bytes")) for place in places])
        measured = np.array([rows[place].seconds for place in places])
        result[places] = build(curve, read_op(op), fabric).time(sizes) / measured
    return result


def _calls(rows: Sequence[Row]) -> tuple[Seconds | None, Seconds | None]:
    """Seconds of host time of one call, and what a call that is not replayed loses on the GPU."""
    host = host_of_calls(rows)
    if host is None:
        return None, None
    graph = {row.key: row.seconds for row in rows if row.mode == "graph" and not row.error}
    gaps = [
        row.seconds - graph[row.key]
        for row in rows
        if row.family == "collective"
        and row.mode == "stream"
        and DEVICE_BOUND * host < graph.get(row.key, 0.0) < 20 * host
    ]
    gap = None if len(gaps) < LEAST else Seconds(max(0.0, float(np.median(gaps))))
    return Seconds(host), gap


def host_of_calls(rows: Sequence[Row]) -> float | None:
    """Median over the collectives of the host's seconds a call; None where nobody looked."""
    found = [
        row.seconds
        for row in rows
        if row.family == "host" and not row.error and str(row.sizes["op"]) in _COLLECTIVE_HOST
    ]
    return float(np.median(found)) if found else None


_COLLECTIVE_HOST: Final = ("all_reduce", "all_gather", "all_to_all", "send_recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiding:
    """By kind of collective: share that compute hides, and of a message's time above what."""

    shares: tuple[tuple[str, Sourced], ...]
    starts: tuple[tuple[str, Sourced], ...]


def fit_hiding(rows: Sequence[Row], source: str) -> Hiding:
    """Fit what compute hides of each kind of collective, see `costmodels.overlap`."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.family == "beside" and not row.error:
            each = row.values["communication"] / row.values["messages"]
            share = min(1.0, row.values["share"])
            seen.setdefault(str(row.sizes["op"]), []).append((each, share))
    shares, starts = [], []
    for op, found in sorted(seen.items()):
        share, start = _hiding(found)
        low, high = min(one for _, one in found), max(one for _, one in found)
        note = f"{low:.2f} to {high:.2f} in {len(found)} cases"
        measured = partial(Sourced, kind="measured", source=source)
        shares.append((op, measured(value=share, note=note)))
        starts.append((op, measured(value=start)))
    return Hiding(shares=tuple(shares), starts=tuple(starts))


def _hiding(seen: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit ``seen share = share (1 - start / seconds)``; one share where sizes say no more."""
    each, found = np.array(seen).T
    if np.ptp(each) < np.mean(each):
        return float(np.median(found)), 0.0
    design = np.stack([np.ones_like(each), -1.0 / each], axis=1)
    share, lost = np.linalg.lstsq(design, found)[0]
    share = min(max(float(share), 0.01), 1.0)
    return share, max(float(lost), 0.0) / share
