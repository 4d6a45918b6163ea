"""What comes: when requests arrive, how long they are, and how many are followed."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SEED: Final = 7
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts and answers: uniform from `spread` below the mean to as much above it.

    spread : a share of the mean, 0 where all requests are alike.
    """

    prompt: int
    output: int
    spread: float = 0.0

    def draw(self, count: int) -> tuple[list[int], list[int]]:
        """Draw prompts and answers, the same ones whenever they are asked for."""
        random = np.random.default_rng(SEED)
        low, wide = 1.0 - self.spread, 2.0 * self.spread
        parts = low + wide * random.random((2, count))
        prompts = np.maximum(1, np.rint(self.prompt * parts[0]))
        outputs = np.maximum(1, np.rint(self.output * parts[1]))
        return prompts.astype(int).tolist(), outputs.astype(int).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one engine.

    concurrency : that clients keep in flight: each sends its next one when the last is done; 0
    where they come by themselves. arrivals : seconds at which they do, in order.
    prompts, outputs : tokens of each.
    """

    prompts: list[int]
    outputs: list[int]
    concurrency: int = 0
    arrivals: list[float] | None = None

    @property
    def count(self) -> int:
        return len(self.prompts)


def closed(lengths: Lengths, concurrency: int, requests: int) -> Load:
    """Keep so many requests in flight."""
    prompts, outputs = lengths.draw(requests)
    return Load(prompts=prompts, outputs=outputs, concurrency=concurrency)


def poisson(lengths: Lengths, rate: float, requests: int, burst: float = 1.0) -> Load:
    """Let requests come at random, `rate` a second on average.

    Parameters
    ----------
    burst : squared variation of the gaps between them: 1 for a Poisson process, more for bursts.
    """
    prompts, outputs = lengths.draw(requests)
    gaps = np.random.default_rng(SEED + 1).gamma(1.0 / burst, burst / rate, requests)
    return Load(prompts=prompts, outputs=outputs, arrivals=np.cumsum(gaps).tolist())
