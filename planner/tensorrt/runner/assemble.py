"""From a network's document to TensorRT's network, layer by layer, each checked as it is added."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import cast

from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.layers import ADD, Assembly, Given, Layer, Share, outputs, with_learned
from planner.tensorrt.runner.library import Foreign, type_of

Cause = Callable[[], str]
"""What the library said last."""


def assemble(
    library: ModuleType,
    network: Foreign,
    share: Share,
    *,
    fused: bool = True,
    cause: Cause = lambda: "no reason given",
) -> Assembly:
    """Add all layers of a document to an empty, strongly typed network.

    Returns
    -------
    what must be kept until the engine is built: the network refers to numbers in it

    Raises
    ------
    RunError
        Naming the layer that the library refused, or that makes another shape than said.
    """
    document = share.document
    assembly = Assembly(
        library=library,
        network=network,
        share=share,
        index=index_of(document, share.rank),
        fused=fused,
    )
    network.name = str(document["name"])
    for value in [*_list(document, "inputs"), *_list(document, "tables")]:
        name, shape = str(value["name"]), tuple(cast("list[int]", value["shape"]))
        dtype = type_of(library, str(value["dtype"]))
        assembly.tensors[name] = network.add_input(name, dtype, shape)
    for layer in _list(document, "layers"):
        _add(assembly, layer, cause)
    for out in _list(document, "outputs"):
        _mark(assembly, str(out["name"]), str(out["value"]))
    return assembly


def index_of(document: Mapping[str, object], rank: int) -> dict[str, int]:
    """Place of a rank along each axis of its communicator.

    >>> index_of({"axes": [["ulysses", 2], ["tp", 2]]}, 1)
    {'tp': 1, 'ulysses': 0}
    """
    index = {}
    for name, degree in reversed(cast("list[tuple[str, int]]", document["axes"])):
        rank, index[name] = divmod(rank, degree)
    return index


def _list(document: Mapping[str, object], key: str) -> list[Layer]:
    return cast("list[Layer]", document[key])


def _add(assembly: Assembly, layer: Layer, cause: Cause) -> None:
    kind, name = str(layer["kind"]), str(layer["name"])
    added = ADD[kind](assembly, layer)
    added = with_learned(assembly, layer, added) if "learned" in layer else added
    if added is None:
        raise RunError(f"{name}: TensorRT adds no {kind} layer: {cause()}")
    if kind != "attention" and not isinstance(added, Given):
        added.name = name
    for place, (out, shape, dtype) in enumerate(outputs(layer)):
        tensor = added.get_output(place)
        _check(assembly, tensor, (out, shape, dtype), cause)
        assembly.tensors[out] = tensor


def _check(
    assembly: Assembly, tensor: Foreign, said: tuple[str, tuple[int, ...], str], cause: Cause
) -> None:
    name, shape, dtype = said
    made = tuple(tensor.shape) if tensor is not None else None
    if made != shape:
        raise RunError(f"{name}: TensorRT makes {made}, wanted {list(shape)}: {cause()}")
    if tensor.dtype != type_of(assembly.library, dtype):
        raise RunError(f"{name}: TensorRT makes {tensor.dtype}, wanted {dtype}")


def _mark(assembly: Assembly, outside: str, inside: str) -> None:
    """Mark an output under the name by which it is known outside."""
    copied = assembly.network.add_identity(assembly.tensors[inside])
    copied.name = f"output {outside}"
    tensor = copied.get_output(0)
    tensor.name = outside
    assembly.network.mark_output(tensor)
