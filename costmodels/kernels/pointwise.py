r"""Work that is bound by memory traffic: norms, activations, residuals, copies.

.. math:: t = floor + ramp\,\frac{x}{x + ramp} + x, \qquad x = bytes / (share\, bandwidth)

so that small kernels cost the floor, and large ones the floor, the ramp and the stream.
"""

from typing import Any

import numpy as np

from costmodels.estimate import Basis
from costmodels.kernels.calibration import Calibration, pointwise_record
from costmodels.kernels.parameters import PointwiseParameters
from costmodels.kernels.shapes import Number, Real, plain
from topology.devices import Device


def pointwise_time(bytes_moved: Number, device: Device, calibration: Calibration = None) -> Any:  # noqa: ANN401  # as its input
    """Time a kernel that reads and writes `bytes_moved` bytes in all, as one of a CUDA graph.

    Parameters
    ----------
    calibration : parameters of this very machine.

    Returns
    -------
    seconds, a float or an array

    Examples
    --------
    >>> from topology.catalogue import devices
    >>> 1e-3 < pointwise_time(3.35e9, devices()["h100-sxm"]) < 1.3e-3
    True
    """
    known = pointwise_record(device, calibration)
    return plain(stream_time(known, np.asarray(bytes_moved, float), device))


def stream_time(known: PointwiseParameters, moved: Real, device: Device) -> Real:
    """Evaluate the formula."""
    stream = moved / (known.memory_efficiency * device.memory_bandwidth.value)
    return known.floor + stream + known.ramp * stream / (stream + known.ramp)


def pointwise_basis(device: Device, calibration: Calibration = None, **sizes: Number) -> Basis:
    """How well `pointwise_time` is known.

    >>> from topology.catalogue import devices
    >>> pointwise_basis(devices()["l4"]).name
    'ASSUMED'
    """
    return pointwise_record(device, calibration).provenance.basis(device.name, sizes)
