"""How far the kernel models are from measured kernels, by GPU kind and kind of work."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from costmodels.kernels import attention_time, matmul_time, pointwise_time
from topology.base import Seconds
from topology.catalogue import Device

Operation = Literal["matmul", "attention", "pointwise"]
COLUMNS = (
    "hardware", "operation", "kernel", "precision", "batch", "m", "n", "k",
    "heads", "kv_heads", "queries", "keys", "head_dim", "causal", "window", "bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured kernel. Sizes that its operation does not have are 0.

    Matrix products have batch, m, n, k; attention has batch, heads, kv_heads, queries, keys,
    head_dim, causal, window, kernel; pointwise work has bytes.
    """

    device: Device
    operation: Operation
    seconds: Seconds
    kernel: str = "auto"
    precision: str = "bf16"
    batch: int = 1
    m: int = 0
    n: int = 0
    k: int = 0
    heads: int = 0
    kv_heads: int = 0
    queries: int = 0
    keys: int = 0
    head_dim: int = 0
    causal: bool = False
    window: int = 0
    bytes: float = 0.0
    source: str = ""

    def predicted(self) -> Seconds:
        """Price it."""
        if self.operation == "matmul":
            time = matmul_time(
                self.m, self.n, self.k, self.device, precision=self.precision, batch=self.batch
            )
        elif self.operation == "attention":
            time = attention_time(
                self.heads,
                self.queries,
                self.keys,
                self.head_dim,
                self.device,
                batch=self.batch,
                kv_heads=self.kv_heads,
                causal=self.causal,
                precision=self.precision,
                kernel=self.kernel,
                window=self.window,
            )
        else:
            time = pointwise_time(self.bytes, self.device)
        return Seconds(time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relative errors of one group: predicted over measured, less one.

    median, p90, worst : of the absolute value. bias : the median with its sign.
    """

    group: tuple[str, ...]
    rows: int
    median: float
    p90: float
    worst: float
    bias: float


def score(
    rows: Iterable[Measurement], by: Sequence[str] = ("hardware", "operation", "kernel")
) -> list[Score]:
    """Compare each group of `rows` with the models; groups in order of first appearance.

    Parameters
    ----------
    by : fields of a measurement that make a group; ``hardware`` is its device's name.

    Examples
    --------
    >>> from topology.catalogue import all_devices
    >>> h100 = all_devices()["h100-sxm"]
    >>> row = Measurement(device=h100, operation="matmul", m=4096, n=4096, k=4096,
    ...                   seconds=Seconds(190e-6))
    >>> [s.p90 < 0.15 for s in score([row])]
    [True]
    """
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        key = tuple(_label(row, name) for name in by)
        groups.setdefault(key, []).append(row.predicted() / row.seconds - 1.0)
    return [summary(key, np.array(errors)) for key, errors in groups.items()]


def summary(group: tuple[str, ...], errors: NDArray[np.float64]) -> Score:
    """Put relative `errors` of one group into numbers."""
    size = np.abs(errors)
    return Score(
        group=group,
        rows=len(errors),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        worst=float(size.max()),
        bias=float(np.median(errors)),
    )


def read_measurements(text: str, devices: dict[str, Device]) -> list[Measurement]:
    """Read a CSV table with a header of `COLUMNS`, ``seconds`` and ``source``; blanks are 0."""
    return [_measurement(row, devices) for row in csv.DictReader(text.splitlines())]


def _measurement(row: dict[str, str], devices: dict[str, Device]) -> Measurement:
    counts = ("m", "n", "k", "heads", "kv_heads", "queries", "keys", "head_dim", "window")
    sizes = {name: int(row[name] or 0) for name in counts}
    return Measurement(
        device=devices[row["hardware"]],
        operation=row["operation"],  # type: ignore[arg-type]  # checked by the tests of the file
        seconds=Seconds(float(row["seconds"])),
        kernel=row["kernel"] or "auto",
        precision=row["precision"] or "bf16",
        batch=int(row["batch"] or 1),
        causal=row["causal"] == "1",
        bytes=float(row["bytes"] or 0.0),
        source=row["source"],
        **sizes,
    )


def _label(row: Measurement, name: str) -> str:
    return row.device.name if name == "hardware" else str(getattr(row, name))
