"""What comes: when requests arrive, how long they are, and how many are followed."""

from dataclasses import dataclass

import numpy as np

from planner.request.lengths import SEED, Lengths, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, of one engine or of all.

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

    def part(self, number: int, engines: int) -> "Load":
        """Return the requests of one of several engines, which take turns."""
        own = slice(number, None, engines)
        arrivals = None if self.arrivals is None else self.arrivals[own]
        return Load(prompts=self.prompts[own], outputs=self.outputs[own], arrivals=arrivals)


def closed(lengths: Lengths, concurrency: int, requests: int) -> Load:
    """Keep so many requests in flight."""
    prompts, outputs = lengths.draw(requests)
    return Load(prompts=prompts, outputs=outputs, concurrency=concurrency)


def traced(trace: Trace, pace: float = 1.0) -> Load:
    """Let the requests of a trace come, so many times as fast."""
    return Load(
        prompts=[prompt for _, prompt, _ in trace],
        outputs=[output for _, _, output in trace],
        arrivals=[time / pace for time, _, _ in trace],
    )


def poisson(lengths: Lengths, rate: float, requests: int, burst: float = 1.0) -> Load:
    """Let requests come at random, `rate` a second on average.

    Parameters
    ----------
    burst : squared variation of the gaps between them: 1 for a Poisson process, more for bursts.
    """
    prompts, outputs = lengths.draw(requests)
    gaps = np.random.default_rng(SEED + 1).gamma(1.0 / burst, burst / rate, requests)
    return Load(prompts=prompts, outputs=outputs, arrivals=np.cumsum(gaps).tolist())
