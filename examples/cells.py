"""A notebook's worth of questions about one model: cells that show tables and charts by themselves.

python examples/cells.py, or cell by cell in an editor that knows # %%
"""

# %% Which plan: in a notebook the last line of a cell draws it
import planner

answer = planner.recommend("wan2.1-1.3b", gpus=4, hardware="h200-sxm")
answer  # noqa: B018

# %% The same as rows; answer.to_frame() makes a frame of pandas or polars of them
for row in answer.rows()[:3]:
    print(f"{row['plan']:12} {row['latency_s']:5.1f} s, denoise {row['stages_s.denoise']:.1f} s")

# %% What its ranks do, and what a slow one costs
usual = planner.simulate("wan2.1-1.3b", 4, answer.lead.plan, hardware="h200-sxm", even=True)
slow = planner.simulate("wan2.1-1.3b", 4, answer.lead.plan, hardware="h200-sxm", slow={3: 1.1})
print(f"a GPU that is a tenth slower: {slow.latency_s / usual.latency_s:.2f}x the time")
slow  # noqa: B018

# %% How many GPUs of which kind
fleets = planner.capacity(
    model="wan2.1-1.3b", rate="2/min", slo="90s", hardware=["h200-sxm", "l40s"]
)
for row in fleets.rows():
    print(f"{row['hardware']}: {row['replicas']} replicas of {row['plan']}")
fleets  # noqa: B018
