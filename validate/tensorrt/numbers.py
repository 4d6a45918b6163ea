"""All ranks of a plan's networks, run in numpy in the order of its schedule."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.tensorrt import EngineNetwork, Recipe, arrays_of, document_of, written
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.formats import Floats
from planner.tensorrt.runner.weights import Learned, Weights, drawn, named
from topology.base.values import dataclass
from validate.reference.weights import Source
from validate.tensorrt.evaluate import Array, Document, Held, Layer, Watch, evaluate, run_together

Memory = dict[str, Array]
Follow = Callable[[Array], Memory]
"""From the output so far to what the next step reads."""
Given = Callable[[str, int, tuple[int, ...]], Array | Floats]
"""From an input's name, a forward's number and the shape for all samples to numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What networks are run on.

    watch : sees what each layer is given. follow : of each rank, from what there is ahead of a step
    to what it reads.
    """

    weights: Weights
    given: Given
    learned: Learned | None = None
    watch: Watch | None = None
    follow: Sequence[Follow] = ()


def drawn_numbers(seed: int = 0) -> Numbers:
    """Draw weights and inputs by name, as the reference does."""
    source = Source(seed)
    return Numbers(
        weights=drawn(seed),
        given=lambda name, forward, shape: source.array(f"{name}#{forward}", shape),
    )


def run_networks(
    networks: Sequence[EngineNetwork], order: Document, numbers: Numbers | None = None
) -> list[Array]:
    """Run a schedule, on made-up weights and inputs where none are given: one output a rank."""
    documents = {network.name: document_of(network) for network in networks}
    arrays = {network.name: arrays_of(network) for network in networks}
    numbers = numbers or drawn_numbers()
    memories = [_memory(order, rank, numbers) for rank in order["ranks"]]

    def call(step: Document) -> None:
        if "engine" not in step:
            _copy_buffer(step, memories)
            return
        name = step["engine"]
        single_groups = [[rank] for rank in range(len(memories))]
        for group in order["groups"].get(name, single_groups):
            rank_data = [
                Held(
                    arrays=arrays[name],
                    weights=numbers.weights,
                    rank=member,
                    learned=numbers.learned,
                    watch=numbers.watch,
                )
                for member in range(len(group))
            ]
            _call(documents[name], rank_data, step["bind"], [memories[rank] for rank in group])

    for step in order["once"]:
        call(step)
    for _ in range(order["steps"] if order["each_step"] else 0):
        for memory, follow in zip(memories, numbers.follow, strict=False):
            memory.update(follow(memory[order["output"]]))
        for step in order["each_step"]:
            call(step)
    return [memory[order["output"]] for memory in memories]


def _copy_buffer(step: Document, memories: Sequence[Memory]) -> None:
    """Copy a buffer into another, of the same rank or of the one that it is sent to."""
    source, target = step.get("copy") or step["send"]
    own_pairs = [(rank, rank) for rank in range(len(memories))]
    for sender, receiver in step.get("pairs", own_pairs):
        memories[receiver][target] = memories[sender][source].copy()


def one_token(workload: Workload) -> Workload:
    """Return a request whose decode step stands right behind its prompt."""
    if np.ndim(workload.output_tokens) == 0 and workload.output_tokens:
        return replace(workload, output_tokens=1)
    return workload


def unsplit(model: Model, workload: Workload) -> Array:
    """Run the networks that compute a model on one rank, in 32 bits, on made-up numbers."""
    recipe = Recipe(compute="fp32", numerics=model.numerics)
    return run_networks(*written(model, workload, Plan(), recipe))[0]


def _memory(order: Document, rank: Document, numbers: Numbers) -> Memory:
    """Fill a rank's buffers with what they start with."""
    memory: Memory = {}
    for name, buffer in order["buffers"].items():
        shape, start = tuple(buffer["shape"]), buffer["given"]
        memory[name] = np.full(shape, buffer.get("start", 0.0))
        if start is not None:
            forward = 0 if start["forward"] is None else rank["forward"] + start["forward"]
            first_sample, full_shape = rank["sample"], (rank["samples"], *shape[1:])
            full_input = np.asarray(numbers.given(start["name"], forward, full_shape), np.float64)
            memory[name] = full_input[first_sample : first_sample + shape[0]]
    return memory


def _call(
    document: Document, held_ranks: Sequence[Held], bind: Document, memories: Sequence[Memory]
) -> None:
    input_names = [value["name"] for value in document["inputs"]]
    ranks = [
        evaluate(document, rank_data, {name: memory[bind[name][0]] for name in input_names})
        for rank_data, memory in zip(held_ranks, memories, strict=True)
    ]
    for memory, outputs in zip(memories, run_together(ranks), strict=True):
        for name, value in outputs.items():
            buffer, place = bind[name]
            if buffer == "predictions":
                memory[buffer][place] = value
            else:
                memory[buffer] = value


def largest_activations(
    model: Model, workload: Workload, source: harness.Source, given: Given
) -> dict[str, float]:
    """Run the unsplit model; return the largest activation by a weight's name and layer."""
    work = replace(one_token(workload), precision="bf16")
    networks, order = written(model, work, Plan(), Recipe(compute="fp32", numerics=model.numerics))
    weights = {
        layer.name: named(str(layer.attributes["weight"]), cast(int, layer.attributes["layer"]))
        for network in networks
        for layer in network.of("weight")
    }
    largest: dict[str, float] = {}

    def watch(layer: Layer, inputs: Sequence[Array]) -> None:
        name = weights.get(layer["inputs"][1]) if layer["kind"] == "matmul" else None
        if name is not None:
            top = float(np.abs(inputs[0]).max(initial=0))
            largest[name] = max(largest.get(name, 0.0), top)

    numbers = Numbers(weights=source.weights, learned=source.learned, given=given, watch=watch)
    run_networks(networks, order, numbers)
    return largest
