"""Fit what PyTorch costs beyond its kernels: launches, extra traffic, memory, messages beside."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from costmodels.kernels.pointwise import pointwise_time
from costmodels.kernels.tables import KernelCalibration
from costmodels.profile import RuntimeCalibration
from costmodels.runtime import Fusion
from topology.base import Sourced
from topology.base.values import dataclass
from topology.catalogue import Device
from validate.fit.collectives import host_of_calls
from validate.fit.rows import Row

KERNELS: Final[Mapping[str, int]] = {"eager": 5, "compiled": 4}
"""Kernels of one layer of the measured stack: a compiler fuses the residual with the next norm."""
WAYS: Final[Mapping[str, tuple[str, str]]] = {
    "torch-eager": ("eager", "lean"),
    "torch-compile": ("compiled", "compiled"),
}
"""How a runtime's stack and its functions were run; the validator's backend is lean."""
MOST_KERNELS: Final = 40
TRAFFIC: Final = np.linspace(0.5, 16.0, 156)


Shares = tuple[tuple[str, Sourced], ...]
"""A number of each kind of collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSample:
    """A function at one size: least traffic in bytes, and seconds measured."""

    traffic: float
    seconds: float


def fit_runtimes(
    rows: Sequence[Row], device: Device, calibration: KernelCalibration, source: str
) -> tuple[tuple[str, RuntimeCalibration], ...]:
    """Describe each runtime of PyTorch that the rows say something about."""
    runtimes = []
    for name, (stack, mode) in WAYS.items():
        host = _host_of_kernel(rows, stack)
        functions = tuple(_function_fusions(rows, mode, device, calibration))
        if host is not None or functions:
            runtime = RuntimeCalibration(
                host_kernel=_sourced(host, source),
                host_collective=_sourced(host_of_calls(rows), source),
                memory=_sourced(_memory(rows, "attention", "bytes"), source),
                functions=functions,
            )
            runtimes.append((name, runtime))
    return tuple(runtimes)


def communicator(rows: Sequence[Row], source: str) -> Sourced | None:
    """Bytes that one more communicator takes: the second, or the first where there is no other."""
    for stage in ("second", "communicator"):
        size = _memory(rows, stage, "more_bytes")
        if size:
            return _sourced(size, source)
    return None


def _sourced(value: float | None, source: str) -> Sourced | None:
    return None if value is None else Sourced(value=value, kind="measured", source=source)


def _memory(rows: Sequence[Row], stage: str, value: str) -> float | None:
    """Return the most of a value in bytes that a process had at a stage; None without any."""
    sizes = [
        row.values[value]
        for row in rows
        if row.family == "memory" and not row.error and row.sizes["stage"] == stage
    ]
    return max(sizes, default=None)


def _host_of_kernel(rows: Sequence[Row], way: str) -> float | None:
    """Seconds of host time a kernel: from two depths of one stack, so that what is once drops."""
    seconds = {
        row.number("layers"): row.seconds
        for row in rows
        if row.family == "stack" and not row.error and row.sizes["way"] == way
    }
    if len(seconds) < 2:
        return None
    shallow, deep = min(seconds), max(seconds)
    seconds_each = (seconds[deep] - seconds[shallow]) / (deep - shallow) / KERNELS[way]
    return max(seconds_each, 0.0)


def _function_fusions(
    rows: Sequence[Row], mode: str, device: Device, calibration: KernelCalibration
) -> Iterator[tuple[str, Fusion]]:
    samples: dict[str, list[FunctionSample]] = {}
    for row in rows:
        if row.error or not row.mode.startswith(mode) or row.family not in ("function", "compiled"):
            continue
        sample = FunctionSample(traffic=row.values["traffic_bytes"], seconds=row.seconds)
        samples.setdefault(str(row.sizes["name"]), []).append(sample)
    for name, measured in sorted(samples.items()):
        if len(measured) >= 2:
            yield name, fusion_of(measured, device, calibration)


def fusion_of(
    samples: Sequence[FunctionSample], device: Device, calibration: KernelCalibration | None
) -> Fusion:
    """Find the number of kernels and the traffic that explain how long a function takes.

    Small sizes show the kernels, large ones the traffic; all pairs on a grid are tried.

    >>> from topology.catalogue import all_devices
    >>> h100 = all_devices()["h100-sxm"]
    >>> sizes = [1e5, 1e7, 1e9]
    >>> times = {size: 3 * pointwise_time(size, h100) for size in sizes}
    >>> samples = [FunctionSample(traffic=size, seconds=time) for size, time in times.items()]
    >>> fusion_of(samples, h100, None)
    Fusion(traffic=3.0, kernels=3, cycles=0.0)
    """
    min_traffic = np.array([sample.traffic for sample in samples])
    measured = np.array([sample.seconds for sample in samples])
    best = (np.inf, Fusion(traffic=1.0, kernels=1))
    for kernels in range(1, MOST_KERNELS + 1):
        kernel_bytes = min_traffic[:, None] * TRAFFIC / kernels
        ratio = kernels * pointwise_time(kernel_bytes, device, calibration) / measured[:, None]
        miss = np.abs(np.log(ratio)).sum(axis=0)
        index = int(np.argmin(miss))
        if miss[index] < best[0] * (1 - 1e-3):
            traffic = round(float(TRAFFIC[index]), 2)
            best = (float(miss[index]), Fusion(traffic=traffic, kernels=kernels))
    return best[1]


def fit_hiding(rows: Sequence[Row], source: str) -> tuple[Shares, Shares]:
    """Fit the share of each collective that compute hides, and of its time above what.

    See `costmodels.overlap`.
    """
    cases_by_op: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.family == "beside" and not row.error:
            seconds = row.values["communication"] / row.values["messages"]
            share = min(1.0, row.values["share"])
            cases_by_op.setdefault(str(row.sizes["op"]), []).append((seconds, share))
    shares, starts = [], []
    for op, cases in sorted(cases_by_op.items()):
        share, start = _hidden_share(cases)
        low, high = min(share for _, share in cases), max(share for _, share in cases)
        note = f"{low:.2f} to {high:.2f} in {len(cases)} cases"
        measured = partial(Sourced, kind="measured", source=source)
        shares.append((op, measured(value=share, note=note)))
        starts.append((op, measured(value=start)))
    return tuple(shares), tuple(starts)


def _hidden_share(cases: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit ``seen share = share (1 - start / seconds)``; one share where sizes say no more."""
    seconds, shares = np.array(cases).T
    if np.ptp(seconds) < np.mean(seconds):
        return float(np.median(shares)), 0.0
    design = np.stack([np.ones_like(seconds), -1.0 / seconds], axis=1)
    share, lost_s = np.linalg.lstsq(design, shares)[0]
    share = min(max(float(share), 0.01), 1.0)
    return share, max(float(lost_s), 0.0) / share
