"""Largest activation of every product of a model, found by running its networks in numpy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from planner.export.tensorrt import one_token
from planner.lowering.lower import lower
from planner.models.architecture import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.tensorrt.network import Recipe, networks
from planner.tensorrt.runner.harness import Source
from planner.tensorrt.runner.weights import named
from planner.tensorrt.schedule import schedule
from planner.tensorrt.sheet import Network
from validate.tensorrt.evaluate import Array, Layer
from validate.tensorrt.numbers import Given, Numbers, run_networks


def largest_activations(
    model: Model, workload: Workload, source: Source, given: Given
) -> dict[str, float]:
    """Run the unsplit model; return the largest activation by a weight's name and layer."""
    work = replace(one_token(workload), precision="bf16")
    program = lower(model, work, Plan())
    made = networks(program, Recipe(compute="fp32"))
    weights, found = _weights(made), dict[str, float]()

    def watch(layer: Layer, inputs: Sequence[Array]) -> None:
        name = weights.get(cast("list[str]", layer["inputs"])[1]) if _is_product(layer) else None
        if name is not None:
            found[name] = max(found.get(name, 0.0), float(np.abs(inputs[0]).max(initial=0)))

    numbers = Numbers(weights=source.weights, learned=source.learned, given=given, watch=watch)
    run_networks(made, schedule(made, program, work, Plan()), numbers)
    return found


def _is_product(layer: Layer) -> bool:
    return layer["kind"] == "matmul"


def _weights(made: Sequence[Network]) -> Mapping[str, str]:
    """Names of weights by the values that hold them."""
    layers = [layer for network in made for layer in network.of("weight")]
    return {
        one.name: named(str(one.attributes["weight"]), cast(int, one.attributes["layer"]))
        for one in layers
    }
