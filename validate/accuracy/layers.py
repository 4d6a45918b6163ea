"""Measured layers of serving engines: mixtures of experts, latent attention, kept states."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast

from costmodels.expert_routing import routing_of
from costmodels.kernels import (
    experts_time,
    head_product_time,
    latent_context_time,
    latent_decode_time,
)
from costmodels.kernels.state import Rule, convolution_time, scan_time, update_time
from topology.base import InputError, Seconds, UncalibratedError
from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.catalogue import Device
from validate.accuracy.figures import Figure, read_table

WORDS: Final = {
    "experts": "engines' layers of experts in {precision}",
    "latent_context": "engines' latent attention over prompts, {precision} cache",
    "latent_decode": "engines' latent attention of new tokens, {precision} cache",
    "head_product": "engines' products of a head in {precision}",
    "state": "engines' layers with a state, {precision}",
}

NEAREST: Final = {
    "a100-sxm-80gb": "h100-sxm", "h100-sxm": "b200", "b200": "h100-sxm", "rtx-pro-6000": "b200",
}  # fmt: skip
"""GPUs that parameters are fitted to, and whose they would take if they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigure(Figure):
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

    def __post_init__(self) -> None:
        if self.operation not in WORDS:
            operations = ", ".join(WORDS)
            operation = self.operation
            raise InputError(f"figures of layers: got {operation!r}, wanted one of {operations}")

    def predicted(self) -> Seconds:
        """Price the layer, in seconds."""
        size = {name: float(value) for name, value in map(_name_and_value, self.sizes.split())}
        return Seconds(float(self._layer_time(size)))

    def _layer_time(self, size: Mapping[str, float]) -> Any:  # noqa: ANN401, PLR0911  # one a kind
        device, engine, precision = self.device, self.engine, self.precision
        batch = size.get("batch", 1.0)
        match self.operation:
            case "experts":
                routing = routing_of(self.trait, int(size["experts"]), int(size["top_k"]))
                return experts_time(
                    size["tokens"], size["hidden"], size["intermediate"], routing, device,
                    ep=int(size["ep"]), precision=precision, gated=bool(size["gated"]),
                    engine=engine,
                )  # fmt: skip
            case "latent_context":
                return latent_context_time(
                    size["heads"], size["queries"], size["keys"], device, batch=batch,
                    kv_precision=precision, engine=engine,
                )  # fmt: skip
            case "latent_decode":
                return latent_decode_time(
                    size["heads"], size["keys"], device, batch=batch, kv_precision=precision,
                    engine=engine,
                )  # fmt: skip
            case "head_product":
                shape = (size["rows"], size["columns"], size["inner"], size["heads"])
                return head_product_time(*shape, device, precision=precision, engine=engine)
        match precision:
            case "conv" | "conv_step":
                return convolution_time(
                    size["tokens"], size["convolved"], device, batch=batch,
                    new=precision == "conv_step", engine=engine,
                )  # fmt: skip
            case "update":
                return update_time(
                    size["heads"], device, batch=batch, state=size["state"],
                    state_bytes=size["state_bytes"], engine=engine,
                )  # fmt: skip
        return scan_time(
            size["tokens"], size["heads"], size["features"], device, rule=cast(Rule, precision),
            batch=batch, state=size["state"], chunk=size["chunk"], engine=engine,
        )  # fmt: skip


def _name_and_value(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def read_figures(text: str, devices: Mapping[str, Device]) -> list[LayerFigure]:
    """Read layers from CSV."""
    return read_table(LayerFigure, text, "layers", device=lambda row: devices[row["hardware"]])


def groups(figures: Iterable[LayerFigure]) -> dict[str, list[float]]:
    """Give the errors by kind of layer, number format and kind of GPU."""
    return gathered(
        (
            f"{WORDS[figure.operation].format(precision=figure.precision)}, {figure.device.name}",
            figure.error,
        )
        for figure in figures
    )


def held_out_errors(
    figures: Iterable[LayerFigure], devices: Mapping[str, Device]
) -> dict[str, list[float]]:
    """Give the errors of GPUs that take the parameters of the `NEAREST` other generation.

    What their data sheets say stays theirs. Number formats that the other has no kernels of are
    left out.
    """
    return gathered(_transfer_errors(figures, devices))


def _transfer_errors(
    figures: Iterable[LayerFigure], devices: Mapping[str, Device]
) -> Iterator[tuple[str, float]]:
    for figure in figures:
        name, substitute = figure.device.name, NEAREST[figure.device.name]
        capability = devices[substitute].compute_capability
        device = replace(
            figure.device, name=f"{name} as {substitute}", compute_capability=capability
        )
        with suppress(UncalibratedError):
            error = replace(figure, device=device).error
            yield f"GPUs left out: engines' layers on {name}, with kernels of {substitute}", error
