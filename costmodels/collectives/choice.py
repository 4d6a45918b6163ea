"""Which model prices which message: NCCL's choice by size, kept monotone."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives.build import Choice, build
from costmodels.collectives.calibration import Calibration
from costmodels.collectives.operations import PAIRWISE_OPS, PROTOCOLS, Amount, Op, WireProtocol
from costmodels.collectives.tuning import Candidate, Numbers, candidates
from topology.base import UncalibratedError
from topology.catalogue import Fabric

_OCTAVES: Final = 46
_POINTS: Final = 8  # an octave


class Priced(Protocol):
    """A price for every size, and what stands behind it."""

    def time(self, message_bytes: Amount) -> Amount: ...

    def at(self, message_bytes: float) -> Choice: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Choices by size: `choices[i]` from `starts[i]` bytes on, the first from 0.

    Where a choice leads to a shorter time than the one before had, smaller messages are capped
    at it: more bytes never take less time, and who is short of the switch could pad.
    """

    choices: tuple[Choice, ...]
    starts: tuple[float, ...]
    ceilings: tuple[float, ...]  # s, the least that any later choice starts with

    def at(self, message_bytes: float) -> Choice:
        """Say what is used for a message of `message_bytes`."""
        return self.choices[bisect_right(self.starts, message_bytes) - 1]

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for messages of `message_bytes`."""
        if isinstance(message_bytes, np.ndarray):
            seconds = np.empty_like(message_bytes, dtype=float)
            index = np.searchsorted(np.array(self.starts), message_bytes, side="right") - 1
            for i in sorted(set(index.ravel().tolist())):  # np.unique would load numpy.ma
                here = index == i
                found = self.choices[i].model.time(message_bytes[here])
                seconds[here] = np.minimum(found, self.ceilings[i])
            return seconds
        i = bisect_right(self.starts, message_bytes) - 1
        return min(self.choices[i].model.time(message_bytes), self.ceilings[i])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The best of several priced ways, each up to its own largest message."""

    ways: tuple[Priced, ...]
    limits: tuple[float, ...]

    def at(self, message_bytes: float) -> Choice:
        """Say what the fastest way uses for a message of `message_bytes`."""
        usable = [
            way for way, limit in zip(self.ways, self.limits, strict=True) if message_bytes <= limit
        ]
        return min(usable, key=lambda way: way.time(message_bytes)).at(message_bytes)

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for messages of `message_bytes`."""
        if isinstance(message_bytes, np.ndarray):
            times = [
                np.where(message_bytes <= limit, way.time(message_bytes), np.inf)
                for way, limit in zip(self.ways, self.limits, strict=True)
            ]
            best: NDArray[np.float64] = np.min(times, axis=0)
            return best
        return min(
            way.time(message_bytes)
            for way, limit in zip(self.ways, self.limits, strict=True)
            if message_bytes <= limit
        )


def one(choice: Choice) -> Plan:
    """Use one model for every size."""
    return Plan(choices=(choice,), starts=(0.0,), ceilings=(np.inf,))


def plan(steps: Sequence[tuple[float, Choice]]) -> Plan:
    """Put choices in order of the size they start at, with the ceilings that keep order."""
    ceilings = [np.inf]
    for start, choice in reversed(steps[1:]):
        ceilings.append(min(ceilings[-1], choice.model.time(start)))
    return Plan(
        choices=tuple(choice for _, choice in steps),
        starts=(0.0, *(start for start, _ in steps[1:])),
        ceilings=tuple(map(float, ceilings[::-1])),
    )


def nccl_plan(
    op: Op,
    fabric: Fabric,
    numbers: Numbers,
    algorithm: str = "",
    calibration: Calibration = None,
    *,
    protocols: tuple[WireProtocol, ...] = PROTOCOLS,
) -> Plan:
    """Follow NCCL's choice of algorithm and protocol; `algorithm` leaves it the protocol only.

    protocols : those it may take; any where none of them can run.
    """
    if op in PAIRWISE_OPS:
        return _pairwise_plan(op, fabric, numbers, calibration, protocols)
    named = [c for c in candidates(op, fabric, numbers) if algorithm in ("", c.algorithm)]
    able = [c for c in named if c.protocol in protocols] or named
    if not able:
        return one(build(algorithm, "Simple", op, fabric, calibration))
    return plan([(size, _build(able[i], op, fabric, calibration)) for size, i in _switches(able)])


def _build(candidate: Candidate, op: Op, fabric: Fabric, calibration: Calibration) -> Choice:
    try:
        return build(candidate.algorithm, candidate.protocol, op, fabric, calibration)
    except UncalibratedError:
        return build(candidate.algorithm, "Simple", op, fabric, calibration)


def _switches(able: Sequence[Candidate]) -> Iterator[tuple[float, int]]:
    sizes = 2.0 ** (np.arange(_OCTAVES * _POINTS) / _POINTS)
    best = np.argmin([candidate.price(sizes) for candidate in able], axis=0)
    yield 0.0, int(best[0])
    for (_, before), (size, now) in pairwise(zip(sizes, best, strict=True)):
        if now != before:
            yield float(size), int(now)


def _pairwise_plan(
    op: Op,
    fabric: Fabric,
    numbers: Numbers,
    calibration: Calibration,
    protocols: tuple[WireProtocol, ...],
) -> Plan:
    """NCCL sends small parts with flags in the data, up to a fixed size a peer."""
    link = "pcie" if fabric.link == "pcie" else "nvlink"
    parts = 1 if op == "send_recv" else fabric.ranks
    limit = numbers[f"{link}_pairwise_ll"][0] * parts
    large = build("pairwise", "Simple", op, fabric, calibration)
    if "LL" not in protocols:
        return one(large)
    small = build("pairwise", "LL", op, fabric, calibration)
    return plan([(0.0, small), (cast(float, np.nextafter(limit, np.inf)), large)])
