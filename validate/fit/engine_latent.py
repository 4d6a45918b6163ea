"""Fit what engines take for latent attention: over prompts, of new tokens, products of a head.

Numbers of heads of a rank are kept back as a whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from costmodels.formats import FORMATS
from costmodels.kernels import latent, matmul
from costmodels.kernels.decode import CACHES
from costmodels.kernels.parameters import (
    HeadProductParameters,
    LatentContextParameters,
    LatentDecodeParameters,
)
from costmodels.kernels.tables import matmul_record
from topology.base import BytesPerSecond, Seconds, parse
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

KV: Final = {"bfloat16": "bf16", "fp8": "fp8"}
RANK: Final = {"pre": (512, 128), "post": (128, 512)}
"""Columns and inner size of the products before and after attention."""
HOLD: Final = 0.03
CONTEXT_TILES: Final = (64.0, 128.0)
DECODE_TILES: Final = (16.0, 64.0, 128.0)
CUT: Final = 256.0  # fewest keys that are worth a multiprocessor, where a kernel cuts
UNCUT: Final = 2.0**24
NEVER_CUT: Final = {("trtllm", "a100-sxm-80gb"), ("trtllm", "rtx-pro-6000")}
"""Engines that leave all keys of a request to one multiprocessor there: 0.1 us for each."""
GAINS: Final = (0.01, 1.3)


def latents(rows: Iterable[Mapping[str, str]]) -> Groups:
    """Group latent attention, over prompts or of new tokens, by system and format of the cache."""
    groups: dict[tuple[str, str], list[EngineFigure]] = {}
    for row in rows:
        keys = float(int(row["isl"]) + int(row["step"]))
        sizes = {
            "heads": float(row["num_heads"]),
            "queries": float(row["isl"]),
            "keys": keys,
            "batch": float(row["batch_size"]),
        }
        one = figure_of(row, sizes, source=f"latent {row['num_heads']} {row['batch_size']}")
        groups.setdefault((row["system"], KV[row["kv_cache_dtype"]]), []).append(one)
    return groups


def head_products(rows: Iterable[Mapping[str, str]]) -> Groups:
    """Group products of a head by system and format."""
    groups: dict[tuple[str, str], list[EngineFigure]] = {}
    for row in rows:
        columns, inner = RANK[row["op_name"].rpartition("_")[2]]
        sizes = {
            "rows": float(row["num_tokens"]),
            "columns": float(columns),
            "inner": float(inner),
            "heads": float(row["num_heads"]),
        }
        one = figure_of(row, sizes, source=f"heads {row['op_name']} {row['num_heads']}")
        groups.setdefault((row["system"], KV[row["bmm_dtype"]]), []).append(one)
    return groups


def _shape(figures: Sequence[EngineFigure]) -> tuple[Vector, Vector, Vector, Vector]:
    heads, queries, keys, batch = (
        column(figures, name) for name in ("heads", "queries", "keys", "batch")
    )
    return heads, queries, keys, batch


def fit_latent_context(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[LatentContextParameters, Judged]:
    """Fit one engine's latent attention over prompts on one device."""
    del form
    first = {"gain": 0.5, "item": MICRO, "fixed": 12 * MICRO, "passes": 1.0}

    def build(values: Values, tile: float) -> LatentContextParameters:
        return LatentContextParameters(
            provenance=NOWHERE,
            gain=values["gain"],
            item=Seconds(values["item"]),
            fixed=Seconds(values["fixed"]),
            passes=values["passes"],
            tile=tile,
        )

    def problem(subset: Sequence[EngineFigure], tile: float) -> Problem:
        shape, measured = _shape(subset), seconds_of(subset)

        def ratio(values: Values) -> Vector:
            return latent.context_time(build(values, tile), device, shape) / measured

        return Problem(first=first, ratio=ratio, hold=HOLD, limits={"gain": GAINS})

    tile, judged = _best(figures, problem, CONTEXT_TILES)
    return build(judged.values, tile), judged


def fit_latent_decode(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[LatentDecodeParameters, Judged]:
    """Fit one engine's latent attention of new tokens on one device."""
    least = UNCUT if (figures[0].engine, device.name) in NEVER_CUT else CUT
    first = {
        "gain": 0.5,
        "load_bandwidth": parse("50 GB/s", "B/s"),
        "item": MICRO,
        "merge": 2 * MICRO,
        "memory_efficiency": _reached(figures, device, form),
        "floor": 10 * MICRO,
        "passes": 1.0,
    }

    def build(values: Values, tile: float) -> LatentDecodeParameters:
        times = {name: Seconds(values[name]) for name in ("item", "merge", "floor")}
        return LatentDecodeParameters(
            provenance=NOWHERE,
            gain=values["gain"],
            load_bandwidth=BytesPerSecond(values["load_bandwidth"]),
            memory_efficiency=values["memory_efficiency"],
            passes=values["passes"],
            tile=tile,
            least=least,
            **times,
        )

    def problem(subset: Sequence[EngineFigure], tile: float) -> Problem:
        shape, measured = _shape(subset), seconds_of(subset)

        def ratio(values: Values) -> Vector:
            made = build(values, tile)
            return latent.decode_time(made, device, shape, cache=form) / measured

        shares = frozenset({"memory_efficiency"})
        return Problem(first=first, ratio=ratio, hold=HOLD, shares=shares, limits={"gain": GAINS})

    tile, judged = _best(figures, problem, DECODE_TILES)
    return build(judged.values, tile), judged


def _reached(figures: Sequence[EngineFigure], device: Device, form: str) -> float:
    """Share of the bandwidth that the largest caches were read at."""
    _, _, keys, batch = _shape(figures)
    moved = batch * keys * latent.ROW[0] * CACHES[form]
    large = moved >= np.quantile(moved, 0.9)
    share = moved[large] / seconds_of(figures)[large] / device.memory_bandwidth.value
    return float(np.clip(np.median(share), 0.02, 0.95))


def fit_head_products(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[HeadProductParameters, Judged]:
    """Fit one engine's products of a head, or those of several, on one device."""
    base = matmul_record(device, None)
    first = {
        "gain": 1.0,
        "memory": 0.9,
        "tile_overhead": base.tile_overhead,
        "fixed": MICRO,
        "passes": 0.1 if form in ("bf16", "fp16") else 2.0,
    }

    def build(values: Values) -> HeadProductParameters:
        times = {name: Seconds(values[name]) for name in ("tile_overhead", "fixed")}
        return HeadProductParameters(
            provenance=NOWHERE,
            gain=values["gain"],
            memory=values["memory"],
            passes=values["passes"],
            split_overhead=base.split_overhead,
            **times,
        )

    def problem(subset: Sequence[EngineFigure]) -> Problem:
        names = ("rows", "columns", "inner", "heads")
        sizes, measured = [column(subset, name) for name in names], seconds_of(subset)

        def ratio(values: Values) -> Vector:
            machine = matmul.prepare_with(base, device, form, build(values))
            return np.asarray(matmul.product_time(machine, *sizes) / measured)

        limits = {"gain": (0.1, 1.5), "memory": (0.1, 1.0 / base.memory_efficiency)}
        return Problem(first=first, ratio=ratio, hold=HOLD, limits=limits)

    assert form in FORMATS
    judged = judge(figures, problem)
    return build(judged.values), judged


def _best(
    figures: Sequence[EngineFigure],
    problem: Callable[..., Problem],
    tiles: Sequence[float],
) -> tuple[float, Judged]:
    """Fit with each tile, and take the one that explains most rows."""
    judged = {tile: judge(figures, partial(problem, tile=tile)) for tile in tiles}
    tile = min(judged, key=lambda size: judged[size].median_error)
    return tile, judged[tile]
