"""Measured layers of serving engines: mixtures of experts, latent attention, kept states."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

from costmodels.expert_routing import routing_of
from costmodels.kernels import (
    experts_time,
    head_product_time,
    latent_context_time,
    latent_decode_time,
)
from costmodels.kernels.state import Rule, convolution_time, scan_time, update_time
from topology.base import InputError, Seconds
from topology.base.values import dataclass
from topology.catalogue import Device
from validate.accuracy.figures import fields_of, read_table

COLUMNS: Final = (
    "hardware", "operation", "engine", "precision", "sizes", "trait", "seconds", "source",
)  # fmt: skip
WORDS: Final = {
    "experts": "engines' layers of experts in {precision}",
    "latent_context": "engines' latent attention over prompts, {precision} cache",
    "latent_decode": "engines' latent attention of new tokens, {precision} cache",
    "head_product": "engines' products of a head in {precision}",
    "state": "engines' layers with a state, {precision}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigure:
    """One measured layer. sizes : ``name=number`` of each; trait : what no size says.

    experts : tokens, hidden, intermediate, experts, top_k, ep, gated; trait is the distribution.
    latent_context, latent_decode : heads, queries, keys, batch. head_product : rows, columns,
    inner, heads. state : tokens, batch, convolved, heads, features, state, chunk, state_bytes; its
    precision is the kernel: ``conv``, ``conv_step``, ``delta``, ``ssd`` or ``update``.
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
        """Price the layer, in seconds."""
        size = {name: float(value) for name, value in map(_halves, self.sizes.split())}
        return Seconds(_PRICES[self.operation](self, size))

    @property
    def error(self) -> float:
        """Relative error of the model, positive where it is slow."""
        return self.predicted() / self.seconds - 1.0


Sizes = Mapping[str, float]


def _experts(one: LayerFigure, size: Sizes) -> float:
    routing = routing_of(one.trait, int(size["experts"]), int(size["top_k"]))
    time: float = experts_time(
        size["tokens"], size["hidden"], size["intermediate"], routing, one.device,
        ep=int(size["ep"]), precision=one.precision, gated=bool(size["gated"]), engine=one.engine,
    )  # fmt: skip
    return time


def _latent_context(one: LayerFigure, size: Sizes) -> float:
    shape = (size["heads"], size["queries"], size["keys"])
    time: float = latent_context_time(
        *shape, one.device, batch=size["batch"], kv_precision=one.precision, engine=one.engine
    )
    return time


def _latent_decode(one: LayerFigure, size: Sizes) -> float:
    shape = (size["heads"], size["keys"])
    time: float = latent_decode_time(
        *shape, one.device, batch=size["batch"], kv_precision=one.precision, engine=one.engine
    )
    return time


def _head_product(one: LayerFigure, size: Sizes) -> float:
    shape = (size["rows"], size["columns"], size["inner"], size["heads"])
    time: float = head_product_time(*shape, one.device, precision=one.precision, engine=one.engine)
    return time


def _state(one: LayerFigure, size: Sizes) -> float:
    time: float
    match one.precision:
        case "conv" | "conv_step":
            time = convolution_time(
                size["tokens"], size["convolved"], one.device, batch=size["batch"],
                new=one.precision == "conv_step", engine=one.engine,
            )  # fmt: skip
        case "update":
            time = update_time(
                size["heads"], one.device, batch=size["batch"], state=size["state"],
                state_bytes=size["state_bytes"], engine=one.engine,
            )  # fmt: skip
        case _:
            shape = (size["tokens"], size["heads"], size["features"])
            time = scan_time(
                *shape, one.device, rule=cast(Rule, one.precision), batch=size["batch"],
                state=size["state"], chunk=size["chunk"], engine=one.engine,
            )  # fmt: skip
    return time


_PRICES: Final[Mapping[str, Callable[[LayerFigure, Sizes], float]]] = {
    "experts": _experts,
    "latent_context": _latent_context,
    "latent_decode": _latent_decode,
    "head_product": _head_product,
    "state": _state,
}


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
