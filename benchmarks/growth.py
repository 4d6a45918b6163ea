"""How time grows with what is asked: exponents of GPUs, ranks, plans and demands.

Run ``python benchmarks/growth.py [name ...]``. Of each the CPU time at sizes that double twice, and
the exponent that fits them: 1 is in proportion to the size, 2 to its square.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np

from planner.fleet.demand_file import read_demands
from planner.fleet.fleet import capacity
from planner.recommendation import estimate_plan, recommend_plans
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.batched import sizes, sweep
from planner.search.plans import plans
from planner.simulation.simulation import simulate

MODEL = "flux.1-dev"


def gpus(count: int) -> None:
    """Recommend a plan of so many GPUs."""
    recommend_plans(resolve(Request(model=MODEL, gpus=count)))


def ranks(count: int) -> None:
    """Follow the events of a plan on so many ranks."""
    scenario = resolve(Request(model=MODEL, gpus=count))
    simulate(scenario, estimate_plan(scenario, f"ulysses8.ring{count // 8}"))


def price_plans(count: int) -> None:
    """Price so many plans, of 8 GPUs at many sizes."""
    scenario = resolve(Request(model=MODEL, gpus=8))
    all_plans = list(plans(scenario.model, 8))
    step = 32 * np.arange(1, 129)
    height, width = (side.ravel()[: count // len(all_plans)] for side in np.meshgrid(step, step))
    work = sizes(scenario.model, scenario.workload, height, width, 1, 50)
    sweep(replace(scenario, workload=work), all_plans)


def demands(count: int) -> None:
    """Find fleets for so many demands, each of a size of its own."""
    row = '[[demand]]\nname = "{0}"\nmodel = "flux.1-schnell"\nrate = "1/min"\nslo = "30s"\n'
    text = "".join(f"{row.format(n)}height = {512 + 16 * n}\n" for n in range(count))
    capacity(read_demands(text, "demands"), ["h100-sxm"])


LAWS: dict[str, tuple[Callable[[int], None], int]] = {
    "GPUs": (gpus, 128), "ranks": (ranks, 128), "plans": (price_plans, 100_000),
    "demands": (demands, 4),
}  # fmt: skip
"""What grows, by name, and the smallest size; of up to 64 GPUs every plan is judged."""


def seconds(name: str, size: int) -> float:
    """CPU time of work of a size, in a process that has done nothing else yet."""
    start = time.process_time()
    LAWS[name][0](size)
    return time.process_time() - start


def measure(name: str) -> str:
    """Say what work of a name takes at each size, and how that grows."""
    by_size = [LAWS[name][1] * times for times in (1, 2, 4)]
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        cpu_seconds = list(pool.map(seconds, [name] * len(by_size), by_size))
    exponent = np.polyfit(np.log(by_size), np.log(cpu_seconds), 1)[0]
    texts = (f"{size:,} in {spent:.2f} s" for size, spent in zip(by_size, cpu_seconds, strict=True))
    return f"{name}: {', '.join(texts)}: exponent {exponent:.2f}"


if __name__ == "__main__":
    for law in sys.argv[1:] or LAWS:
        print(measure(law), flush=True)
