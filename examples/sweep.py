"""How the time of a video goes down with the number of GPUs, for two kinds of them, as a plot.

python examples/sweep.py
"""

import planner
from planner.rendering.plot import plot

COUNTS = (1, 2, 4, 8)
times: dict[str, list[tuple[float, float]]] = {}
for hardware in ("h100-sxm", "l40s"):
    times[hardware] = []
    for gpus in COUNTS:
        answer = planner.recommend("wan2.1-1.3b", gpus=gpus, hardware=hardware)
        best = answer.plans[0]
        times[hardware].append((float(gpus), best.latency_s))
        print(f"{hardware:8} x {gpus}: {best.latency_s:6.1f} s by {best.plan}")

print("\nseconds a video")
print(plot(times, (f"{COUNTS[0]} GPU", f"{COUNTS[-1]} GPUs")))
