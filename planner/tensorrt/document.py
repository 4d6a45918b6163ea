"""A network as JSON and arrays: what the runner assembles with TensorRT, on any machine."""

from collections.abc import Mapping, Sequence
from typing import Final

from planner.tensorrt.sheet import Array, Layer, Network, Value, dtype_of

SCHEMA: Final = "1"


def document_of(network: Network) -> dict[str, object]:
    """Return a network as a document; its arrays are in `arrays_of`.

    ``groups`` lists, along each axis, the groups of ranks of the communicator that meet there.
    """
    return {
        "schema": SCHEMA,
        "name": network.name,
        "axes": [list(axis) for axis in network.axes],
        "groups": {axis: groups(network.axes, axis) for axis, _ in network.axes},
        "ranks": network.ranks,
        "shared": network.shared,
        "inputs": [_value(value) for value in network.inputs],
        "tables": [
            _value(Value(name, array.shape[1:], dtype_of(array)))
            for name, array in network.tables.items()
        ],
        "outputs": [
            {"name": outside, "value": value.name, "shape": list(value.shape), "dtype": value.dtype}
            for outside, value in network.outputs
        ],
        "collectives": counts(network),
        "layers": [_layer(layer) for layer in network.layers],
    }


def arrays_of(network: Network) -> dict[str, Array]:
    """Return constants and tables by name; tables have a row a rank."""
    return {**network.constants, **network.tables}


def counts(network: Network) -> dict[str, int]:
    """Count collectives by operation and axis, and attentions on several devices."""
    found: dict[str, int] = {}
    for layer in network.layers:
        if layer.kind == "collective":
            key = f"{layer.attributes['operation']} {layer.attributes['axis']}"
        elif layer.kind == "attention" and layer.attributes["ranks"] != 1:
            key = "attention allgather_kv"
        else:
            continue
        found[key] = found.get(key, 0) + 1
    return found


def groups(axes: Sequence[tuple[str, int]], axis: str) -> list[list[int]]:
    """Ranks of a communicator that differ along one axis only.

    >>> groups([("ulysses", 2), ("tp", 2)], "ulysses")
    [[0, 2], [1, 3]]
    """
    names = [name for name, _ in axes]
    stride = ranks = 1
    for number, (_, degree) in enumerate(axes):
        ranks *= degree
        stride *= degree if number > names.index(axis) else 1
    degree = dict(axes)[axis]
    firsts = [rank for rank in range(ranks) if rank // stride % degree == 0]
    return [[first + step * stride for step in range(degree)] for first in firsts]


def _value(value: Value) -> dict[str, object]:
    return {"name": value.name, "shape": list(value.shape), "dtype": value.dtype}


def _layer(layer: Layer) -> Mapping[str, object]:
    return {
        "kind": layer.kind,
        "name": layer.name,
        "inputs": list(layer.inputs),
        "outputs": [_value(value) for value in layer.outputs],
        **layer.attributes,
    }
