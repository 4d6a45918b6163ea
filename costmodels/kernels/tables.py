"""Records of kernels: those that ship, and a machine's own before them.

Nothing else here touches a packaged file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from costmodels.kernels.parameters import (
    AttentionParameters,
    DecodeParameters,
    EngineParameters,
    MatmulParameters,
    Parameters,
    PointwiseParameters,
    QuantisedParameters,
    load,
)
from topology.base import UncalibratedError
from topology.catalogue import Device


@cache
def matmul_table() -> dict[str, MatmulParameters]:
    """Read `data/kernels_matmul.toml`, once."""
    return load(_read("kernels_matmul.toml"), MatmulParameters)


@cache
def quantised_table() -> dict[str, QuantisedParameters]:
    """Read `data/kernels_quantised.toml`, once. Names are ``format.engine-generation``.

    A record without an engine stands for those that have none.
    """
    return load(_read("kernels_quantised.toml"), QuantisedParameters)


@cache
def decode_table() -> dict[str, DecodeParameters]:
    """Read `data/kernels_decode.toml`, once. Names are as in `quantised_table`, by cache format."""
    return load(_read("kernels_decode.toml"), DecodeParameters)


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
    """Find the record of `table` that stands for `device`, among names that begin with `prefix`."""
    capability = "{}.{}".format(*device.compute_capability)
    for name, row in table.items():
        if name.startswith(prefix) and capability in row.provenance.compute_capabilities:
            return row
    raise UncalibratedError(f"no {prefix or 'kernel '}parameters for {device.name} ({capability})")


def engine_record(
    table: Mapping[str, Parameters], device: Device, name: str, engine: str
) -> Parameters:
    """Find the record of `engine` under a `name`, or the one that stands for all engines.

    Raises
    ------
    UncalibratedError
        If there is neither for a GPU of this compute capability.
    """
    try:
        return record(table, device, f"{name}.{engine}-")
    except UncalibratedError:
        return record(table, device, f"{name}-")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCalibration:
    """Parameters of one device's kernels; what is absent is taken from the shipped tables.

    identity : a name that no other calibration has; lookups are remembered by it.
    attention : by implementation (``cudnn``, ``fa2`` ...).
    """

    identity: str
    matmul: MatmulParameters | None = None
    attention: tuple[tuple[str, AttentionParameters], ...] = ()
    pointwise: PointwiseParameters | None = None

    def __hash__(self) -> int:
        return hash(self.identity)


Calibration = KernelCalibration | None


def matmul_record(device: Device, calibration: Calibration) -> MatmulParameters:
    """Find the parameters of matrix products on `device`."""
    if calibration is not None and calibration.matmul is not None:
        return calibration.matmul
    return record(matmul_table(), device)


def attention_record(name: str, device: Device, calibration: Calibration) -> AttentionParameters:
    """Find the parameters of the implementation `name` on `device`."""
    if calibration is not None:
        for known, parameters in calibration.attention:
            if known == name:
                return parameters
    return record(attention_table(), device, f"{name}-")


def pointwise_record(device: Device, calibration: Calibration) -> PointwiseParameters:
    """Find the parameters of element-wise work on `device`."""
    if calibration is not None and calibration.pointwise is not None:
        return calibration.pointwise
    return record(pointwise_table(), device)


def _read(name: str) -> str:
    return files("costmodels").joinpath("data", name).read_text(encoding="utf-8")
