"""Fit what engines take for layers that keep a state.

Their tables name convolution, pass and update alike, a row for each: of a first guess at both
kernels, a row is taken to be of the one that explains it better, a few times over. Rows that memory
could not have delivered found their state in the second-level cache, as a model's next layer would
not leave it, and shape nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.kernels import state
from costmodels.kernels.parameters import (
    StateConvolutionParameters,
    StateScanParameters,
    StateUpdateParameters,
)
from topology.base import Seconds
from topology.catalogue import Device, all_devices
from validate.fit.engine_tables import (
    HOLD,
    MICRO,
    NOWHERE,
    SYSTEMS,
    EngineFigure,
    Grouped,
    Row,
    Rows,
    columns,
    figure_of,
    seconds_of,
)
from validate.fit.least_squares import Judged, Vector, minimise
from validate.fit.records import Free, Ratio, fields_but, fit_record

StateParameters = StateConvolutionParameters | StateScanParameters | StateUpdateParameters
ROUNDS: Final = 5
KEYS_ALONE: Final = {("sglang", "0.5.10"), *(("trtllm", "1.3.0rc20"),)}
"""Tables whose gated delta rule convolves the features of keys alone."""
HALF_STATE_ENGINES: Final = {"trtllm"}
"""Engines whose gated delta rule keeps its state in 16 bits."""
CONVOLUTION_TABLES: Final = {("a100_sxm", "context")}
"""Tables without a pass: a system and a phase."""
MAMBA: Final = "-mamba2"
"""Ends the phases of tables that are of Mamba-2's convolution alone."""
CACHE_SPEEDUPS: Final = {"rtx-pro-6000": 4.0}
"""Times faster than memory that a second-level cache hands on a state: 134 MB in 24 us, 5.5 TB/s,
where memory has 1.6. Rows up to that much faster may still be of an update. Caches of others hold
less beside a memory that is hardly slower."""
SEQUENCE_US: Final = {"trtllm": 3.0, "sglang 0.5.10": 12.0}
"""Us of a sequence of 4096 features that a convolution begins anew, to start from."""


def states(rows: Rows) -> Grouped:
    """Read rows, each with its system and kernel: `conv`, `conv_step`, `delta`, `update`."""
    tables: dict[tuple[str, str, str], list[EngineFigure]] = {}
    for row in rows:
        phase = row["phase"] if "num_v_heads" in row else f"{row['phase']}{MAMBA}"
        figure = figure_of(row, _sizes(row), trait=f"{row['engine']} {row['version']}")
        tables.setdefault((row["system"], row["engine"], phase), []).append(figure)
    for (system, _, phase), figures in tables.items():
        names = ("conv_step", "update") if phase.startswith("generation") else ("conv", "delta")
        device = all_devices()[SYSTEMS[system][0]]
        single_kernel = (system, phase) in CONVOLUTION_TABLES or phase.endswith(MAMBA)
        parts = (figures, []) if single_kernel else _split_by_kernel(figures, device, names)
        for name, part in zip(names, parts, strict=True):
            for figure in _uncached_rows(part, device, name):
                yield (system, name), figure


def _sizes(row: Row) -> dict[str, float]:
    batch, tokens = float(row["batch_size"]), float(row["seq_len"])
    if "num_v_heads" in row:
        keys = float(row["num_k_heads"]) * float(row["head_k_dim"])
        values = float(row["num_v_heads"]) * float(row["head_v_dim"])
        keys_only = (row["engine"], row["version"]) in KEYS_ALONE or row[
            "engine"
        ] in HALF_STATE_ENGINES
        return {
            "tokens": tokens, "batch": batch, "convolved": keys if keys_only else 2 * keys + values,
            "heads": float(row["num_v_heads"]), "features": 2 * keys + 2 * values,
            "state": float(row["head_k_dim"]) * float(row["head_v_dim"]), "chunk": state.CHUNK,
            "state_bytes": 2.0 if row["engine"] in HALF_STATE_ENGINES else 4.0,
        }  # fmt: skip
    inner = float(row["nheads"]) * float(row["head_dim"])
    convolved = inner + 2 * float(row["n_groups"]) * float(row["d_state"])
    return {
        "tokens": tokens, "batch": batch, "convolved": convolved, "heads": float(row["nheads"]),
        "features": convolved + inner, "state": float(row["head_dim"]) * float(row["d_state"]),
        "chunk": float(row["chunk_size"]), "state_bytes": 4.0,
    }  # fmt: skip


def _split_by_kernel(
    figures: Sequence[EngineFigure], device: Device, names: tuple[str, str]
) -> tuple[list[EngineFigure], list[EngineFigure]]:
    """Sort rows of an engine's table by the kernel, of two, that explains each better."""
    records = [_start_record(name, figures) for name in names]
    parts: tuple[list[EngineFigure], list[EngineFigure]] = ([], [])
    measured = seconds_of(figures)
    for _ in range(ROUNDS):
        ratio = _ratio_of(figures, device)
        predicted = [ratio(record) * measured for record in records]
        misses = [
            np.maximum(
                np.log(measured / predicted_s),
                np.log(_cached_time(record, predicted_s, device) / measured),
            )
            for record, predicted_s in zip(records, predicted, strict=True)
        ]
        first_is_nearer = misses[0] < misses[1]
        parts = ([], [])
        for figure, is_first in zip(figures, first_is_nearer, strict=True):
            parts[0 if is_first else 1].append(figure)
        for index, (name, part) in enumerate(zip(names, parts, strict=True)):
            uncached = _uncached_rows(part, device, name)
            if uncached:
                start = _start_record(name, uncached)
                problem = _free_fields(start).problem(start, _ratio_of(uncached, device))
                records[index] = replace(start, **minimise(problem).values)  # type: ignore[arg-type]  # names are fields
    return parts


def _cached_time(record: StateParameters, predicted: Vector, device: Device) -> Vector:
    """Give what a kernel takes where a cache holds its state."""
    if not isinstance(record, StateUpdateParameters):
        return predicted
    return record.floor + (predicted - record.floor) / CACHE_SPEEDUPS.get(device.name, 1.0)


def _uncached_rows(
    figures: Sequence[EngineFigure], device: Device, name: str
) -> list[EngineFigure]:
    """Keep rows in whose time memory could deliver what a kernel reads and writes."""
    uncached = []
    for figure in figures:
        size = figure.sizes
        traffic = 2 * size["state_bytes"] * size["batch"] * size["heads"] * size["state"]
        if name.startswith("conv"):
            traffic = 4.0 * size["batch"] * (size["tokens"] + state.TAPS) * size["convolved"]
        if figure.seconds >= traffic / device.memory_bandwidth.value:
            uncached.append(figure)
    return uncached


def _start_record(name: str, figures: Sequence[EngineFigure]) -> StateParameters:
    """Give where the fit of a kernel starts."""
    if name.startswith("conv"):
        trait = figures[0].trait
        sequence_us = SEQUENCE_US.get(trait, SEQUENCE_US.get(trait.partition(" ")[0], 0.01))
        return StateConvolutionParameters(
            provenance=NOWHERE,
            floor=Seconds(3 * MICRO),
            sequence=Seconds((0.001 if name == "conv_step" else sequence_us) * MICRO),
            cycle_bytes=state.CYCLE_BYTES,
        )
    if name == "update":
        return StateUpdateParameters(
            provenance=NOWHERE, floor=Seconds(4 * MICRO), memory_efficiency=0.7
        )
    return StateScanParameters(
        provenance=NOWHERE,
        floor=Seconds(16 * MICRO),
        item=Seconds(5 * MICRO),
        step=Seconds(MICRO),
        passes=4.0,
    )


def _free_fields(start: StateParameters) -> Free:
    return Free(names=fields_but(start), limits={"passes": (1.0, 40.0)}, hold=HOLD)


def _ratio_of(figures: Sequence[EngineFigure], device: Device) -> Ratio:
    names = ("tokens", "heads", "features", "batch", "state", "chunk", "convolved", "state_bytes")
    tokens, heads, features, batch, size, chunk, convolved, state_bytes = columns(figures, *names)
    measured = seconds_of(figures)

    def ratio(record: StateParameters) -> Vector:
        if isinstance(record, StateConvolutionParameters):
            time = state.convolution_seconds(record, device, (tokens, convolved, batch))
        elif isinstance(record, StateUpdateParameters):
            time = state.update_seconds(record, device, (heads, batch), size, state_bytes)
        else:
            time = state.scan_seconds(record, device, (tokens, heads, features, batch), size, chunk)
        return time / measured

    return ratio


def fit_state(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[StateParameters, Judged]:
    """Fit one engine's kernel, or that of several, on one device."""
    start = _start_record(form, figures)
    return fit_record(figures, start, _free_fields(start), lambda subset: _ratio_of(subset, device))
