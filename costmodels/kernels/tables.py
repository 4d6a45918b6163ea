"""Records of kernels: those that ship, and a machine's own before them.

Nothing else here touches a packaged file.
"""

from functools import cache
from importlib.resources import files
from typing import Any, cast

from costmodels.kernels.parameters import (
    AttentionParameters,
    MatmulParameters,
    Parameters,
    PointwiseParameters,
    load,
)
from topology.base import UncalibratedError, shipped_table
from topology.base.values import dataclass
from topology.catalogue import Device


def shipped_records(form: type[Parameters]) -> dict[str, Parameters]:
    """Give the records of one `form` that ship: ``data/kernels_matmul.toml`` and its like.

    Those of attention are called ``implementation-generation``; those that engines bring, products
    of quantised numbers and decode attention, ``format.engine-generation``, where a record without
    an engine stands for those that have none.
    """
    records: dict[str, Parameters] = _table(cast(Any, form))
    return records


@cache
def _table(form: type[Any]) -> Any:  # noqa: ANN401  # caches forget types
    name = f"kernels_{form.__name__.removesuffix('Parameters').lower()}.toml"
    return load(shipped_table(files("costmodels").joinpath("data", name)), form)


def record(form: type[Parameters], device: Device, prefix: str = "") -> Parameters:
    """Find the record that stands for `device`, among names that begin with `prefix`."""
    capability = "{}.{}".format(*device.compute_capability)
    for name, row in shipped_records(form).items():
        if name.startswith(prefix) and capability in row.provenance.compute_capabilities:
            return row
    raise UncalibratedError(f"no {prefix or 'kernel '}parameters for {device.name} ({capability})")


def engine_record(form: type[Parameters], device: Device, name: str, engine: str) -> Parameters:
    """Find the record of `engine` under a `name`, or the one that stands for all engines."""
    try:
        return record(form, device, f"{name}.{engine}-")
    except UncalibratedError:
        return record(form, device, f"{name}-")


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
    calibrated = None if calibration is None else calibration.matmul
    return calibrated or record(MatmulParameters, device)


def attention_record(name: str, device: Device, calibration: Calibration) -> AttentionParameters:
    """Find the parameters of the implementation `name` on `device`."""
    calibrated = None if calibration is None else dict(calibration.attention).get(name)
    return calibrated or record(AttentionParameters, device, f"{name}-")


def pointwise_record(device: Device, calibration: Calibration) -> PointwiseParameters:
    """Find the parameters of element-wise work on `device`."""
    calibrated = None if calibration is None else calibration.pointwise
    return calibrated or record(PointwiseParameters, device)
