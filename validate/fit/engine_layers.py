"""Fit what serving engines take for whole layers: mixtures of experts.

Where rows are kept back, all of what one rank holds of one model are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from costmodels.expert_routing import routing_of
from costmodels.kernels import experts as layer
from costmodels.kernels.expert_loads import ExpertLoad, load
from costmodels.kernels.parameters import ExpertsParameters
from costmodels.kernels.tables import matmul_record
from topology.base import Seconds
from topology.base.values import dataclass
from topology.catalogue import Device
from validate.fit.engine_tables import (
    MICRO,
    NOWHERE,
    EngineFigure,
    Groups,
    column,
    figure_of,
    seconds_of,
)
from validate.fit.least_squares import Judged, Problem, Values, Vector, judge

EXPERTS: Final = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
    "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}  # fmt: skip
UNGATED: Final = {
    (hidden, inter, 512, 22) for hidden, inter in ((1024, 2688), (2048, 5120), (2048, 2688),
    (4096, 2688), (8192, 5120))
} | {(2688, 1856, 128, 6)}  # fmt: skip
"""Hidden and intermediate size, experts, and those of a token, of Nemotron 3: it has no gate."""
GATED_ALL: Final = {("sglang", "0.5.10"), ("vllm", "0.14.0")}
"""Tables that were measured with a gate for any model: Nemotron takes half as long again there."""
MULTIPLIED_ALL: Final = {("sglang", "0.5.10")}
"""Their tables give tokens that chose experts of other ranks to the first one here, as no server
does: with those experts elsewhere they say nothing."""
OTHERS: Final = {("vllm", "w4a16_mxfp4", "896")}
"""Engine, format and experts of a model that goes to another kernel than the others there do."""
HOLD: Final = 0.03
PASSES: Final = (0.01, 30.0)


def experts(rows: Iterable[Mapping[str, str]]) -> Groups:
    """Group layers of experts by system and format."""
    groups: dict[tuple[str, str], list[EngineFigure]] = {}
    for row in rows:
        elsewhere = row["moe_ep_size"] != "1"
        if elsewhere and (row["engine"], row["version"]) in MULTIPLIED_ALL:
            continue
        if (row["engine"], row["moe_dtype"], row["num_experts"]) in OTHERS:
            continue
        names = ("hidden_size", "inter_size", "num_experts", "topk")
        hidden, inter, experts, top_k = (int(row[name]) for name in names)
        sizes = {
            "tokens": float(row["num_tokens"]),
            "hidden": float(hidden),
            "intermediate": inter / float(row["moe_tp_size"]),
            "experts": float(experts),
            "top_k": float(top_k),
            "ep": float(row["moe_ep_size"]),
            "gated": float(_gated(row, (hidden, inter, experts, top_k))),
        }
        shares = (row["moe_tp_size"], row["moe_ep_size"])
        shape = f"experts {hidden} {inter} {experts} {top_k} {' '.join(shares)}"
        one = figure_of(row, sizes, trait=row["distribution"], source=shape)
        groups.setdefault((row["system"], EXPERTS[row["moe_dtype"]]), []).append(one)
    return groups


def _gated(row: Mapping[str, str], shape: tuple[int, int, int, int]) -> bool:
    return shape not in UNGATED or (row["engine"], row["version"]) in GATED_ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """Layers of a table, side by side."""

    loads: ExpertLoad
    sizes: Mapping[str, Vector]

    def time(self, made: layer.ExpertKernels) -> Vector:
        size, loads = self.sizes, self.loads
        columns = (1.0 + size["gated"]) * size["intermediate"]
        up = layer.product_time(made, loads, columns, size["hidden"])
        down = layer.product_time(made, loads, size["hidden"], size["intermediate"])
        rows, sides = size["tokens"] * size["top_k"], (size["hidden"], size["intermediate"])
        around = layer.around_time(made, loads.rows, rows, sides, spread=size["ep"] > 1)
        return np.asarray(up + down + around)


def _layers(figures: Sequence[EngineFigure]) -> _Layers:
    loads = [_load(figure) for figure in figures]
    return _Layers(
        loads=ExpertLoad(
            touched=np.array([one.touched for one in loads]),
            rows=np.array([one.rows for one in loads]),
            tiles=np.array([one.tiles for one in loads]),
        ),
        sizes={name: column(figures, name) for name in figures[0].sizes},
    )


def _load(figure: EngineFigure) -> ExpertLoad:
    size = figure.sizes
    routing = routing_of(figure.trait, int(size["experts"]), int(size["top_k"]))
    return load(np.array(size["tokens"]), routing, int(size["ep"]))


def fit_experts(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[ExpertsParameters, Judged]:
    """Fit one engine's layers of experts of one format, or those of several, on one device."""
    base = matmul_record(device, None)
    first = {
        "gain": 0.8,
        "memory": 0.9,
        "tile_overhead": 2 * MICRO,
        "fixed": 15 * MICRO,
        "spread": 5 * MICRO,
        "local_passes": 1.0,
        "passes": 1.0,
        "inner_passes": 1.0,
    }
    limits = {"gain": (0.05, 1.5), "memory": (0.2, 1.0 / base.memory_efficiency)}
    limits |= dict.fromkeys(("local_passes", "passes", "inner_passes"), PASSES)

    def build(values: Values) -> ExpertsParameters:
        times = {name: Seconds(values[name]) for name in ("tile_overhead", "fixed", "spread")}
        shares = {name: value for name, value in values.items() if name not in times}
        return ExpertsParameters(provenance=NOWHERE, **times, **shares)  # type: ignore[arg-type]  # names of shares

    def problem(subset: Sequence[EngineFigure]) -> Problem:
        layers, measured = _layers(subset), seconds_of(subset)

        def ratio(values: Values) -> Vector:
            return layers.time(layer.prepare_with(build(values), device, form)) / measured

        return Problem(first=first, ratio=ratio, hold=HOLD, limits=limits)

    judged = judge(figures, problem)
    return build(judged.values), judged
