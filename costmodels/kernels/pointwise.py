r"""Work that is bound by memory traffic: norms, activations, residuals, copies.

.. math:: t = floor + ramp\,\frac{x}{x + ramp} + x, \qquad x = bytes / (share\, bandwidth)

so that small kernels cost the floor, and large ones the floor, the ramp and the stream.
"""

from typing import Any, Final

from costmodels.basis import Basis
from costmodels.kernels.common import Number, scalar_or_array, stream_seconds
from costmodels.kernels.parameters import PointwiseParameters
from costmodels.kernels.tables import Calibration, pointwise_record
from costmodels.sizes import Real, larger, real, smaller
from topology.catalogue import Device

_BYTES_A_CYCLE: Final = 7.4
"""What kernels move for each of their cycles that take longer than memory would on an H200: casts,
operands that broadcast or have strides; mean of the kinds of validate/engines/kinds.toml."""


def pointwise_time(bytes_moved: Number, device: Device, calibration: Calibration = None) -> Any:  # noqa: ANN401  # as its input
    """Time a kernel that reads and writes `bytes_moved` bytes in all, as one of a CUDA graph.

    >>> from topology.catalogue import all_devices
    >>> 1e-3 < pointwise_time(3.35e9, all_devices()["h100-sxm"]) < 1.3e-3
    True
    """
    fitted = pointwise_record(device, calibration)
    return scalar_or_array(stream_time(fitted, real(bytes_moved), device))


def chain_time(
    once: Number,
    traffic: float,
    kernels: float,
    device: Device,
    calibration: Calibration = None,
    *,
    cycles: float = 0.0,
) -> Any:  # noqa: ANN401  # as its input
    """Time kernels that hand tensors on to each other.

    What goes from one to the next stays in the second-level cache where the bytes of a kernel fit
    in it, less and less of it up to twice its size; inputs and outputs come from and go to memory.

    once : bytes of the chain's inputs and outputs.
    traffic : bytes that kernels move which stream, over `once`. cycles : of one multiprocessor in
    all others, over `once`; where memory is slow it is what they wait for too.

    >>> from topology.catalogue import all_devices
    >>> l20 = all_devices()["l20"]
    >>> chain_time(64e6, 10, 10, l20) < 0.6 * 10 * pointwise_time(64e6, l20)
    True
    >>> chain_time(640e6, 10, 10, l20) == 10 * pointwise_time(640e6, l20)
    True
    """
    fitted = pointwise_record(device, calibration)
    once, moved = real(once), traffic + _BYTES_A_CYCLE * cycles
    fits = smaller(larger(2.0 - once * moved / kernels / device.l2.value, 0.0), 1.0)
    memory_share = 1.0 - fits * max(0.0, 1.0 - 1.0 / moved) * (1.0 - 1.0 / fitted.cache)
    streams = kernels * stream_time(fitted, once * traffic / kernels * memory_share, device)
    pace = fitted.memory_efficiency * device.memory_bandwidth.value
    rate = device.multiprocessors.value * device.clock.value
    return scalar_or_array(
        streams + cycles * once * larger(1.0 / rate, _BYTES_A_CYCLE * memory_share / pace)
    )


def stream_time(fitted: PointwiseParameters, moved: Real, device: Device) -> Real:
    """Evaluate the formula of kernels that stream memory."""
    stream = moved / (fitted.memory_efficiency * device.memory_bandwidth.value)
    return fitted.floor + stream_seconds(stream, fitted.ramp)


def pointwise_basis(device: Device, calibration: Calibration = None, **sizes: Number) -> Basis:
    """How well `pointwise_time` is known.

    >>> from topology.catalogue import all_devices
    >>> pointwise_basis(all_devices()["l4"]).name
    'ASSUMED'
    """
    return pointwise_record(device, calibration).provenance.basis(device.name, sizes)
