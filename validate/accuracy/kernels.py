"""Measured kernels: matrix products, attention and element-wise work of many GPUs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from costmodels.kernels import attention_time, matmul_time, pointwise_time
from costmodels.kernels.tables import KernelCalibration
from topology.base import Seconds
from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.catalogue import Device
from validate.accuracy.figures import Figure, read_table

Operation = Literal["matmul", "attention", "pointwise"]
FEW: Final = 5
"""GPUs with fewer figures than this share a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFigure(Figure):
    """One measured kernel. Sizes that its operation does not have are 0.

    Matrix products have batch, m, n, k; attention has batch, heads, kv_heads, queries, keys,
    head_dim, causal, window, kernel, kv_precision; pointwise work has bytes. engine : whose
    kernels, of serving engines. rounding : share of the rounding of a product's inputs that was
    measured with it. sustained : the GPU was kept busy.
    """

    device: Device
    operation: Operation
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
    kv_precision: str = ""
    engine: str = ""
    rounding: float = 1.0
    sustained: bool = False

    def predicted(self, calibration: KernelCalibration | None = None) -> Seconds:
        """Price the kernel, in seconds.

        >>> from topology.catalogue import all_devices
        >>> row = KernelFigure(device=all_devices()["h100-sxm"], operation="matmul", m=4096, n=4096,
        ...                    k=4096, seconds=Seconds(190e-6))
        >>> abs(row.error) < 0.15
        True
        """
        if self.operation == "pointwise":
            return Seconds(pointwise_time(self.bytes, self.device, calibration))
        names = ("batch", "precision", "sustained", "engine")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options["calibration"] = calibration
        if self.operation == "matmul":
            options["rounding"] = self.rounding
            return Seconds(matmul_time(self.m, self.n, self.k, self.device, **options))
        options |= {
            name: getattr(self, name)
            for name in ("kv_heads", "causal", "kernel", "window", "kv_precision")
        }
        sizes = (self.heads, self.queries, self.keys, self.head_dim)
        return Seconds(attention_time(*sizes, self.device, **options))


def read_figures(text: str, devices: Mapping[str, Device]) -> list[KernelFigure]:
    """Read kernels from CSV."""
    return read_table(KernelFigure, text, "kernels", device=lambda row: devices[row["hardware"]])


def groups(figures: Iterable[KernelFigure]) -> dict[str, list[float]]:
    """Give the errors of products and attention, by kind of GPU; those with few share a group."""
    figures = list(figures)
    errors: dict[str, list[float]] = {}
    for operation, words in (("matmul", "matrix products"), ("attention", "attention")):
        operation_figures = [figure for figure in figures if figure.operation == operation]
        counts = Counter(figure.device.name for figure in operation_figures)
        rare_names = [name for name, count in counts.items() if count < FEW]
        for name in [name for name in counts if name not in rare_names]:
            errors[f"{words}, {name}"] = [
                f.error for f in operation_figures if f.device.name == name
            ]
        errors[f"{words}, {', '.join(rare_names)}"] = [
            f.error for f in operation_figures if f.device.name in rare_names
        ]
    return errors


def engine_groups(figures: Iterable[KernelFigure]) -> dict[str, list[float]]:
    """Give the errors of serving engines' kernels, by number format and kind of GPU."""
    return gathered((_group_name(figure), figure.error) for figure in figures)


def _group_name(figure: KernelFigure) -> str:
    words = f"engines' products in {figure.precision}"
    if figure.operation == "attention":
        words = f"engines' decode attention, {figure.kv_precision} cache"
    if figure.causal:
        words = f"engines' attention over prompts in {figure.precision}"
    return f"{words}, {figure.device.name}"
