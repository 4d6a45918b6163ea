"""Events a second of the simulator's engine, beside SimPy (``pip install simpy``) on the same work.

Run ``python benchmarks/events_per_second.py [ranks [layers]]``. Every rank computes, at a pace of
its own, and meets the others in a message after every fourth operation. Each operation of a rank is
an event: it ends. Both must end at the same time.
"""

import sys
import time
from collections.abc import Callable, Iterator

import simpy

from costmodels.events import Task, run

COMPUTE, MESSAGE, BEFORE = 1e-4, 5e-5, 4


def paces(ranks: int) -> list[float]:
    """Say how many times as long as usual each rank computes."""
    return [1 + rank / 1000 for rank in range(ranks)]


def planner_seconds(ranks: int, layers: int) -> float:
    """Seconds of the work, as our engine runs it; links as a ring loads them."""
    uses = tuple((link, 1.0) for link in range(ranks))
    tasks = []
    for _ in range(layers):
        for rank, pace in enumerate(paces(ranks)):
            compute_task = Task(ranks=(rank,), stream="compute", seconds=COMPUTE * pace)
            tasks += [compute_task] * BEFORE
        tasks.append(
            Task(
                ranks=tuple(range(ranks)),
                stream="compute",
                seconds=MESSAGE,
                message=True,
                uses=uses,
            )
        )
    return run(tasks).seconds


def simpy_seconds(ranks: int, layers: int) -> float:
    """Seconds of the work, as SimPy runs it: a process a rank, an event a message."""
    env = simpy.Environment()
    arrived = [0] * layers
    messages = [env.event() for _ in range(layers)]

    def rank_of(pace: float) -> Iterator[simpy.Event]:
        for layer in range(layers):
            for _ in range(BEFORE):
                yield env.timeout(COMPUTE * pace)
            arrived[layer] += 1
            if arrived[layer] == ranks:
                messages[layer].succeed()
            yield messages[layer]
            yield env.timeout(MESSAGE)

    for pace in paces(ranks):
        env.process(rank_of(pace))
    env.run()
    return float(env.now)


def measure(engine: Callable[[int, int], float], ranks: int, layers: int) -> tuple[float, float]:
    """Give events a second of CPU time, the best of three, and when the work ends."""
    best, end_time = float("inf"), 0.0
    for _ in range(3):
        start = time.process_time()
        end_time = engine(ranks, layers)
        best = min(best, time.process_time() - start)
    return ranks * layers * (BEFORE + 1) / best, end_time


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sizes = (*given, *(8, 500)[len(given) :])
    (own, end), (other, same) = (
        measure(engine, *sizes) for engine in (planner_seconds, simpy_seconds)
    )
    print(f"{sizes[0]} ranks, {sizes[1]} layers: {own:,.0f} events/s, SimPy {other:,.0f}")
    if abs(end - same) > 1e-9 * end:
        sys.exit(f"they end at {end} and {same} s")
