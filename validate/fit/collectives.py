"""Measured collectives in, curves out.

A curve is fitted to the rows on which NCCL used it, over all operations and group sizes at
once, in the logarithm of time, so that a 1 GB message does not drown a 1 KB one; a soft loss
keeps a disturbed measurement from bending it.
"""

import csv
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from costmodels.collectives.curve import Curve
from costmodels.collectives.multishot import Multishot
from costmodels.collectives.nvls import Nvls
from costmodels.collectives.oneshot import Oneshot
from costmodels.collectives.operations import PAIRWISE_OPS, Collective, Op, read_op
from costmodels.collectives.pairwise import Pairwise
from costmodels.collectives.parameters import UNITS, link_class
from costmodels.collectives.ring import Ring
from costmodels.collectives.tuning import Numbers, candidates
from costmodels.collectives.twoshot import Twoshot
from topology.base import parse
from topology.catalogue import Fabric

Array = NDArray[np.float64]
Build = Callable[[Curve, Op, Fabric], Collective]

_KERNELS: Final[Mapping[str, type[Oneshot | Twoshot | Multishot]]] = {
    "oneshot": Oneshot,
    "twoshot": Twoshot,
    "multishot": Multishot,
}
_HEAVIEST: Final = 2.0  # how much more than the average row a row of a rare size may count


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One timed collective: seconds for `message_bytes` as nccl-tests counts them."""

    op: Op
    fabric: Fabric
    message_bytes: float
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFit:
    """A fitted curve, the rows it saw and how far it misses them (relative)."""

    curve: Curve
    rows: int
    ops: tuple[Op, ...]
    smallest: float
    largest: float
    ranks: tuple[int, int]
    median_error: float
    worst_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where a fit starts and which fields it may move, between which bounds."""

    guess: Curve
    bounds: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Group:
    op: Op
    fabric: Fabric
    sizes: Array
    times: Array
    weights: Array


def load_recipes(text: str) -> dict[str, Recipe]:
    """Read recipes ``[nvlink.ring_ll]`` ... from TOML `text`; the caller does the file I/O."""
    return {
        f"{link}.{name}": _recipe(row)
        for link, rows in tomllib.loads(text).items()
        for name, row in rows.items()
    }


def _recipe(row: Mapping[str, Sequence[str]]) -> Recipe:
    values = {
        key: [parse(text, UNITS.get(key, "1")) for text in texts] for key, texts in row.items()
    }
    middle = {key: numbers[len(numbers) // 2] for key, numbers in values.items()}
    return Recipe(
        guess=Curve(**middle),  # type: ignore[arg-type]  # NewTypes are floats
        bounds={key: (numbers[0], numbers[2]) for key, numbers in values.items() if numbers[1:]},
    )


def fit_family(
    rows: Sequence[Measurement], recipes: Mapping[str, Recipe], numbers: Numbers
) -> dict[str, CurveFit]:
    """Fit every curve that NCCL used in `rows`, which share one generation and link."""

    def name(row: Measurement) -> str:
        return curve_of(row, numbers)

    return {
        curve: fit_curve(list(group), builder(curve), recipes[f"{link}.{curve}"])
        for link in {link_class(row.fabric) for row in rows}
        for curve, group in groupby(sorted(rows, key=name), name)
    }


def curve_of(row: Measurement, numbers: Numbers) -> str:
    """Name the curve of the algorithm and protocol that NCCL takes for a measured message."""
    if row.op in PAIRWISE_OPS:
        link = "pcie" if row.fabric.link == "pcie" else "nvlink"
        part = row.message_bytes / (1 if row.op == "send_recv" else row.fabric.ranks)
        return "pairwise_ll" if part <= numbers[f"{link}_pairwise_ll"][0] else "pairwise_simple"
    able = candidates(row.op, row.fabric, numbers)
    size = np.array([row.message_bytes])
    best = min(able, key=lambda candidate: candidate.price(size)[0])
    return "nvls" if best.algorithm == "nvls" else f"ring_{best.protocol.lower()}"


def builder(curve: str) -> Build:
    """Say how a model is made from a curve of that name."""
    if curve.startswith("ring"):
        return lambda c, op, fabric: Ring(op=op, fabric=fabric, curve=c)
    if curve.startswith("pairwise"):
        return lambda c, op, fabric: Pairwise(op=op, fabric=fabric, curve=c)
    if curve == "nvls":
        return lambda c, op, fabric: Nvls(op=op, fabric=fabric, curve=c)
    kernel = _KERNELS[curve]
    return lambda c, _, fabric: kernel(fabric=fabric, curve=c)


def fit_curve(
    rows: Sequence[Measurement], build: Build, recipe: Recipe, loose: float = 0.01
) -> CurveFit:
    """Fit the free fields of a curve to what was measured.

    Every octave of sizes counts alike, up to a limit, however many rows it has.

    Parameters
    ----------
    build : makes the model of an operation on a fabric from a curve.
    loose : pull towards the guess, per unit of the logarithm, where the rows do not say.
    """
    names = list(recipe.bounds)
    groups = list(_grouped(rows))
    start = np.log([getattr(recipe.guess, name) for name in names])
    limits = np.log(np.array([recipe.bounds[name] for name in names])).T

    def curve(point: Array) -> Curve:
        values = dict(zip(names, map(float, np.exp(point)), strict=True))
        return replace(recipe.guess, **values)  # type: ignore[arg-type]  # NewTypes are floats

    def misses(point: Array) -> Array:
        parts = [_log_ratio(curve(point), build, group) * group.weights for group in groups]
        return np.concatenate([*parts, loose * (point - start)])

    best = least_squares(misses, start, bounds=limits, loss="soft_l1", f_scale=0.05)
    return _judge(curve(best.x), build, groups)


def _grouped(rows: Sequence[Measurement]) -> Iterator[_Group]:
    octaves = [round(float(np.log2(row.message_bytes))) for row in rows]
    average = len(rows) / len(set(octaves))
    weights = {octave: min(_HEAVIEST, average / octaves.count(octave)) for octave in octaves}

    def key(row: Measurement) -> tuple[str, str]:
        return row.op, str(row.fabric)

    for _, same in groupby(sorted(rows, key=key), key):
        group = list(same)
        sizes = np.array([row.message_bytes for row in group])
        weight = [weights[round(float(octave))] for octave in np.log2(sizes)]
        yield _Group(
            group[0].op,
            group[0].fabric,
            sizes,
            np.array([row.time for row in group]),
            np.sqrt(weight),
        )


def _log_ratio(curve: Curve, build: Build, group: _Group) -> Array:
    return np.asarray(np.log(build(curve, group.op, group.fabric).time(group.sizes) / group.times))


def _judge(curve: Curve, build: Build, groups: Sequence[_Group]) -> CurveFit:
    ratios = np.concatenate([_log_ratio(curve, build, group) for group in groups])
    errors = np.abs(np.expm1(ratios))
    sizes = np.concatenate([group.sizes for group in groups])
    ranks = [group.fabric.ranks for group in groups]
    return CurveFit(
        curve=curve,
        rows=errors.size,
        ops=tuple(sorted({group.op for group in groups})),
        smallest=float(sizes.min()),
        largest=float(sizes.max()),
        ranks=(min(ranks), max(ranks)),
        median_error=float(np.median(errors)),
        worst_error=float(errors.max()),
    )


def read_measurements(
    text: str, fabric_of: Callable[[str, int], Fabric | None]
) -> list[Measurement]:
    """Read rows ``system, op, num_gpus, message_bytes, latency_us`` of a CSV `text`.

    `fabric_of` turns a system's name and a number of GPUs into links, or None to skip the row.
    """
    found = []
    for row in csv.DictReader(text.splitlines()):
        fabric = fabric_of(row["system"], int(row["num_gpus"]))
        if fabric is not None:
            op = read_op(row["op"].replace("alltoall", "all_to_all"))
            size, time = float(row["message_bytes"]), float(row["latency_us"]) / 10**6
            found.append(Measurement(op=op, fabric=fabric, message_bytes=size, time=time))
    return found


def to_toml(name: str, fit: CurveFit, source: str, kind: str = "measured") -> str:
    """Write a fitted curve as one table for `costmodels/data/collectives_*.toml`."""
    defaults = asdict(Curve(launch=fit.curve.launch, efficiency=fit.curve.efficiency))
    lines = [f"[{name}]", f'kind = "{kind}"', f'source = "{source}"']
    for key, value in asdict(fit.curve).items():
        if key in ("launch", "efficiency") or value != defaults[key]:
            lines.append(f'{key} = "{_quantity(value, UNITS.get(key, ""))}"')
    fewest, most = fit.ranks
    lines += [
        f'ops = "{", ".join(fit.ops)}"',
        f'smallest = "{fit.smallest:.0f} B"',
        f'largest = "{fit.largest:.0f} B"',
        f'ranks = "{fewest}..{most}"',
        f'median_error = "{fit.median_error:.3f}"',
        f'worst_error = "{fit.worst_error:.3f}"',
    ]
    return "\n".join(lines) + "\n"


def _quantity(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 10**6:.4g} us"
    if unit == "B":
        return f"{value:.0f} B"
    if unit == "B/s":
        return f"{value / 10**9:.4g} GB/s"
    return f"{value:.4g}"
