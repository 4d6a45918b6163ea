"""How the time of a video goes down with the number of GPUs, for two kinds of them, as a plot.

python examples/sweep.py
"""

import planner
from planner.rendering.plot import plot

KINDS, COUNTS = ["h100-sxm", "l40s"], [1, 2, 4, 8]
rows = planner.sweep("wan2.1-1.3b", hardware=KINDS, gpus=COUNTS)
for row in rows:
    print(f"{row['hardware']:8} x {row['gpus']}: {row['latency_s']:6.1f} s by {row['plan']}")

times = {
    kind: [(float(row["gpus"]), row["latency_s"]) for row in rows if row["hardware"] == kind]
    for kind in KINDS
}
print("\nseconds a video")
print(plot(times, (f"{COUNTS[0]} GPU", f"{COUNTS[-1]} GPUs")))
