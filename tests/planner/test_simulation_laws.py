"""The closed form and the events agree, whatever the model, the plan, the GPU and the runtime.

`FUZZ=100 pytest tests/planner/test_simulation_laws.py` takes a hundred times as many draws.
"""

import os
from random import Random

import pytest
from generators import asked

from planner.models import names, read_model
from planner.search.estimate import PlanEstimate
from planner.search.judging import judge
from planner.search.plans import plans
from planner.simulation import simulation
from topology.base import InputError, ModelError
from topology.catalogue import all_hardware

DRAWS = 16 * int(os.environ.get("FUZZ", "1"))
NEAR = 0.02
HOSTED = 0.03
"""Where hosts issue the kernels of a pipeline: the closed form lets them begin as its places do."""
SIZES = {
    "diffusion": {"steps": (1, 4, 20)},
    "decoder": {"input_tokens": (64, 1024, 8192), "output_tokens": (1, 64)},
}


def drawn(number):
    """A legal plan of a request, as an estimate and as events; None where there is none."""
    draw = Random(number)
    model, gpus = draw.choice(names()), draw.choice([1, 2, 4, 8])
    sizes = SIZES[read_model(model).kind].items()
    more = {
        "hardware": draw.choice(sorted(all_hardware())),
        "runtime": draw.choice(["tensorrt", "torch-compile", "torch-eager"]),
        "batch": draw.choice([1, 1, 2, 4]),
        **{name: draw.choice(values) for name, values in sizes},
    }
    try:
        scenario = asked(model, gpus, **more)
        found = judge(scenario, draw.choice(list(plans(scenario.model, gpus))))
        if isinstance(found, PlanEstimate):
            return found, simulation.simulate(scenario, found), (model, gpus, more)
    except (InputError, ModelError):  # no kernels of that precision, or too many operations
        pass
    return None


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(simulation, "MOST_TASKS", 12_000)


def test_events_take_as_long_as_the_closed_form_says():
    apart, judged = [], 0
    for number in range(DRAWS):
        both = drawn(number)
        if both is None:
            continue
        found, ran, words = both
        judged += 1
        hosted = found.breakdown_s["launch"] and found.plan.degree("pp") > 1
        if abs(ran.apart) > (HOSTED if hosted else NEAR):
            apart.append(f"{ran.apart:+.1%} {found.plan} {words}")

    assert apart == []
    assert judged > DRAWS / 4
