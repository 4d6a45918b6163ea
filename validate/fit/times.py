"""Collectives as they were measured: a few points a collective, and how good the lines between are.

What a library does at a size (its protocol, its channels, how it cuts the message) has more turns
than a curve of few parameters, and a calibrated machine need not guess them: it was asked. What a
disturbed call took must not bend the rest, so times are first made to rise with the size, by
medians; and what lies between two sizes is judged by sizes that were left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import numpy as np

from costmodels.collectives.operations import read_op
from costmodels.collectives.parameters import link_class
from costmodels.collectives.settings import LAUNCHES, Launch
from costmodels.collectives.times import Times
from costmodels.profiles.profile import Fit
from topology.base import MIB
from topology.catalogue import Fabric
from validate.fit.robust import Vector
from validate.fit.rows import Row

SPLIT: Final = "every second size, from 1 MiB on, by a line between the others"
JUDGED: Final = MIB  # B: below, the launch counts and the size does not
LEAST: Final = 4  # sizes without which nothing is held back

Point = tuple[float, float]
"""Bytes and seconds."""


def fit_times(
    rows: Sequence[Row], fabric: Fabric, source: str
) -> tuple[tuple[Times, ...], tuple[tuple[str, Fit], ...]]:
    """Take the measured times of every collective, and judge what lies between them."""
    times, fits = [], []
    for op, launch, points in _measured(rows, fabric):
        found = rising(points)
        misses = _missed([line(found, size) for size, _ in points], points)
        times.append(
            Times(
                op=read_op(op),
                architecture=fabric.architecture,
                link=link_class(fabric),
                ranks=fabric.ranks,
                launch=launch,
                bandwidth=fabric.bandwidth,
                sizes=tuple(size for size, _ in found),
                seconds=tuple(time for _, time in found),
                source=source,
                median_error=float(np.median(misses)),
                worst_error=float(misses.max()),
            )
        )
        fit = Fit(rows=len(points), worst_error=float(misses.max()))
        fits.append((f"times.{times[-1].place}", judged(points, fit)))
    return tuple(times), tuple(fits)


def _measured(rows: Sequence[Row], fabric: Fabric) -> Iterator[tuple[str, Launch, list[Point]]]:
    """Yield each collective and launch with its points, in order of size."""
    chosen = [row for row in rows if row.family == "collective" and not row.error]

    def name(row: Row) -> tuple[str, str]:
        return str(row.sizes["op"]), row.mode

    for (op, mode), some in groupby(sorted(chosen, key=name), name):
        launch = next((one for one in LAUNCHES if one == mode), None)
        points = sorted((float(row.number("bytes")), row.seconds) for row in some)
        if launch is not None and fabric.ranks > 1 and len({size for size, _ in points}) > 1:
            yield op, launch, points


def rising(points: Sequence[Point]) -> list[Point]:
    """Make times rise with the size, and leave out what lies on a level line.

    Neighbours that fall are one level at their median (the regression that is monotone and least
    in the sum of absolute errors, of the logarithms).

    References
    ----------
    R. E. Barlow et al., "Statistical Inference under Order Restrictions", Wiley, 1972.

    Examples
    --------
    >>> rising([(1.0, 10.0), (2.0, 29.0), (4.0, 10.0), (8.0, 11.0), (16.0, 20.0)])
    [(1.0, 10.0), (2.0, 10.0), (4.0, 10.0), (8.0, 11.0), (16.0, 20.0)]
    """
    blocks: list[list[Point]] = []
    for _, same in groupby(points, lambda point: point[0]):
        blocks.append(list(same))
        while len(blocks) > 1 and _level(blocks[-2]) > _level(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    found: list[Point] = []
    for block in blocks:
        sizes, level = sorted({size for size, _ in block}), _level(block)
        found += [(size, level) for size in dict.fromkeys((sizes[0], sizes[-1]))]
    return found


def _level(block: Sequence[Point]) -> float:
    """Lower median: of two that disagree, the undisturbed one."""
    ordered = sorted(time for _, time in block)
    return ordered[(len(ordered) - 1) // 2]


def line(points: Sequence[Point], size: float) -> float:
    """Seconds at a size between two points, or at the nearer end."""
    return float(np.interp(size, [size for size, _ in points], [time for _, time in points]))


def judged(points: Sequence[Point], fit: Fit) -> Fit:
    """Say how far the lines between every second size miss the sizes in between."""
    sizes = sorted({size for size, _ in points})
    expected: list[float] = []
    actual: list[Point] = []
    for parity in (0, 1):
        kept = set(sizes[parity::2])
        known = rising([point for point in points if point[0] in kept])
        for point in points:
            inside = point[0] >= JUDGED and min(kept) < point[0] < max(kept)
            if point[0] not in kept and inside:
                expected.append(line(known, point[0]))
                actual.append(point)
    if len(actual) < LEAST:
        return fit
    misses = _missed(expected, actual)
    return replace(
        fit,
        held_out_rows=misses.size,
        held_out_median_error=float(np.median(misses)),
        held_out_p90_error=float(np.quantile(misses, 0.9)),
        held_out_worst_error=float(misses.max()),
        split=SPLIT,
    )


def _missed(expected: Sequence[float], actual: Sequence[Point]) -> Vector:
    measured: Vector = np.array([time for _, time in actual])
    return np.abs(np.array(expected) / measured - 1.0)
