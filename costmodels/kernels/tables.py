"""The tables that ship with the project. Nothing else here touches a packaged file."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from costmodels.kernels.parameters import (
    AttentionParameters,
    EngineParameters,
    MatmulParameters,
    Parameters,
    PointwiseParameters,
    load,
)
from topology.base import UncalibratedError
from topology.catalogue import Device


@cache
def matmul_table() -> dict[str, MatmulParameters]:
    """Read `data/kernels_matmul.toml`, once."""
    return load(_read("kernels_matmul.toml"), MatmulParameters)


@cache
def attention_table() -> dict[str, AttentionParameters]:
    """Read `data/kernels_attention.toml`, once. Names are ``implementation-generation``."""
    return load(_read("kernels_attention.toml"), AttentionParameters)


@cache
def engine_table() -> dict[str, EngineParameters]:
    """Read `data/kernels_engine.toml`, once."""
    return load(_read("kernels_engine.toml"), EngineParameters)


@cache
def pointwise_table() -> dict[str, PointwiseParameters]:
    """Read `data/kernels_pointwise.toml`, once."""
    return load(_read("kernels_pointwise.toml"), PointwiseParameters)


def record(table: Mapping[str, Parameters], device: Device, prefix: str = "") -> Parameters:
    """Find the record of `table` that stands for `device`, among names that begin with `prefix`.

    Raises
    ------
    UncalibratedError
        If no record stands for a GPU of this compute capability.
    """
    capability = "{}.{}".format(*device.compute_capability)
    for name, row in table.items():
        if name.startswith(prefix) and capability in row.provenance.compute_capabilities:
            return row
    raise UncalibratedError(f"no {prefix or 'kernel '}parameters for {device.name} ({capability})")


def _read(name: str) -> str:
    return files("costmodels").joinpath("data", name).read_text(encoding="utf-8")
