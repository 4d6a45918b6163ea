"""All ranks of a plan's networks, run in numpy in the order of its schedule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from planner.export.tensorrt import one_token
from planner.lowering import lower
from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.tensorrt import Network, Recipe, arrays_of, document_of, networks_of, schedule_of
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.formats import Floats
from planner.tensorrt.runner.weights import Learned, Reaches, Weights, drawn, named
from validate.reference.weights import Source
from validate.tensorrt.evaluate import Array, Document, Held, Layer, Watch, evaluate, together

Memory = dict[str, Array]
Given = Callable[[str, int, tuple[int, ...]], Array | Floats]
"""From an input's name, a forward's number and the shape for all samples to numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What networks are run on.

    reaches : largest activations of products. watch : sees what each layer is given.
    """

    weights: Weights
    given: Given
    learned: Learned | None = None
    reaches: Reaches | None = None
    watch: Watch | None = None


def made_up(seed: int = 0) -> Numbers:
    """Draw weights and inputs by name, as the reference does."""
    source = Source(seed)
    return Numbers(
        weights=drawn(seed),
        given=lambda name, forward, shape: source.array(f"{name}#{forward}", shape),
    )


def run_networks(
    networks: Sequence[Network], order: Document, numbers: Numbers | None = None
) -> list[Array]:
    """Run a schedule, on made-up weights and inputs where none are given.

    Returns
    -------
    one output a rank
    """
    documents = {network.name: document_of(network) for network in networks}
    arrays = {network.name: arrays_of(network) for network in networks}
    numbers = numbers or made_up()
    memories = [_memory(order, rank, numbers) for rank in cast("list[Document]", order["ranks"])]

    def call(one: Document) -> None:
        if "copy" in one:
            source, target = cast("list[str]", one["copy"])
            for memory in memories:
                memory[target] = memory[source].copy()
            return
        name = str(one["engine"])
        for group in _groups(order, name, len(memories)):
            held = [
                Held(
                    arrays=arrays[name],
                    weights=numbers.weights,
                    rank=place,
                    learned=numbers.learned,
                    reaches=numbers.reaches,
                    watch=numbers.watch,
                )
                for place in range(len(group))
            ]
            _call(documents[name], held, one, [memories[rank] for rank in group])

    for one in cast("list[Document]", order["once"]):
        call(one)
    for _ in range(cast(int, order["steps"])):
        for one in cast("list[Document]", order["each_step"]):
            call(one)
    return [memory[str(order["output"])] for memory in memories]


def _memory(order: Document, rank: Document, numbers: Numbers) -> Memory:
    """Fill a rank's buffers with what they start with."""
    memory: Memory = {}
    for name, one in cast("Mapping[str, Document]", order["buffers"]).items():
        shape = tuple(cast("list[int]", one["shape"]))
        start = cast("Mapping[str, object] | None", one["given"])
        memory[name] = np.zeros(shape)
        if start is not None:
            memory[name] = _given(order, rank, start, shape, numbers)
    return memory


def _given(
    order: Document, rank: Document, given: Document, shape: tuple[int, ...], numbers: Numbers
) -> Array:
    main = given["name"] == order["output"]
    forward = 0 if main else cast(int, rank["forward"]) + cast(int, given["forward"])
    whole = (cast(int, rank["samples"]), *shape[1:])
    first = cast(int, rank["sample"])
    every = np.asarray(numbers.given(str(given["name"]), forward, whole), np.float64)
    return every[first : first + shape[0]]


def _groups(order: Document, name: str, ranks: int) -> list[list[int]]:
    every = cast("Mapping[str, list[list[int]]]", order["communicators"])
    return every.get(name, [[rank] for rank in range(ranks)])


def _call(
    document: Document, held: Sequence[Held], one: Document, memories: Sequence[Memory]
) -> None:
    bind = cast("Mapping[str, list[object]]", one["bind"])
    wanted = [str(value["name"]) for value in cast("list[Document]", document["inputs"])]
    ranks = [
        evaluate(document, mine, {name: memory[str(bind[name][0])] for name in wanted})
        for mine, memory in zip(held, memories, strict=True)
    ]
    for memory, made in zip(memories, together(ranks), strict=True):
        for name, value in made.items():
            buffer, place = bind[name]
            if buffer == "predictions":
                memory["predictions"][cast(int, place)] = value
            else:
                memory[str(buffer)] = value


def largest_activations(
    model: Model, workload: Workload, source: harness.Source, given: Given
) -> dict[str, float]:
    """Run the unsplit model; return the largest activation by a weight's name and layer."""
    work = replace(one_token(workload), precision="bf16")
    program = lower(model, work, Plan())
    made = networks_of(program, Recipe(compute="fp32"))
    weights, found = _weights(made), dict[str, float]()

    def watch(layer: Layer, inputs: Sequence[Array]) -> None:
        name = weights.get(cast("list[str]", layer["inputs"])[1]) if _is_product(layer) else None
        if name is not None:
            found[name] = max(found.get(name, 0.0), float(np.abs(inputs[0]).max(initial=0)))

    numbers = Numbers(weights=source.weights, learned=source.learned, given=given, watch=watch)
    run_networks(made, schedule_of(made, program, work, Plan()), numbers)
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
