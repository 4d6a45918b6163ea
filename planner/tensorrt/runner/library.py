"""TensorRT, found when it is needed. Its objects have no types that a checker could read."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from planner.tensorrt.runner.errors import MissingError

Foreign = Any
"""An object of TensorRT, NCCL or CUDA."""
Document = Mapping[str, Any]
"""A JSON object of the plan's folder, which is as it was exported: its digest says so."""
NAMES: Final = ("tensorrt", "tensorrt_rtx_bindings", "tensorrt_rtx")
TYPES: Final = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "fp8",
    "fp4": "fp4",
    "int8": "int8",
    "int32": "int32",
    "bool": "bool",
}
"""Names of types, here and there."""


def load(names: tuple[str, ...] = NAMES) -> ModuleType:
    """Import TensorRT, or TensorRT-RTX where there is no TensorRT.

    Raises `MissingError` if there is neither, saying what to install.
    """
    reasons = []
    for name in names:
        try:
            return import_module(name)
        except ImportError as error:
            reasons.append(f"{name}: {error}")
    remedy = "pip install 'tensorrt-cu13>=11.0,<12'"
    raise MissingError(f"TensorRT is not installed ({reasons[0]}): {remedy}")


def version(library: ModuleType) -> str:
    """Return the version of TensorRT."""
    return str(library.__version__)


def numbers(text: str) -> tuple[int, ...]:
    """Read the numbers that a version begins with.

    >>> numbers("11.4.1.post1")
    (11, 4, 1)
    """
    parts_read = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        parts_read.append(int(part))
    return tuple(parts_read)


def require(name: str, has: str, needs: str) -> None:
    """Raise where a version is too old; one that is not known passes.

    Raises `MissingError`, saying what there is, and what is needed.
    """
    if numbers(has) and numbers(has) < numbers(needs):
        raise MissingError(f"{name} {has}: this plan needs {needs} or newer")


def is_rtx(library: ModuleType) -> bool:
    """Whether it is TensorRT-RTX, which builds for other GPUs and runs no collectives of ours."""
    return "rtx" in library.__name__


def type_of(library: ModuleType, dtype: str) -> Foreign:
    """Return TensorRT's type of a name."""
    return getattr(library, TYPES[dtype])
