"""Fit what serving engines take for whole layers: mixtures of experts.

Where rows are kept back, all of what one rank holds of one model are.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from costmodels.expert_routing import routing_of
from costmodels.kernels import experts as layer
from costmodels.kernels.expert_loads import ExpertLoad, load
from costmodels.kernels.parameters import ExpertsParameters
from costmodels.kernels.tables import matmul_record
from topology.base import Seconds
from topology.catalogue import Device
from validate.fit.engine_tables import (
    HOLD,
    MICRO,
    NOWHERE,
    EngineFigure,
    Grouped,
    Row,
    Rows,
    columns,
    figure_of,
    seconds_of,
    sizes_of,
)
from validate.fit.least_squares import Judged, Vector
from validate.fit.records import Free, Ratio, fields_but, fit_record

EXPERTS: Final = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
    "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}  # fmt: skip
UNGATED_SHAPES: Final = {
    (hidden, inter, 512, 22) for hidden, inter in ((1024, 2688), (2048, 5120), (2048, 2688),
    (4096, 2688), (8192, 5120))
} | {(2688, 1856, 128, 6)}  # fmt: skip
"""Hidden and intermediate size, experts, and those of a token, of Nemotron 3: it has no gate."""
GATED_ALL: Final = {("sglang", "0.5.10"), ("vllm", "0.14.0")}
"""Tables that were measured with a gate for any model: Nemotron takes half as long again there."""
MULTIPLIED_ALL: Final = {("sglang", "0.5.10")}
"""Their tables give tokens that chose experts of other ranks to the first one here, as no server
does: with those experts elsewhere they say nothing."""
OTHER_KERNELS: Final = {("vllm", "w4a16_mxfp4", "896")}
"""Engine, format and experts of a model that goes to another kernel than the others there do."""
PASSES: Final = (0.01, 30.0)
UNTUNED_RELEASES: Final = ("a100-sxm-80gb", "bf16", {"vllm", "sglang"})
"""GPU, format and engines of tables whose releases (vLLM 0.14, SGLang 0.5.10) have hardly a tuned
tile for these: `get_default_config` of their fused_moe gives `BLOCKS`. Those of later releases on
other GPUs show nothing of it."""
BLOCKS: Final = (16.0, 64.0)


def experts(rows: Rows) -> Grouped:
    """Read layers of experts, each with its system and format."""
    for row in rows:
        elsewhere = row["moe_ep_size"] != "1"
        if elsewhere and (row["engine"], row["version"]) in MULTIPLIED_ALL:
            continue
        if (row["engine"], row["moe_dtype"], row["num_experts"]) in OTHER_KERNELS:
            continue
        shape = [row[name] for name in ("hidden_size", "inter_size", "num_experts", "topk")]
        sizes = {
            **sizes_of(row, tokens="num_tokens", hidden="hidden_size"),
            "intermediate": float(row["inter_size"]) / float(row["moe_tp_size"]),
            **sizes_of(row, experts="num_experts", top_k="topk", ep="moe_ep_size"),
            "gated": float(_gated(row, tuple(map(int, shape)))),
        }
        source = " ".join(["experts", *shape, row["moe_tp_size"], row["moe_ep_size"]])
        figure = figure_of(row, sizes, trait=row["distribution"], source=source)
        yield (row["system"], EXPERTS[row["moe_dtype"]]), figure


def _gated(row: Row, shape: tuple[int, ...]) -> bool:
    return shape not in UNGATED_SHAPES or (row["engine"], row["version"]) in GATED_ALL


def _loads(figures: Sequence[EngineFigure]) -> Iterator[ExpertLoad]:
    for figure in figures:
        size = figure.sizes
        routing = routing_of(figure.trait, int(size["experts"]), int(size["top_k"]))
        yield load(np.array(size["tokens"]), routing, int(size["ep"]))


def fit_experts(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[ExpertsParameters, Judged]:
    """Fit one engine's layers of experts of one format, or those of several, on one device."""
    engines = {figure.engine for figure in figures}
    untuned = UNTUNED_RELEASES[:2] == (device.name, form) and engines <= UNTUNED_RELEASES[2]
    start = ExpertsParameters(
        provenance=NOWHERE,
        gain=0.8,
        memory=0.9,
        tile_overhead=Seconds(2 * MICRO),
        fixed=Seconds(15 * MICRO),
        spread=Seconds(5 * MICRO),
        local_passes=1.0,
        passes=1.0,
        inner_passes=1.0,
        blocks=BLOCKS if untuned else (),
    )
    memory_limit = 1.0 / matmul_record(device, None).memory_efficiency
    limits = {"gain": (0.05, 1.5), "memory": (0.2, memory_limit)}
    limits |= dict.fromkeys(("local_passes", "passes", "inner_passes"), PASSES)

    def ratio_of(subset: Sequence[EngineFigure]) -> Ratio:
        figure_loads, measured = list(_loads(subset)), seconds_of(subset)
        loads = ExpertLoad(
            touched=np.array([figure_load.touched for figure_load in figure_loads]),
            rows=np.array([figure_load.rows for figure_load in figure_loads]),
            tiles=np.array([figure_load.tiles for figure_load in figure_loads]),
            crowded=np.array([figure_load.crowded for figure_load in figure_loads]),
        )
        names = ("tokens", "top_k", "hidden", "intermediate", "gated", "ep")
        tokens, top_k, hidden, inner, gated, ep = columns(subset, *names)

        def ratio(record: ExpertsParameters) -> Vector:
            prepared = layer.prepare_with(record, device, form)
            up = layer.product_time(prepared, loads, (1.0 + gated) * inner, hidden)
            down = layer.product_time(prepared, loads, hidden, inner)
            widths = (hidden, inner)
            around_s = layer.around_time(
                prepared, loads.rows, tokens * top_k, widths, spread=ep > 1
            )
            return np.asarray((up + down + around_s) / measured)

        return ratio

    free = Free(names=fields_but(start, "blocks"), limits=limits, hold=HOLD)
    return fit_record(figures, start, free, ratio_of)
