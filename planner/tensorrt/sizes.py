"""How large engines become, and how long they take to build: before anything is built."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Final

from planner.engines.tensorrt import Allowed
from planner.tensorrt.network import EngineNetwork, Layer
from planner.tensorrt.runner.library import Document
from planner.tensorrt.runner.place import buffers_of, runs
from topology.base import Bytes, Seconds
from topology.base.values import dataclass

ITEMSIZE: Final = {
    "bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "int32": 4.0, "fp8": 1.0, "int8": 1.0, "bool": 1.0,
    "fp4": 0.5,
}  # fmt: skip


def weight_bytes(network: EngineNetwork) -> float:
    """Bytes of the weights of one rank."""
    return sum(_layer_bytes(layer) for layer in network.of("weight"))


def _layer_bytes(layer: Layer) -> float:
    return sum(prod(out.shape) * ITEMSIZE[out.dtype] for out in layer.outputs)


def again_bytes(networks: Sequence[EngineNetwork], document: Document) -> Bytes:
    """Bytes of the weights of one rank that another of its engines holds too.

    A decoder's prefill and its decode step are two engines of the same weights.
    """
    rank_networks = next(_by_rank(networks, document))
    seen_weights, repeated_bytes = set(), 0.0
    for layer in (layer for network in rank_networks for layer in network.of("weight")):
        weight_key = tuple(layer.attributes[key] for key in ("weight", "layer", "part"))
        repeated_bytes += _layer_bytes(layer) if weight_key in seen_weights else 0.0
        seen_weights.add(weight_key)
    return Bytes(repeated_bytes)


def buffer_bytes(networks: Sequence[EngineNetwork], document: Document) -> int:
    """Count the bytes of all buffers on the rank that has most, tables included."""
    buffers = document["buffers"]
    sizes = (
        sum(array[0].nbytes for network in rank_networks for array in network.tables.values())
        + sum(buffer_size(buffers[name]) for name in buffers_of(document, rank))
        for rank, rank_networks in enumerate(_by_rank(networks, document))
    )
    return int(max(sizes))


def _by_rank(
    networks: Iterable[EngineNetwork], document: Document
) -> Iterator[list[EngineNetwork]]:
    """Yield the networks that each rank runs."""
    for rank in range(len(document["ranks"])):
        yield [network for network in networks if runs(document, network.name, rank)]


def buffer_size(buffer: Document) -> int:
    """Count the bytes of a buffer."""
    return int(prod(buffer["shape"]) * ITEMSIZE[buffer["dtype"]])


def engine_size(network: EngineNetwork, allowed: Allowed) -> tuple[Bytes, Seconds]:
    """Estimate the bytes of one engine of a network, and the time to build all its engines.

    A build passes its transformer layers, each with an attention, and its weights once; engines
    are built one after another. The time is good to a factor of two.
    """
    engines, weights = 1 if network.shared else network.ranks, weight_bytes(network)
    layers = len(network.of("attention")) * allowed.build_layer.value
    build_s = layers + weights / allowed.build_weights.value
    return Bytes(weights + allowed.overhead.value), Seconds(engines * build_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    """What the host does to start a step's engines without a CUDA graph.

    calls : of engines. host : s, while the GPU works on what was started before.
    exposed : s that the GPU waits, as the host needs longer than the GPU does.
    """

    calls: int
    host: Seconds
    exposed: Seconds


def enqueue(order: Document, step: Seconds, allowed: Allowed) -> Enqueue:
    """Count a rank's calls of engines in a step; of a decoder, those of its last engine.

    >>> from planner.engines.tables import allowed
    >>> each = [{"engine": "forward"}, {"engine": "combine"}, {"copy": ["a", "b"]}]
    >>> order = {"each_step": each, "groups": {}}
    >>> enqueue(order, 1.0, allowed()).calls, enqueue(order, 1.0, allowed()).exposed
    (2, 0.0)
    """
    engines = [call["engine"] for call in order["each_step"] if "engine" in call]
    calls = sum(runs(order, name, 0) for name in engines) or 1
    host = calls * allowed.enqueue.value
    return Enqueue(calls=calls, host=Seconds(host), exposed=Seconds(max(0.0, host - step)))
