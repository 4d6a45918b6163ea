"""Largest activations of a model's products, as ``python -m validate scales`` has found them."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from planner.models.fields import parse
from planner.tensorrt import EngineNetwork
from planner.tensorrt.runner.weights import named
from topology.base import InputError, content, decoded_text

SCHEMA: Final = "1"
LARGEST: Final = 2**24
"""Bytes of a file."""
_LOWEST: Final = 2.0**-126
_HIGHEST: Final = 2.0**127
"""Of an activation in bf16."""


def read_scales(path: str, model: str) -> Mapping[str, float]:
    """Read largest activations by a weight's name and layer.

    Raises `InputError` if it is none of this model's, or a number is none.
    """
    try:
        text = decoded_text(content(path, LARGEST), path)
    except InputError as error:
        raise InputError(f"--scales {path}: {error}") from None
    fields = parse(text, f"--scales {path}")
    identity = fields.text("schema"), fields.text("model")
    if identity != (SCHEMA, model):
        found_identity = f"schema {identity[0]:.20} of {identity[1]:.60}"
        raise InputError(
            f"--scales {path}: got {found_identity}, wanted schema {SCHEMA} of {model}"
        )
    largest = fields.table("largest")
    if largest is None:
        raise fields.refused("largest", None, "what python -m validate scales writes")
    return {name: largest.number(name, low=_LOWEST, high=_HIGHEST) for name in largest.values}


def check_scales(path: str, written: Sequence[EngineNetwork], precision: str) -> None:
    """Refuse scales that no product has a use for, or that leave one out.

    Raises `InputError`, naming the first.
    """
    unmeasured_names, all_products = unmeasured(written)
    if not all_products:
        advice = "wanted fp8, nvfp4 or int8 beside it"
        raise InputError(f"--scales {path}: got --precision {precision}, {advice}")
    if unmeasured_names:
        shortfall = f"lacks {len(unmeasured_names)} of {len(all_products)} products"
        raise InputError(f"--scales {path}: {shortfall}, such as {unmeasured_names[0]}")


def unmeasured(written: Sequence[EngineNetwork]) -> tuple[list[str], list[str]]:
    """Name the products of few bits whose activations were not measured, and all of them."""
    reaches = [layer.attributes for network in written for layer in network.of("reach")]
    names = [named(str(layer["weight"]), cast(int, layer["layer"])) for layer in reaches]
    return [
        name for name, layer in zip(names, reaches, strict=True) if not layer["measured"]
    ], names
