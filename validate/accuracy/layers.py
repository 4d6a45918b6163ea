"""Measured layers of serving engines: mixtures of experts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from costmodels.kernels import experts_time
from costmodels.routing import routing_of
from topology.base import InputError, Seconds
from topology.catalogue import Device
from validate.accuracy.figures import fields_of, read_table

COLUMNS: Final = (
    "hardware", "operation", "engine", "precision", "sizes", "trait", "seconds", "source",
)  # fmt: skip
WORDS: Final = {"experts": "engines' layers of experts in {precision}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigure:
    """One measured layer. sizes : ``name=number`` of each; trait : what no size says.

    experts : tokens, hidden, intermediate, experts, top_k, ep, gated; trait is the distribution.
    """

    device: Device
    operation: str
    engine: str
    precision: str
    sizes: str
    trait: str = ""
    seconds: Seconds
    source: str

    def predicted(self) -> Seconds:
        """Price it."""
        size = {name: float(value) for name, value in map(_halves, self.sizes.split())}
        routing = routing_of(self.trait, int(size["experts"]), int(size["top_k"]))
        layer = (size["tokens"], size["hidden"], size["intermediate"], routing, self.device)
        time = experts_time(
            *layer, ep=int(size["ep"]), precision=self.precision, gated=bool(size["gated"]),
            engine=self.engine,
        )  # fmt: skip
        return Seconds(time)

    @property
    def error(self) -> float:
        """Relative error of the model, positive where it is slow."""
        return self.predicted() / self.seconds - 1.0


def _halves(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def read_figures(text: str, devices: Mapping[str, Device]) -> list[LayerFigure]:
    """Read a CSV `text` with `COLUMNS`."""
    figures = []
    for row in read_table(text, COLUMNS, "layers"):
        if row["operation"] not in WORDS:
            wanted = ", ".join(WORDS)
            raise InputError(f"figures of layers: got {row['operation']!r}, wanted one of {wanted}")
        figures.append(LayerFigure(device=devices[row["hardware"]], **fields_of(LayerFigure, row)))
    return figures


def groups(figures: Iterable[LayerFigure]) -> dict[str, list[float]]:
    """Give the errors by kind of layer, number format and kind of GPU."""
    errors: dict[str, list[float]] = {}
    for figure in figures:
        words = WORDS[figure.operation].format(precision=figure.precision)
        errors.setdefault(f"{words}, {figure.device.name}", []).append(figure.error)
    return errors
