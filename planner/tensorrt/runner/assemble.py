"""From a network's document to TensorRT's network, layer by layer, each checked as it is added."""

from collections.abc import Callable
from types import ModuleType

from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.layers import ADD, Assembly, Given, Share, outputs, with_learned
from planner.tensorrt.runner.library import Document, Foreign, type_of

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

    Returns what must be kept until the engine is built: the network refers to numbers in it.

    Raises `RunError`, naming the layer that the library refused, or that makes another shape than
    said.
    """
    document = share.document
    assembly = Assembly(
        library=library,
        network=network,
        share=share,
        index=index_of(document, share.rank),
        fused=fused,
    )
    network.name = document["name"]
    for value in [*document["inputs"], *document["tables"]]:
        name, dtype = value["name"], type_of(library, value["dtype"])
        assembly.tensors[name] = network.add_input(name, dtype, tuple(value["shape"]))
    for layer in document["layers"]:
        _add(assembly, layer, cause)
    written_caches = {layer["name"] for layer in document["layers"] if layer["kind"] == "cache"}
    for out in document["outputs"]:
        _mark(assembly, out["name"], out["value"], in_place=out["value"] in written_caches)
    return assembly


def index_of(document: Document, rank: int) -> dict[str, int]:
    """Place of a rank along each axis of its communicator.

    >>> index_of({"axes": [["ulysses", 2], ["tp", 2]]}, 1)
    {'tp': 1, 'ulysses': 0}
    """
    index = {}
    for name, degree in reversed(document["axes"]):
        rank, index[name] = divmod(rank, degree)
    return index


def _add(assembly: Assembly, layer: Document, cause: Cause) -> None:
    kind, name = layer["kind"], layer["name"]
    added = ADD[kind](assembly, layer)
    added = with_learned(assembly, layer, added) if "learned" in layer else added
    if added is None:
        raise RunError(f"{name}: TensorRT adds no {kind} layer: {cause()}")
    if kind != "attention" and not isinstance(added, Given):
        added.name = name
    for place, out in enumerate(outputs(layer)):
        tensor = added.get_output(place)
        _check(assembly, tensor, out, cause)
        assembly.tensors[out[0]] = tensor


def _check(
    assembly: Assembly, tensor: Foreign, expected: tuple[str, tuple[int, ...], str], cause: Cause
) -> None:
    name, shape, dtype = expected
    if hasattr(tensor, "expect"):  # of recorded calls, where nothing is made yet
        tensor.expect(shape, type_of(assembly.library, dtype))
    actual_shape = tuple(tensor.shape) if tensor is not None else None
    if actual_shape != shape:
        raise RunError(f"{name}: TensorRT makes {actual_shape}, wanted {list(shape)}: {cause()}")
    if tensor.dtype != type_of(assembly.library, dtype):
        raise RunError(f"{name}: TensorRT makes {tensor.dtype}, wanted {dtype}")


def _mark(assembly: Assembly, output_name: str, value_name: str, *, in_place: bool) -> None:
    """Mark an output under the name by which it is known outside.

    in_place : it lies where an input does, so that TensorRT takes no copy of it.
    """
    tensor = assembly.tensors[value_name]
    if not in_place:
        identity_layer = assembly.network.add_identity(tensor)
        identity_layer.name = f"output {output_name}"
        tensor = identity_layer.get_output(0)
    tensor.name = output_name
    assembly.network.mark_output(tensor)
