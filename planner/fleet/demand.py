"""What a fleet is asked for: requests that come at random, what may fail, and what GPUs cost."""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from planner.request.request import Request
from topology.base.values import dataclass

REQUEST_FIELDS: Final = (
    "height", "width", "frames", "steps", "input_tokens", "output_tokens",
    "ttft_percentile", "tpot_percentile", "kv_precision", "chunk", "prefix_hit", "spread", "burst",
    "speculative", "draft", "acceptance",
)  # fmt: skip
"""What a demand says of its requests, where that is not usual."""
FLEET_FIELDS: Final = ("spare", "headroom", "growth_per_month")
"""What a demand says of its fleet, where that is not usual."""
HOUR: Final = 3600
HOURS: Final = 24

Spare = Literal["", "replica", "node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests that come at random.

    rate_per_s : on average, in the busiest time. slo_s : within which `share` of them are to be
    done, waiting included; infinite where only tokens are wanted soon. request : what each one asks
    for; its GPUs and hardware are not read. spare : what may fail at once, with no request late.
    headroom : share of what the fleet takes that the rate leaves free. hours_per_s : the rates of
    the hours of a day; the busiest is `rate_per_s`. growth_per_month : share of the rate.
    """

    name: str
    request: Request
    rate_per_s: float
    slo_s: float = math.inf
    share: float = 0.95
    spare: Spare = ""
    headroom: float = 0.0
    hours_per_s: tuple[float, ...] = ()
    growth_per_month: float = 0.0

    @property
    def planned_per_s(self) -> float:
        """Requests a second that the fleet is to take in time, headroom included."""
        return self.rate_per_s / (1 - self.headroom)

    @property
    def mean_per_s(self) -> float:
        """Requests a second over the whole day."""
        return sum(self.hours_per_s) / HOURS if self.hours_per_s else self.rate_per_s

    def months_to(self, times: float) -> float | None:
        """Say in how many months the rate is so many times as high; None where it is not.

        >>> from dataclasses import replace
        >>> demand = Demand(name="a", request=Request(model="flux"), rate_per_s=1.0)
        >>> demand.months_to(2.0), replace(demand, growth_per_month=1.0).months_to(4.0)
        (None, 2.0)
        """
        if not self.growth_per_month or times < 1:
            return None
        return math.log(times) / math.log1p(self.growth_per_month)

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        request, request_fields = self.request, Request.__dataclass_fields__
        limits = {f"{name}_s": getattr(request, name) for name in ("slo_ttft", "slo_tpot")}
        request_values = {name: getattr(request, name) for name in REQUEST_FIELDS}
        fleet_values = {name: getattr(self, name) for name in FLEET_FIELDS} | {
            "hours_per_s": [*self.hours_per_s]
        }
        return {
            "name": self.name,
            "model": request.model_name,
            "rate_per_s": self.rate_per_s,
            "slo_s": self.slo_s if math.isfinite(self.slo_s) else None,
            "share": self.share,
            "batch": request.batch,
            **{name: value for name, value in limits.items() if value is not None},
            **{
                name: value
                for name, value in request_values.items()
                if value != request_fields[name].default
            },
            **{name: value for name, value in fleet_values.items() if value},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a GPU, or a whole node, costs an hour, by hardware. source : who says so."""

    currency: str
    gpu_hour: Mapping[str, float]
    node_hour: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def cost(self, hardware: str, gpus: int, nodes: int) -> float | None:
        """Price an hour of so many GPUs on so many nodes; None where no price is known.

        >>> prices = Prices(currency="", gpu_hour={"l40s": 1.0}, node_hour={"b200": 30.0})
        >>> [prices.cost(name, 9, 2) for name in ("l40s", "b200", "t4")]
        [9.0, 60.0, None]
        """
        node_price, gpu_price = self.node_hour.get(hardware), self.gpu_hour.get(hardware)
        if node_price is not None:
            return nodes * node_price
        return None if gpu_price is None else gpus * gpu_price
