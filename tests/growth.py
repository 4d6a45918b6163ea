"""Whether work grows in proportion to its size, which a slow or busy machine does not change."""

import cProfile
import gc
import time

TIMES = 8
SLACK = 3  # eight times the text of a quadratic reader takes 64 times as long
SPARE = 0.25  # s, for what takes no time at all
TRIES = 3


def grows_in_proportion(work, size):
    """Compare work of `size` with work of an eighth of it, by the processor's time."""
    return any(
        seconds(work, size) < SLACK * TIMES * seconds(work, size // TIMES) + SPARE
        for _ in range(TRIES)
    )


def seconds(work, size):
    """Take the processor's time of work, without the collector, which walks what others left."""
    gc.disable()
    try:
        start = time.process_time()
        work(size)
        return time.process_time() - start
    finally:
        gc.enable()


def calls(work, size):
    """Count the calls of functions that work makes: the same on any machine, however busy."""
    profile = cProfile.Profile()
    profile.runcall(work, size)
    return sum(entry.callcount for entry in profile.getstats())
