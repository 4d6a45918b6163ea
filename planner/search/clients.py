"""What clients of a served model see: times to tokens, and what all of them get together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import hypot
from typing import TYPE_CHECKING, Final

import numpy as np

from planner.request.plan import Plan, TwoPools
from planner.request.request import Request
from topology.base import counted, format_interval, format_number, format_seconds
from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SHARES = (0.5, 0.9, 0.99)

BESIDE_KERNELS: Final = {"ttft": 0.4, "tpot": 0.05, "tokens_per_s": 0.04}
"""Relative half-widths of what clients see, beside that of the kernels, so that two in three hold.

Measured: as far as the errors of 606 runs of dense models under load, in the benchmark sample of
aiconfigurator-core (Apache-2.0), are not those of their kernels: 73, 74 and 73 % of them hold.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A time over all requests, in seconds.

    ordered, below : every time, and the share of requests that take no longer.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    ordered: NDArray[np.float64] = field(repr=False, compare=False)
    below: NDArray[np.float64] = field(repr=False, compare=False)

    def at(self, share: float | None) -> float:
        """Seconds within which a share of requests are done; their mean where there is none.

        >>> spread_of([1.0, 3.0], [1.0, 3.0]).at(0.25)
        1.0
        """
        return self.mean if share is None else _time_at(self.ordered, self.below, share)

    def to_dict(self) -> dict[str, float]:
        """Return what ``--format json`` prints."""
        return {"mean": self.mean, "p50": self.p50, "p90": self.p90, "p99": self.p99}


def spread_of(values: ArrayLike, weights: Sequence[float]) -> Spread:
    """Put times into numbers; a value of weight 2 stands for two requests.

    >>> spread_of([1.0, 3.0], [1.0, 3.0])
    Spread(mean=2.5, p50=3.0, p90=3.0, p99=3.0)
    """
    order = np.argsort(values, kind="stable")
    ordered, counts = np.asarray(values, dtype=float)[order], np.asarray(weights)[order]
    below = np.cumsum(counts) / np.sum(counts)
    p50, p90, p99 = (_time_at(ordered, below, share) for share in SHARES)
    mean = float(np.average(ordered, weights=counts))
    return Spread(mean=mean, p50=p50, p90=p90, p99=p99, ordered=ordered, below=below)


def _time_at(ordered: NDArray[np.float64], below: NDArray[np.float64], share: float) -> float:
    return float(ordered[min(int(np.searchsorted(below, share)), len(ordered) - 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How soon tokens are wanted, in seconds; None is no limit.

    ttft, tpot : of the first token, and of each later one. ttft_share, tpot_share : share of
    requests that are to keep it; None where their mean is.
    """

    ttft: float | None = None
    tpot: float | None = None
    ttft_share: float | None = None
    tpot_share: float | None = None

    def __bool__(self) -> bool:
        return self.ttft is not None or self.tpot is not None

    def words(self) -> list[str]:
        """Write what is wanted.

        >>> Wanted(ttft=0.5, ttft_share=0.99, tpot=0.03).words()
        ['p99 of TTFT within 500 ms', 'TPOT within 30 ms']
        """
        rows = (("TTFT", self.ttft, self.ttft_share), ("TPOT", self.tpot, self.tpot_share))
        return [
            f"{_share_prefix(share)}{name} within {format_seconds(limit)}"
            for name, limit, share in rows
            if limit is not None
        ]


def _share_prefix(share: float | None) -> str:
    return "" if share is None else f"p{100 * share:.6g} of "


def wanted_of(request: Request) -> Wanted:
    """Say how soon a request wants tokens."""
    first, later = request.ttft_percentile, request.tpot_percentile
    return Wanted(
        ttft=request.slo_ttft,
        tpot=request.slo_tpot,
        ttft_share=None if first is None else first / 100,
        tpot_share=None if later is None else later / 100,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A plan under load; of all its replicas.

    concurrency : requests in flight on average. ttft, tpot, request : to the first token, to each
    later one, and to the last, waiting included. tokens_per_s : written. max_concurrency :
    requests whose keys and values fit at once. kv_tokens : that fit. occupancy : share of the
    cache in use on average. preempted : share of requests that lost their cache.
    overloaded : more requests come than are served, so that they wait ever longer.
    told : sizes that each engine is told for it, as ``Settings`` names them.
    memory : bytes by part on the fullest GPU, with the cache as full as it gets.
    kernels : relative half-width of the time that kernels take; see `half_width`.
    followed : requests that were.
    """

    gpus: int
    concurrency: float
    ttft: Spread
    tpot: Spread
    request: Spread
    tokens_per_s: float
    max_concurrency: int
    kv_tokens: int
    occupancy: float
    preempted: float
    overloaded: bool = False
    told: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    kernels: float = 0.0
    followed: int = 0

    def half_width(self, name: str) -> float:
        """Half the interval around one of `BESIDE_KERNELS`, relative to it."""
        return hypot(self.kernels, BESIDE_KERNELS[name])

    def interval(self, name: str, value: float) -> list[float]:
        """Return the ends of the interval around a value of that name."""
        half = self.half_width(name) * value
        return [max(0.0, value - half), value + half]

    @property
    def requests_per_s(self) -> float:
        """Requests that are done a second, by Little's law."""
        return self.concurrency / self.request.mean

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.gpus

    def apart(self, other: Serving) -> float:
        """Say how far the slowest of a hundred requests are from those that others saw."""
        pairs = ((self.ttft, other.ttft), (self.request, other.request))
        return max(abs(mine.p99 / theirs.p99 - 1) for mine, theirs in pairs)

    def meets(self, wanted: Wanted) -> bool:
        """Whether tokens come as soon as they are wanted."""
        return not self.overloaded and self.beyond(wanted) <= 1.0

    def beyond(self, wanted: Wanted) -> float:
        """How many times over the limits the worse of both is; at most 1 where they are met."""
        return max(
            (seconds / limit for _, seconds, limit in self._limited_times(wanted)), default=0.0
        )

    def beside(self, wanted: Wanted) -> list[str]:
        """Write each time beside its limit, where there is one."""
        return [
            f"{name} {format_seconds(seconds)} of {format_seconds(limit)}"
            for name, seconds, limit in self._limited_times(wanted)
        ]

    def _limited_times(self, wanted: Wanted) -> Iterator[tuple[str, float, float]]:
        """Yield the name of each time that is limited, the time and its limit."""
        if wanted.ttft is not None:
            seconds = self.ttft.at(wanted.ttft_share)
            yield f"{_share_prefix(wanted.ttft_share)}TTFT", seconds, wanted.ttft
        if wanted.tpot is not None:
            seconds = self.tpot.at(wanted.tpot_share)
            yield f"{_share_prefix(wanted.tpot_share)}TPOT", seconds, wanted.tpot

    @property
    def ttft_text(self) -> str:
        """The mean time to the first token and half its interval."""
        return format_interval(self.ttft.mean, self.half_width("ttft") * self.ttft.mean)

    @property
    def tpot_text(self) -> str:
        """The mean time of a later token and half its interval."""
        return format_interval(self.tpot.mean, self.half_width("tpot") * self.tpot.mean)

    @property
    def rate_text(self) -> str:
        """Tokens a second and half their interval."""
        half = self.half_width("tokens_per_s") * self.tokens_per_s
        return format_number(self.tokens_per_s, half)

    def rows(self) -> list[list[str]]:
        """Make a row of each number."""
        rows = [["requests at once", format_number(self.concurrency)]]
        means = (self.ttft_text, self.tpot_text, format_seconds(self.request.mean))
        names = ("TTFT", "TPOT", "request")
        spreads = (self.ttft, self.tpot, self.request)
        for name, mean, spread in zip(names, means, spreads, strict=True):
            p50, p90, p99 = map(format_seconds, (spread.p50, spread.p90, spread.p99))
            rows.append([name, f"{mean}; p50 {p50}, p90 {p90}, p99 {p99}"])
        rows.append(["tokens/s", self.rate_text])
        rows.append(["tokens/s a GPU", format_number(self.tokens_per_s_per_gpu)])
        cache_text = f"{self.kv_tokens:,} tokens fit, {100 * self.occupancy:.0f} % in use"
        rows.append(
            ["KV", f"{cache_text}; at most {counted(self.max_concurrency, 'request')} at once"]
        )
        if self.followed:
            rows.append(["followed", counted(self.followed, "request")])
        if self.preempted:
            rows.append(["preempted", f"{100 * self.preempted:.0f} % of requests"])
        return rows

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "concurrency": self.concurrency,
            "ttft_s": self.ttft.to_dict(),
            "tpot_s": self.tpot.to_dict(),
            "request_s": self.request.to_dict(),
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "max_concurrency": self.max_concurrency,
            "kv_tokens": self.kv_tokens,
            "kv_occupancy": self.occupancy,
            "preempted": self.preempted,
            "requests_followed": self.followed,
            "ttft_interval_s": self.interval("ttft", self.ttft.mean),
            "tpot_interval_s": self.interval("tpot", self.tpot.mean),
            "tokens_per_s_interval": self.interval("tokens_per_s", self.tokens_per_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan at a concurrency."""

    plan: Plan | TwoPools
    serving: Serving

    @property
    def tpot_s(self) -> float:
        return self.serving.tpot.mean

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.serving.tokens_per_s_per_gpu

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "plan": str(self.plan),
            "concurrency": self.serving.concurrency,
            "ttft_s": self.serving.ttft.mean,
            "tpot_s": self.tpot_s,
            "tokens_per_s": self.serving.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
        }
