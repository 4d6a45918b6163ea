"""Fit what engines take for latent attention: over prompts, of new tokens, products of a head.

Numbers of heads of a rank are kept back as a whole.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.kernels import latent, matmul
from costmodels.kernels.decode import CACHES as BYTES
from costmodels.kernels.parameters import (
    HeadProductParameters,
    LatentContextParameters,
    LatentDecodeParameters,
    Parameters,
    QuantisedParameters,
)
from costmodels.kernels.tables import matmul_record
from topology.base import BytesPerSecond, Seconds, parse
from topology.catalogue import Device
from validate.fit.engine_tables import (
    CACHES,
    HOLD,
    MICRO,
    NOWHERE,
    EngineFigure,
    Grouped,
    Rows,
    columns,
    figure_of,
    seconds_of,
    sizes_of,
)
from validate.fit.least_squares import Judged, Vector
from validate.fit.records import Free, Ratio, fields_but, fit_record

RANK: Final = {"pre": (512, 128), "post": (128, 512)}
"""Columns and inner size of the products before and after attention."""
CONTEXT_TILES: Final = (64.0, 128.0)
DECODE_TILES: Final = (16.0, 64.0, 128.0)
CUT_KEYS: Final = 256.0  # fewest keys that are worth a multiprocessor, where a kernel cuts
UNCUT_KEYS: Final = 2.0**24
NEVER_CUT: Final = {("trtllm", "a100-sxm-80gb"), ("trtllm", "rtx-pro-6000")}
"""Engines that leave all keys of a request to one multiprocessor there: 0.1 us for each."""
GAINS: Final = (0.01, 1.3)


def latents(rows: Rows) -> Grouped:
    """Read latent attention, over prompts or of new tokens, with its system and cache's format."""
    for row in rows:
        sizes = {
            **sizes_of(row, heads="num_heads", queries="isl"),
            "keys": float(int(row["isl"]) + int(row["step"])),
            **sizes_of(row, batch="batch_size"),
        }
        source = f"latent {row['num_heads']} {row['batch_size']}"
        yield (row["system"], CACHES[row["kv_cache_dtype"]]), figure_of(row, sizes, source=source)


def head_products(rows: Rows) -> Grouped:
    """Read products of a head, each with its system and format."""
    for row in rows:
        width, inner = RANK[row["op_name"].rpartition("_")[2]]
        sizes = {
            **sizes_of(row, rows="num_tokens"),
            "columns": float(width),
            "inner": float(inner),
            **sizes_of(row, heads="num_heads"),
        }
        source = f"heads {row['op_name']} {row['num_heads']}"
        yield (row["system"], CACHES[row["bmm_dtype"]]), figure_of(row, sizes, source=source)


def _shape(figures: Sequence[EngineFigure]) -> tuple[Vector, Vector, Vector, Vector]:
    heads, queries, keys, batch = columns(figures, "heads", "queries", "keys", "batch")
    return heads, queries, keys, batch


def fit_latent_context(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[LatentContextParameters, Judged]:
    """Fit one engine's latent attention over prompts on one device."""
    del form
    start = LatentContextParameters(
        provenance=NOWHERE,
        gain=0.5,
        item=Seconds(MICRO),
        fixed=Seconds(12 * MICRO),
        passes=1.0,
        tile=0.0,
    )

    def ratio_of(subset: Sequence[EngineFigure]) -> Ratio:
        shape, measured = _shape(subset), seconds_of(subset)
        return lambda record: latent.context_time(record, device, shape) / measured

    free = Free(names=fields_but(start, "tile"), limits={"gain": GAINS}, hold=HOLD)
    fits = [
        fit_record(figures, replace(start, tile=tile), free, ratio_of) for tile in CONTEXT_TILES
    ]
    return _best_fit(fits)


def fit_latent_decode(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[LatentDecodeParameters, Judged]:
    """Fit one engine's latent attention of new tokens on one device."""
    start = LatentDecodeParameters(
        provenance=NOWHERE,
        gain=0.5,
        load_bandwidth=BytesPerSecond(parse("50 GB/s", "B/s")),
        item=Seconds(MICRO),
        merge=Seconds(2 * MICRO),
        memory_efficiency=_bandwidth_share(figures, device, form),
        floor=Seconds(10 * MICRO),
        passes=1.0,
        tile=0.0,
        least=UNCUT_KEYS if (figures[0].engine, device.name) in NEVER_CUT else CUT_KEYS,
    )

    def ratio_of(subset: Sequence[EngineFigure]) -> Ratio:
        shape, measured = _shape(subset), seconds_of(subset)
        return lambda record: latent.decode_time(record, device, shape, cache=form) / measured

    free = Free(names=fields_but(start, "tile", "least"), limits={"gain": GAINS}, hold=HOLD)
    fits = [fit_record(figures, replace(start, tile=tile), free, ratio_of) for tile in DECODE_TILES]
    return _best_fit(fits)


def _best_fit(fits: Iterable[tuple[Parameters, Judged]]) -> tuple[Parameters, Judged]:
    """Take the fit, of those with each tile, that explains most rows."""
    return min(fits, key=lambda fit: fit[1].median_error)


def _bandwidth_share(figures: Sequence[EngineFigure], device: Device, form: str) -> float:
    """Share of the bandwidth that the largest caches were read at."""
    _, _, keys, batch = _shape(figures)
    cache_bytes = batch * keys * latent.ROW[0] * BYTES[form]
    is_large = cache_bytes >= np.quantile(cache_bytes, 0.9)
    share = cache_bytes[is_large] / seconds_of(figures)[is_large] / device.memory_bandwidth.value
    return float(np.clip(np.median(share), 0.02, 0.95))


def fit_head_products(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[HeadProductParameters, Judged]:
    """Fit one engine's products of a head, or those of several, on one device."""
    base = matmul_record(device, None)
    start = HeadProductParameters(
        provenance=NOWHERE,
        gain=1.0,
        memory=0.9,
        tile_overhead=base.tile_overhead,
        split_overhead=base.split_overhead,
        fixed=Seconds(MICRO),
        passes=0.1 if form == "bf16" else 2.0,
    )

    limits = {"gain": (0.1, 1.5), "memory": (0.1, 1.0 / base.memory_efficiency)}
    free = Free(names=fields_but(start, "split_overhead", "wait"), limits=limits, hold=HOLD)
    ratio_of = product_ratios(device, form, "rows", "columns", "inner", "heads")
    return fit_record(figures, start, free, ratio_of)


def product_ratios(
    device: Device, form: str, *names: str
) -> Callable[[Sequence[EngineFigure]], Ratio]:
    """Make the ratios of products of one format, whose sizes have these names."""
    base = matmul_record(device, None)

    def ratio_of(subset: Sequence[EngineFigure]) -> Ratio:
        sizes, measured = columns(subset, *names), seconds_of(subset)

        def ratio(record: HeadProductParameters | QuantisedParameters) -> Vector:
            machine = matmul.prepare_with(base, device, form, record)
            return np.asarray(matmul.product_time(machine, *sizes) / measured)

        return ratio

    return ratio_of
