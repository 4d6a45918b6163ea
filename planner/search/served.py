"""What clients of a served model see: times to tokens, and what all of them get together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.request.plan import Plan
from topology.base import counted, format_seconds

SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A time over all requests, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    def to_dict(self) -> dict[str, float]:
        """Return what ``--format json`` prints."""
        return {"mean": self.mean, "p50": self.p50, "p90": self.p90, "p99": self.p99}


def spread_of(values: Sequence[float], weights: Sequence[float]) -> Spread:
    """Put times into numbers; a value of weight 2 stands for two requests.

    >>> spread_of([1.0, 3.0], [1.0, 3.0])
    Spread(mean=2.5, p50=3.0, p90=3.0, p99=3.0)
    """
    order = np.argsort(values, kind="stable")
    ordered, counts = np.asarray(values)[order], np.asarray(weights)[order]
    below = np.cumsum(counts) / np.sum(counts)
    places = np.minimum(np.searchsorted(below, SHARES), len(ordered) - 1)
    median, most, nearly_all = (float(value) for value in ordered[places])
    mean = float(np.average(ordered, weights=counts))
    return Spread(mean=mean, p50=median, p90=most, p99=nearly_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A plan under load; of all its replicas.

    concurrency : requests in flight on average. ttft, tpot, request : to the first token, to each
    later one, and to the last, waiting included. tokens_per_s : written. max_concurrency :
    requests whose keys and values fit at once. kv_tokens : that fit. occupancy : share of the
    cache in use on average. preempted : share of requests that lost their cache.
    overloaded : more requests come than are served, so that they wait ever longer.
    told : sizes that each engine is told for it, as ``Settings`` names them.
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

    @property
    def requests_per_s(self) -> float:
        """Requests that are done a second, by Little's law."""
        return self.concurrency / self.request.mean

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.gpus

    def meets(self, ttft: float | None, tpot: float | None) -> bool:
        """Whether first tokens, and later ones, come within so many seconds on average.

        None is no limit.
        """
        return not self.overloaded and self.beyond(ttft, tpot) <= 1.0

    def beyond(self, ttft: float | None, tpot: float | None) -> float:
        """How many times over the limits the worse of both is; at most 1 where they are met."""
        return max(
            0.0 if ttft is None else self.ttft.mean / ttft,
            0.0 if tpot is None else self.tpot.mean / tpot,
        )

    def beside(self, ttft: float | None, tpot: float | None) -> list[str]:
        """Write each time beside its limit, where there is one."""
        rows = (("TTFT", self.ttft, ttft), ("TPOT", self.tpot, tpot))
        return [
            f"{name} {format_seconds(spread.mean)} of {format_seconds(limit)}"
            for name, spread, limit in rows
            if limit is not None
        ]

    def rows(self) -> list[list[str]]:
        """Make a row of each number."""
        rows = [["requests at once", f"{self.concurrency:,.3g}"]]
        for name, spread in (("TTFT", self.ttft), ("TPOT", self.tpot), ("request", self.request)):
            mean, median, most, nearly = map(
                format_seconds, (spread.mean, spread.p50, spread.p90, spread.p99)
            )
            rows.append([name, f"{mean}; p50 {median}, p90 {most}, p99 {nearly}"])
        rows.append(["tokens/s", f"{self.tokens_per_s:,.0f}"])
        rows.append(["tokens/s a GPU", f"{self.tokens_per_s_per_gpu:,.0f}"])
        fits = f"{self.kv_tokens:,} tokens fit, {100 * self.occupancy:.0f} % in use"
        rows.append(["KV", f"{fits}; at most {counted(self.max_concurrency, 'request')} at once"])
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
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan at a concurrency."""

    plan: Plan
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
