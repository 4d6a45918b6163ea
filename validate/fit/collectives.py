"""Measured collectives in, curves and times out.

A curve is fitted to the rows on which NCCL used it, over all operations and group sizes at once.
Two GPUs say nothing of how a collective grows with the number of ranks: what belongs to a step or
to a copy at home is then held firmly where larger groups have put it, so that the fit moves what
all group sizes share, the launch and the efficiency of the link.

Beside its curves, a machine keeps whole collectives as they were measured. What a library does at a
size (its protocol, its channels, how it cuts the message) has more turns than a curve of few
parameters, and a calibrated machine need not guess them: it was asked. What a disturbed call took
must not bend the rest, so times are first made to rise with the size, by medians; and what lies
between two sizes is judged by sizes that were left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Final

import numpy as np

from costmodels.collectives import (
    LAUNCHES,
    CurveCalibration,
    Launch,
    NcclSettings,
    Op,
    Times,
    read_op,
)
from costmodels.collectives.algorithms import BY_NAME, Algorithm, Pairwise
from costmodels.collectives.choice import candidates
from costmodels.collectives.curve import Curve
from costmodels.collectives.nccl_tuning import Numbers
from costmodels.collectives.parameters import UNITS, Fitted, link_class
from costmodels.collectives.tables import library, tuning
from costmodels.profile import Fit
from topology.base import MIB, Bytes, Seconds, UncalibratedError, parse
from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.catalogue import Device, Fabric
from validate.accuracy.collectives import CollectiveFigure
from validate.fit.least_squares import HOLD, MIN_ROWS, Problem, Values, Vector, judge, with_held_out
from validate.fit.rows import Row
from validate.tables import shipped_table

Build = Callable[[Curve, Op, Fabric], Algorithm]
Fits = tuple[tuple[str, Fit], ...]
"""How far to trust each table, by its name in a profile."""
Point = tuple[float, float]
"""Bytes and seconds."""

FIRM_HOLD: Final = 2.0
BY_RANKS: Final[tuple[str, ...]] = ("step", "rise", "copy_gather", "copy_reduce")
ONE_WAY: Final = ("broadcast", "reduce", "gather", "scatter")
"""Where a rank only sends or only receives: quicker to start, and undisturbed by traffic the other
way, which a curve that all collectives share cannot say. Plans use none; their times are kept."""
HOST_TIMED_OPS: Final = ("all_reduce", "all_gather", "all_to_all", "send_recv")
"""Collectives whose calls are timed on the host."""
DEVICE_BOUND: Final = 2.0  # a call this many times longer than the host's part shows the gap
SPLIT: Final = "every second size, from 1 MiB on, by a line between the others"
MIN_JUDGED_SIZE: Final = MIB  # B: below, the launch counts and the size does not
LEAST_SIZES: Final = 4  # without which nothing is held back


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecipe:
    """Where a fit starts and which fields it may move, between which bounds."""

    guess: Curve
    bounds: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOn:
    """Where rows were measured, and with which release of NCCL."""

    device: Device
    fabric: Fabric
    nccl: tuple[int, int]


@cache
def recipes() -> dict[str, FitRecipe]:
    """Read how each curve is fitted, by names such as ``nvlink.ring_ll``."""
    return {
        f"{link}.{name}": _recipe(row)
        for link, rows in shipped_table("collectives_recipes.toml").items()
        for name, row in rows.items()
    }


def _recipe(row: Mapping[str, Sequence[str]]) -> FitRecipe:
    values = {
        key: [parse(text, UNITS.get(key, "1")) for text in texts] for key, texts in row.items()
    }
    guesses = {key: numbers[len(numbers) // 2] for key, numbers in values.items()}
    return FitRecipe(
        guess=Curve(**guesses),  # type: ignore[arg-type]  # NewTypes are floats
        bounds={key: (numbers[0], numbers[2]) for key, numbers in values.items() if numbers[1:]},
    )


def fit_collectives(
    rows: Sequence[Row], place: MeasuredOn, source: str, identity: str
) -> tuple[CurveCalibration, Fits]:
    """Fit every curve that the rows say something about, and keep times as they were measured."""
    curve_rows = ((name, row) for row in rows if (name := _curve_name(row, place)))
    groups = gathered((name, collective_of(row, place)) for name, row in curve_rows)
    link = f"{place.fabric.architecture}.{link_class(place.fabric)}"
    curves, fits = [], []
    for name, figures in sorted(groups.items()):
        fitted = _fit_on_machine(name, figures, place.fabric)
        if fitted is not None:
            curves.append((f"{link}.{name}", replace(fitted[0], source=source)))
            fits.append((f"curves.{link}.{name}", fitted[1]))
    host, gap = _call_overheads(rows)
    times, time_fits = fit_times(rows, place.fabric, source)
    calibration = CurveCalibration(
        identity=identity, curves=tuple(curves), host=host, gap=gap, times=times
    )
    return calibration, (*fits, *time_fits)


def collective_of(row: Row, place: MeasuredOn) -> CollectiveFigure:
    """Say what a row of a collective measured."""
    return CollectiveFigure(
        op=read_op(str(row.sizes["op"])),
        fabric=place.fabric,
        message_bytes=float(row.number("bytes")),
        seconds=Seconds(row.seconds),
        launch="graph" if row.mode == "graph" else "stream",
        settings=NcclSettings(nccl=place.nccl),
        source=row.key,
    )


def _curve_name(row: Row, place: MeasuredOn) -> str:
    """Name the curve that a message was sent by; empty for what shapes none."""
    if row.error or row.mode != "graph" or place.fabric.ranks < 2:
        return ""
    if row.family == "collective" and row.sizes["op"] not in ONE_WAY:
        return curve_of(collective_of(row, place), tuning().at(place.nccl))
    if row.family == "forced" and row.sizes["algorithm"] == "Ring":
        return f"ring_{row.sizes['protocol']}".lower()
    return ""


def curve_of(figure: CollectiveFigure, numbers: Numbers) -> str:
    """Name the curve of the algorithm and protocol that NCCL takes for a measured message."""
    op, fabric = figure.op, figure.fabric
    if op in Pairwise.ops:
        small = figure.message_bytes <= Pairwise.flagged_bytes(op, fabric, numbers)
        return Pairwise.curve_name("LL" if small else "Simple", fabric)
    options = candidates(op, fabric, numbers)
    algorithm, best = min(options, key=lambda pair: pair[1].price(figure.message_bytes))
    return algorithm.curve_name(best.protocol, fabric)


def builder(curve: str) -> Build:
    """Say how a model is made from a curve of that name."""
    algorithm = BY_NAME[curve.partition("_")[0]]
    return lambda c, op, fabric: algorithm(op=op, fabric=fabric, curve=c)


def _fit_on_machine(
    name: str, figures: Sequence[CollectiveFigure], fabric: Fabric
) -> tuple[Fitted, Fit] | None:
    """Fit a curve from where the shipped one stands; None without a shipped one or enough rows."""
    link = link_class(fabric)
    recipe = recipes().get(f"{'nvlink' if link == 'bridge' else link}.{name}")
    try:
        start = library().get(fabric, name)
    except UncalibratedError:
        return None
    if recipe is None or len(figures) < MIN_ROWS:
        return None
    fewer_ranks = fabric.ranks < start.ranks[1]
    firm = {field: FIRM_HOLD for field in BY_RANKS if fewer_ranks and field in recipe.bounds}
    return fit_curve(name, figures, replace(recipe, guess=start.curve), firm=firm)


def fit_curve(
    name: str,
    figures: Sequence[CollectiveFigure],
    recipe: FitRecipe,
    *,
    hold: float = HOLD,
    firm: Mapping[str, float] | None = None,
) -> tuple[Fitted, Fit]:
    """Fit the free fields of a curve to what was measured.

    hold : pull towards the guess, per unit of the logarithm, where the rows do not say.
    firm : fields that are held more, and how much.
    """
    build, guess = builder(name), recipe.guess
    start_values = {field: float(getattr(guess, field)) for field in recipe.bounds}
    limits = {
        field: (min(low, start_values[field]), max(high, start_values[field]))
        for field, (low, high) in recipe.bounds.items()
    }

    def curve(values: Values) -> Curve:
        return replace(guess, **values)  # type: ignore[arg-type]  # NewTypes are floats

    def problem(figures: Sequence[CollectiveFigure]) -> Problem:
        groups = list(_rows_by_operation(figures))

        def ratio(values: Values) -> Vector:
            """Predicted over measured of every row, operation by operation and link by link."""
            result = np.empty(len(figures))
            for op, fabric, places, sizes, measured in groups:
                result[places] = build(curve(values), op, fabric).time(sizes) / measured
            return result

        return Problem(first=start_values, ratio=ratio, limits=limits, hold=hold, firm=firm)

    judged = judge(figures, problem)
    sizes = [figure.message_bytes for figure in figures]
    ranks = [figure.fabric.ranks for figure in figures]
    fitted = Fitted(
        curve=curve(judged.values),
        kind="measured",
        source=figures[0].source,
        ops=tuple(sorted({figure.op for figure in figures})),
        smallest=Bytes(min(sizes)),
        largest=Bytes(max(sizes)),
        ranks=(min(ranks), max(ranks)),
        median_error=judged.median_error,
        worst_error=judged.fit.worst_error,
    )
    return fitted, judged.fit


def _rows_by_operation(
    figures: Sequence[CollectiveFigure],
) -> Iterator[tuple[Op, Fabric, list[int], Vector, Vector]]:
    """Yield each operation and fabric with the places of its rows, their sizes and seconds."""
    places_by_key = gathered(
        ((figure.op, figure.fabric), place) for place, figure in enumerate(figures)
    )
    for (op, fabric), places in places_by_key.items():
        sizes = np.array([figures[place].message_bytes for place in places])
        yield op, fabric, places, sizes, np.array([figures[place].seconds for place in places])


def _call_overheads(rows: Sequence[Row]) -> tuple[Seconds | None, Seconds | None]:
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
    gap = None if len(gaps) < MIN_ROWS else Seconds(max(0.0, float(np.median(gaps))))
    return Seconds(host), gap


def host_of_calls(rows: Sequence[Row]) -> float | None:
    """Median over the collectives of the host's seconds a call; None where nobody looked."""
    seconds = [
        row.seconds
        for row in rows
        if row.family == "host" and not row.error and str(row.sizes["op"]) in HOST_TIMED_OPS
    ]
    return float(np.median(seconds)) if seconds else None


def fit_times(
    rows: Sequence[Row], fabric: Fabric, source: str
) -> tuple[tuple[Times, ...], tuple[tuple[str, Fit], ...]]:
    """Take the measured times of every collective, and judge what lies between them."""
    times, fits = [], []
    for op, launch, points in _measured_points(rows, fabric):
        levels = rising_times(points)
        misses = _relative_misses([interpolated(levels, size) for size, _ in points], points)
        times.append(
            Times(
                op=read_op(op),
                architecture=fabric.architecture,
                link=link_class(fabric),
                ranks=fabric.ranks,
                launch=launch,
                bandwidth=fabric.bandwidth,
                sizes=tuple(size for size, _ in levels),
                seconds=tuple(time for _, time in levels),
                source=source,
                median_error=float(np.median(misses)),
                worst_error=float(misses.max()),
            )
        )
        fit = Fit(rows=len(points), worst_error=float(misses.max()))
        fits.append((f"times.{times[-1].place}", _held_out_fit(points, fit)))
    return tuple(times), tuple(fits)


def _measured_points(
    rows: Sequence[Row], fabric: Fabric
) -> Iterator[tuple[str, Launch, list[Point]]]:
    """Yield each collective and launch with its points, in order of size."""
    groups = gathered(
        ((str(row.sizes["op"]), row.mode), (float(row.number("bytes")), row.seconds))
        for row in rows
        if row.family == "collective" and not row.error
    )
    for (op, mode), points in sorted(groups.items()):
        launch = next((launch for launch in LAUNCHES if launch == mode), None)
        if launch is not None and fabric.ranks > 1 and len({size for size, _ in points}) > 1:
            yield op, launch, sorted(points)


def rising_times(points: Sequence[Point]) -> list[Point]:
    """Make times rise with the size, and leave out what lies on a level line.

    Neighbours that fall are one level at their median (the regression that is monotone and least
    in the sum of absolute errors, of the logarithms).

    R. E. Barlow et al., "Statistical Inference under Order Restrictions", Wiley, 1972.

    >>> rising_times([(1.0, 10.0), (2.0, 29.0), (4.0, 10.0), (8.0, 11.0), (16.0, 20.0)])
    [(1.0, 10.0), (2.0, 10.0), (4.0, 10.0), (8.0, 11.0), (16.0, 20.0)]
    """
    blocks: list[list[Point]] = []
    for _, same_size in groupby(points, lambda point: point[0]):
        blocks.append(list(same_size))
        while len(blocks) > 1 and _level(blocks[-2]) > _level(blocks[-1]):
            last_block = blocks.pop()
            blocks[-1] += last_block
    levels: list[Point] = []
    for block in blocks:
        sizes, level = sorted({size for size, _ in block}), _level(block)
        levels += [(size, level) for size in dict.fromkeys((sizes[0], sizes[-1]))]
    return levels


def _level(block: Sequence[Point]) -> float:
    """Lower median: of two that disagree, the undisturbed one."""
    ordered = sorted(time for _, time in block)
    return ordered[(len(ordered) - 1) // 2]


def interpolated(points: Sequence[Point], size: float) -> float:
    """Seconds at a size between two points, or at the nearer end."""
    return float(np.interp(size, [size for size, _ in points], [time for _, time in points]))


def _held_out_fit(points: Sequence[Point], fit: Fit) -> Fit:
    """Say how far the lines between every second size miss the sizes in between."""
    sizes = sorted({size for size, _ in points})
    expected: list[float] = []
    actual: list[Point] = []
    for parity in (0, 1):
        fitted_sizes = set(sizes[parity::2])
        levels = rising_times([point for point in points if point[0] in fitted_sizes])
        for point in points:
            inside = point[0] >= MIN_JUDGED_SIZE and min(fitted_sizes) < point[0] < max(
                fitted_sizes
            )
            if point[0] not in fitted_sizes and inside:
                expected.append(interpolated(levels, point[0]))
                actual.append(point)
    if len(actual) < LEAST_SIZES:
        return fit
    return with_held_out(fit, _relative_misses(expected, actual), SPLIT)


def _relative_misses(expected: Sequence[float], actual: Sequence[Point]) -> Vector:
    measured: Vector = np.array([time for _, time in actual])
    return np.abs(np.array(expected) / measured - 1.0)
