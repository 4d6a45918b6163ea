"""Records fitted on one machine: they stand before the shipped ones where a caller passes them."""

from dataclasses import dataclass

from costmodels.kernels.parameters import (
    AttentionParameters,
    MatmulParameters,
    PointwiseParameters,
)
from costmodels.kernels.tables import attention_table, matmul_table, pointwise_table, record
from topology.catalogue import Device


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
    """Find the parameters of the implementation `name` on `device`.

    Raises
    ------
    UncalibratedError
        If neither the calibration nor the tables have it.
    """
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
