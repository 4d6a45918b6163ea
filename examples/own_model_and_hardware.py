"""A model that is in no catalogue on a GPU that is in none: plans of one to four of them.

python examples/own_model_and_hardware.py
"""

from pathlib import Path

import planner

HERE = Path(__file__).parent
model = planner.read_model(HERE / "my_model.json")  # the config.json of its weights
print(f"{model.name}: {model.layers} layers, {model.to_dict()['parameters']:,} parameters")

for gpus in (1, 2, 4):
    answer = planner.recommend(
        model,
        gpus=gpus,
        hardware=HERE / "my_gpu.toml",
        input_tokens=2048,
        output_tokens=256,
        batch=8,
        objective="throughput",
    )
    best = answer.plans[0]
    print(
        f"{gpus} x my_gpu: {best.plan}, {best.latency_s:.2f} s, "
        f"{best.throughput_per_s * 256:,.0f} tokens a second, "
        f"{best.memory_bytes / 2**30:.1f} GiB, bound by {best.bound_by}"
    )
