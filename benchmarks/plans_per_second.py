"""How long 100,000 plans take: every plan of 8 GPUs, for as many sizes as make up the number.

Run ``python benchmarks/plans_per_second.py``; prints one line a model.
"""

import sys
import time
from dataclasses import replace

import numpy as np

from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.batched import sizes, sweep
from planner.search.plans import plans

PLANS = 100_000


def measure(name: str, gpus: int = 8) -> tuple[float, int]:
    """Seconds for `PLANS` plans of a model, and how many of them are legal."""
    scenario = resolve(Request(model=name, gpus=gpus))
    all_plans: list[Plan] = list(plans(scenario.model, gpus))
    count = -(-PLANS // len(all_plans))
    step = 32 * np.arange(1, 65)
    height, width = (side.ravel()[:count] for side in np.meshgrid(step, step))
    frames, steps = scenario.model.defaults.frames, scenario.model.defaults.steps
    work = sizes(scenario.model, scenario.workload, height, width, frames, steps)
    start = time.perf_counter()
    sweep_result = sweep(replace(scenario, workload=work), all_plans)
    seconds = time.perf_counter() - start
    return seconds * PLANS / sweep_result.latency_s.size, int(
        np.isfinite(sweep_result.latency_s).sum()
    )


if __name__ == "__main__":
    for model in sys.argv[1:] or ["cosmos3", "flux.1-dev", "wan2.1-14b"]:
        elapsed, legal = measure(model)
        print(f"{model}: {PLANS:,} plans in {elapsed:.2f} s ({legal:,} of them legal)")
