"""How large engines become, and how long they take to build: before anything is built."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, cast

from planner.engines.tensorrt_table import Allowed
from planner.tensorrt.network import Network
from topology.base import Bytes, Seconds

ITEMSIZE: Final = {
    "bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "int32": 4.0, "fp8": 1.0, "int8": 1.0, "bool": 1.0,
    "fp4": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """What one network costs before it runs. engines : how many are built of it.

    size : B of one engine. build : s for all of them, one after another, good to a factor of two.
    """

    engines: int
    size: Bytes
    build: Seconds


def weight_bytes(network: Network) -> float:
    """Bytes of the weights of one rank."""
    made = [out for layer in network.of("weight") for out in layer.outputs]
    return sum(prod(out.shape) * ITEMSIZE[out.dtype] for out in made)


def again_bytes(networks: Iterable[Network]) -> Bytes:
    """Bytes of the weights of one rank that another of its engines holds too.

    A decoder's prefill and its decode step are two engines of the same weights.
    """
    known, again = set(), 0.0
    for network in networks:
        for layer in network.of("weight"):
            which = tuple(layer.attributes[key] for key in ("weight", "layer", "part"))
            if which in known:
                again += sum(prod(out.shape) * ITEMSIZE[out.dtype] for out in layer.outputs)
            known.add(which)
    return Bytes(again)


def buffer_bytes(networks: Sequence[Network], document: Mapping[str, object]) -> int:
    """Count the bytes of all buffers on one rank, tables included."""
    total = 0
    for buffer in cast("Mapping[str, Mapping[str, object]]", document["buffers"]).values():
        total += int(ITEMSIZE[str(buffer["dtype"])]) * prod(cast("list[int]", buffer["shape"]))
    for network in networks:
        total += sum(array[0].nbytes for array in network.tables.values())
    return total


def engine_size(network: Network, allowed: Allowed) -> EngineSize:
    """Estimate the engines of a network.

    A build passes its transformer layers, each with an attention, and its weights once.
    """
    engines, weights = 1 if network.shared else network.ranks, weight_bytes(network)
    layers = len(network.of("attention")) * allowed.build_layer.value
    each = layers + weights / allowed.build_weights.value
    return EngineSize(
        engines=engines,
        size=Bytes(weights + allowed.overhead.value),
        build=Seconds(engines * each),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    """What the host does to start a step's engines without a CUDA graph.

    calls : of engines. host : s, while the GPU works on what was started before.
    exposed : s that the GPU waits, as the host needs longer than the GPU does.
    """

    calls: int
    host: Seconds
    exposed: Seconds


def enqueue(order: Mapping[str, object], step: Seconds, allowed: Allowed) -> Enqueue:
    """Count a step's calls of engines in a schedule; of a decoder, those of its last engine.

    >>> from planner.engines.tables import allowed
    >>> order = {"each_step": [{"engine": "forward"}, {"engine": "combine"}, {"copy": ["a", "b"]}]}
    >>> enqueue(order, 1.0, allowed()).calls, enqueue(order, 1.0, allowed()).exposed
    (2, 0.0)
    """
    each = cast("Sequence[Mapping[str, object]]", order["each_step"])
    calls = sum("engine" in call for call in each) or 1
    host = calls * allowed.enqueue.value
    return Enqueue(calls=calls, host=Seconds(host), exposed=Seconds(max(0.0, host - step)))
