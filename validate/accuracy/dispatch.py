"""Measured dispatches of tokens to experts, and combines of their results."""

from collections.abc import Iterable
from typing import cast

from costmodels.collectives.dispatch import Exchange, Phase
from costmodels.expert_routing import Routing
from costmodels.formats import token_bytes
from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.catalogue import find_hardware
from validate.accuracy.figures import Figure, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchFigure(Figure):
    """One measured exchange: `tokens` a rank, of `hidden` features in `precision`.

    multiprocessors : that the kernel was given; 0 where that is not known. engine : whose version
    of the kernel; empty for the kernel alone. The rest as of `Routing`.
    """

    way: str
    phase: str
    hardware: str
    gpus: int
    nodes: int = 1
    tokens: int
    hidden: int
    top_k: int
    experts: int
    groups: int = 1
    top_groups: int = 1
    spread: bool = False
    precision: str
    multiprocessors: int = 0
    engine: str = ""

    @property
    def exchange(self) -> Exchange:
        """All of it but the tokens."""
        hardware = find_hardware(self.hardware)
        hosts = 0 if hardware.domain > hardware.gpus else self.nodes
        return Exchange(
            phase=cast(Phase, self.phase),
            way=self.way,
            routing=Routing(
                experts=self.experts,
                top_k=self.top_k,
                groups=self.groups,
                top_groups=self.top_groups,
                spread=self.spread,
            ),
            fabric=hardware.fabric(self.gpus, hosts),
            device=hardware.device,
            engine=self.engine,
            multiprocessors=self.multiprocessors,
        )

    @property
    def token_bytes(self) -> float:
        """Bytes of a token as it travels."""
        return token_bytes(float(self.hidden), self.precision)

    def predicted(self) -> float:
        """Price the exchange, in seconds."""
        return float(self.exchange.time(float(self.tokens), self.token_bytes))


def read_figures(text: str) -> list[DispatchFigure]:
    """Read exchanges from CSV."""
    return read_table(DispatchFigure, text, "dispatches")


def groups(figures: Iterable[DispatchFigure]) -> dict[str, list[float]]:
    """Give the errors by way and kind of GPU, those over several nodes apart."""
    return gathered((_group_name(figure), figure.error) for figure in figures)


def _group_name(figure: DispatchFigure) -> str:
    scope = ", several nodes" if figure.nodes > 1 else ""
    engine = f" of {figure.engine}" if figure.engine else ""
    return f"tokens to experts by {figure.way}{engine}, {figure.hardware}{scope}"
