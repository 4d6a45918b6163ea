"""Prices for every size of one collective, and what stands behind each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from costmodels.collectives.algorithms import Algorithm
from costmodels.collectives.engines import Mixing
from costmodels.collectives.measured import Times
from costmodels.collectives.operations import Amount
from costmodels.collectives.parameters import Fitted
from costmodels.sizes import interp, larger
from topology.base import Bytes
from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An algorithm in a protocol, and the curve it rests on."""

    model: Algorithm
    fitted: Fitted


class Pricing(Protocol):
    """A price for every size, and what stands behind it."""

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for messages of `message_bytes`."""

    def at(self, message_bytes: float) -> Choice:
        """Say what is used for a message of `message_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BySize:
    """Choices by size: `choices[i]` from `starts[i]` bytes on, the first from 0.

    Where a choice leads to a shorter time than the one before had, smaller messages are capped
    at it: more bytes never take less time, and who is short of the switch could pad.
    """

    choices: tuple[Choice, ...]
    starts: tuple[float, ...]
    ceilings: tuple[float, ...]  # s, the least that any later choice starts with

    def at(self, message_bytes: float) -> Choice:
        return self.choices[bisect_right(self.starts, message_bytes) - 1]

    def time(self, message_bytes: Amount) -> Amount:
        if isinstance(message_bytes, float):
            i = bisect_right(self.starts, message_bytes) - 1
            return min(self.choices[i].model.time(message_bytes), self.ceilings[i])
        seconds = np.empty_like(message_bytes, dtype=float)
        index = np.searchsorted(np.array(self.starts), message_bytes, side="right") - 1
        for i in sorted(set(index.ravel().tolist())):  # np.unique would load numpy.ma
            in_range = index == i
            times = self.choices[i].model.time(message_bytes[in_range])
            seconds[in_range] = np.minimum(times, self.ceilings[i])
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The best of several pricings, each up to its own largest message."""

    ways: tuple[Pricing, ...]
    limits: tuple[float, ...]

    def at(self, message_bytes: float) -> Choice:
        usable = [
            way for way, limit in zip(self.ways, self.limits, strict=True) if message_bytes <= limit
        ]
        return min(usable, key=lambda way: way.time(message_bytes)).at(message_bytes)

    def time(self, message_bytes: Amount) -> Amount:
        if isinstance(message_bytes, float):
            return min(
                way.time(message_bytes)
                for way, limit in zip(self.ways, self.limits, strict=True)
                if message_bytes <= limit
            )
        times = [
            np.where(message_bytes <= limit, way.time(message_bytes), inf)
            for way, limit in zip(self.ways, self.limits, strict=True)
        ]
        best: NDArray[np.float64] = np.min(times, axis=0)
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedPricing:
    """Another pricing, of which a class changes the time."""

    way: Pricing

    def at(self, message_bytes: float) -> Choice:
        return self.way.at(message_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched(_ChangedPricing):
    r"""A call as its caller sees it, back to back with others.

    .. math:: t = \max(host, kernel + gap + m\,copy)

    with m the message; the host prepares the next call while the GPU works on this one.

    host : s of host work a call. gap : s on the GPU between kernels. copy : s a byte of a copy
    of the input. A replayed graph has none of them but the host's floor of its launcher.
    """

    host: float = 0.0
    gap: float = 0.0
    copy: float = 0.0

    def time(self, message_bytes: Amount) -> Amount:
        device = self.way.time(message_bytes) + self.gap + message_bytes * self.copy
        return cast(Amount, larger(device, self.host))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed(_ChangedPricing):
    """A call that a graph replays, with what the graph adds to it."""

    added: Mixing

    def time(self, message_bytes: Amount) -> Amount:
        graph_time = cast(Amount, interp(message_bytes, self.added.sizes, self.added.seconds))
        return self.way.time(message_bytes) + graph_time


@dataclass(frozen=True, slots=True, kw_only=True)
class AsMeasured(_ChangedPricing):
    """Times of this very machine; which algorithm was behind them is the library's choice."""

    times: Times

    def at(self, message_bytes: float) -> Choice:
        choice, times = self.way.at(message_bytes), self.times
        fitted = replace(
            choice.fitted,
            kind=times.kind,
            source=times.source,
            ops=(times.op,),
            smallest=Bytes(times.sizes[0]),
            largest=Bytes(times.sizes[-1]),
            ranks=(times.ranks, times.ranks),
            median_error=times.median_error,
            worst_error=times.worst_error,
            own=True,
        )
        return replace(choice, fitted=fitted)

    def time(self, message_bytes: Amount) -> Amount:
        return self.times.time(message_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced(_ChangedPricing):
    """A call whose bytes take `factor` times as long as usual, on a host that was measured."""

    factor: float

    def time(self, message_bytes: Amount) -> Amount:
        start = self.way.time(0.0)
        return start + (self.way.time(message_bytes) - start) * self.factor


def fastest(ways: Sequence[Pricing]) -> Pricing:
    """Take the best of several pricings at every size."""
    if len(ways) == 1:
        return ways[0]
    return Fastest(ways=tuple(ways), limits=(inf,) * len(ways))


def by_size(steps: Sequence[tuple[float, Choice]]) -> BySize:
    """Put choices in order of the size they start at, with the ceilings that keep order."""
    ceilings = [inf]
    for start, choice in reversed(steps[1:]):
        ceilings.append(min(ceilings[-1], choice.model.time(start)))
    return BySize(
        choices=tuple(choice for _, choice in steps),
        starts=(0.0, *(start for start, _ in steps[1:])),
        ceilings=tuple(map(float, ceilings[::-1])),
    )


def single_choice(choice: Choice) -> BySize:
    """Use one choice for every size."""
    return by_size([(0.0, choice)])
