"""An ONNX file, read with the package onnx and without its weights: the model that it is."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from planner.models.onnx.blocks import layers_of, unplaced
from planner.models.onnx.configuration import Found, configuration_of
from planner.models.onnx.graph import Graph, graph_of
from topology.base import InputError

Foreign = Any
LISTED_PRODUCTS: Final = 4
"""Products that are named among those that have no place."""


def read_onnx(path: Path, where: str) -> Found:
    """Recognise the model of an ONNX file: a configuration that a reader takes.

    Raises `InputError` if the package is missing, the file is none or lacks its external data, or
    its graph is that of no model that is read.
    """
    graph = graph_at(path, where)
    layers = layers_of(graph, where)
    configuration = configuration_of(graph, layers, where)
    assumed, unplaced_products = (
        [*configuration.assumed],
        unplaced(graph, layers, configuration.places),
    )
    if unplaced_products:
        more = (
            f" and {len(unplaced_products) - LISTED_PRODUCTS} more"
            if len(unplaced_products) > LISTED_PRODUCTS
            else ""
        )
        assumed.append(
            "products without a place in its layers: "
            f"{', '.join(unplaced_products[:LISTED_PRODUCTS])}{more}"
        )
    kind = configuration.config.get("_class_name") or configuration.config["model_type"]
    return replace(configuration, assumed=(*assumed, f"read from a graph as {kind}"))


def graph_at(path: Path, where: str) -> Graph:
    """Read the graph of an ONNX file, its shapes inferred.

    Raises `InputError` as above.
    """
    library = _library(where)
    model = _loaded_model(library, path, where)
    _check_external(library, model, path, where)
    try:
        library.checker.check_model(str(path))
        if model.functions:
            model = library.inliner.inline_local_functions(model)
        model = library.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # noqa: BLE001  # of kinds that the library does not name
        raise InputError(f"{where}: no graph of ONNX: {_error_line(error)}") from None
    return graph_of(model, where)


def _library(where: str) -> ModuleType:
    try:
        for submodule in ("checker", "inliner", "shape_inference"):
            import_module(f"onnx.{submodule}")
        return import_module("onnx")
    except ImportError:
        raise InputError(
            f"{where}: ONNX files need the package onnx: pip install 'multi-gpu-planner[onnx]'"
        ) from None


def _loaded_model(library: ModuleType, path: Path, where: str) -> Foreign:
    try:
        model = library.load(str(path), load_external_data=False)
    except Exception as error:  # noqa: BLE001  # of kinds that the library does not name
        raise InputError(f"{where}: no ONNX file: {_error_line(error)}") from None
    if not model.graph.node:
        raise InputError(f"{where}: an ONNX file without nodes")
    return model


def _check_external(library: ModuleType, model: Foreign, path: Path, where: str) -> None:
    """Refuse a graph whose weights are to lie in a file that is not there."""
    for tensor in model.graph.initializer:
        if tensor.data_location != library.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        data_path = path.parent / entries.get("location", "")
        if not data_path.is_file():
            raise InputError(f"{where}: its external data {data_path.name[:60]!r} is not beside it")


def _error_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
