"""Fit what engines take for layers that keep a state.

Their tables name convolution, pass and update alike, a row for each: of a first guess at both
kernels, a row is taken to be of the one that explains it better, a few times over. Rows that memory
could not have delivered found their state in the second-level cache, as a model's next layer would
not leave it, and shape nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    MICRO,
    NOWHERE,
    SYSTEMS,
    EngineFigure,
    Groups,
    column,
    figure_of,
    seconds_of,
)
from validate.fit.least_squares import Judged, Problem, Values, Vector, judge, minimise

StateParameters = StateConvolutionParameters | StateScanParameters | StateUpdateParameters
HOLD: Final = 0.03
ROUNDS: Final = 5
KEYS_ALONE: Final = {("sglang", "0.5.10"), *(("trtllm", "1.3.0rc20"),)}
"""Tables whose gated delta rule convolves the features of keys alone."""
HALVED: Final = {"trtllm"}
"""Engines whose gated delta rule keeps its state in 16 bits."""
CONVOLVED: Final = {("a100_sxm", "context")}
"""Tables without a pass: a system and a phase."""
MAMBA: Final = "-mamba2"
"""Ends the phases of tables that are of Mamba-2's convolution alone."""
SLOW: Final = {"trtllm": 3.0, "sglang 0.5.10": 12.0}
"""Us of a sequence of 4096 features that a convolution begins anew, to start from."""


def states(rows: Iterable[Mapping[str, str]]) -> Groups:
    """Group rows by system and kernel: ``conv``, ``conv_step``, ``delta``, ``update``."""
    tables: dict[tuple[str, str, str], list[EngineFigure]] = {}
    for row in rows:
        phase = row["phase"] if "num_v_heads" in row else f"{row['phase']}{MAMBA}"
        one = figure_of(row, _sizes(row), trait=f"{row['engine']} {row['version']}")
        tables.setdefault((row["system"], row["engine"], phase), []).append(one)
    groups: dict[tuple[str, str], list[EngineFigure]] = {}
    for (system, _, phase), figures in tables.items():
        names = ("conv_step", "update") if phase.startswith("generation") else ("conv", "delta")
        device = all_devices()[SYSTEMS[system][0]]
        only = (system, phase) in CONVOLVED or phase.endswith(MAMBA)
        parts = (figures, []) if only else _told_apart(figures, device, names)
        for name, part in zip(names, parts, strict=True):
            kept = [one for one in part if one.seconds >= _least(one, device, name)]
            groups.setdefault((system, name), []).extend(kept)
    return {key: figures for key, figures in groups.items() if figures}


def _sizes(row: Mapping[str, str]) -> dict[str, float]:
    batch, tokens = float(row["batch_size"]), float(row["seq_len"])
    if "num_v_heads" in row:
        keys = float(row["num_k_heads"]) * float(row["head_k_dim"])
        values = float(row["num_v_heads"]) * float(row["head_v_dim"])
        alone = (row["engine"], row["version"]) in KEYS_ALONE or row["engine"] in HALVED
        return {
            "tokens": tokens, "batch": batch, "convolved": keys if alone else 2 * keys + values,
            "heads": float(row["num_v_heads"]), "features": 2 * keys + 2 * values,
            "state": float(row["head_k_dim"]) * float(row["head_v_dim"]), "chunk": state.CHUNK,
            "state_bytes": 2.0 if row["engine"] in HALVED else 4.0,
        }  # fmt: skip
    inner = float(row["nheads"]) * float(row["head_dim"])
    whole = inner + 2 * float(row["n_groups"]) * float(row["d_state"])
    return {
        "tokens": tokens, "batch": batch, "convolved": whole, "heads": float(row["nheads"]),
        "features": whole + inner, "state": float(row["head_dim"]) * float(row["d_state"]),
        "chunk": float(row["chunk_size"]), "state_bytes": 4.0,
    }  # fmt: skip


def _told_apart(
    figures: Sequence[EngineFigure], device: Device, names: tuple[str, str]
) -> tuple[list[EngineFigure], list[EngineFigure]]:
    """Sort rows of an engine's table by the kernel, of two, that explains each better."""
    values: list[Values] = [_first(name, figures) for name in names]
    parts: tuple[list[EngineFigure], list[EngineFigure]] = ([], [])
    for _ in range(ROUNDS):
        misses = [
            np.abs(np.log(_ratio(figures, device, name)(one)))
            for name, one in zip(names, values, strict=True)
        ]
        nearer = misses[0] < misses[1]
        parts = ([], [])
        for one, is_first in zip(figures, nearer, strict=True):
            parts[0 if is_first else 1].append(one)
        for place, (name, part) in enumerate(zip(names, parts, strict=True)):
            kept = [one for one in part if one.seconds >= _least(one, device, name)]
            if kept:
                values[place] = minimise(_problem(kept, device, name)).values
    return parts


def _least(one: EngineFigure, device: Device, name: str) -> float:
    """Seconds below which memory could not deliver what a kernel reads and writes."""
    size = one.sizes
    kept = 2 * size["state_bytes"] * size["batch"] * size["heads"] * size["state"]
    moved = 4.0 * size["batch"] * (size["tokens"] + state.TAPS) * size["convolved"]
    return (moved if name.startswith("conv") else kept) / device.memory_bandwidth.value


def _first(name: str, figures: Sequence[EngineFigure]) -> dict[str, float]:
    if name.startswith("conv"):
        trait = figures[0].trait
        slow = SLOW.get(trait, SLOW.get(trait.partition(" ")[0], 0.01))
        sequence = (0.001 if name == "conv_step" else slow) * MICRO
        return {"floor": 3 * MICRO, "sequence": sequence, "memory_efficiency": 0.6}
    if name == "update":
        return {"floor": 4 * MICRO, "memory_efficiency": 0.7}
    return {"floor": 16 * MICRO, "item": 5 * MICRO, "step": MICRO, "passes": 4.0}


def _build(name: str, values: Values) -> StateParameters:
    floor = Seconds(values["floor"])
    if name.startswith("conv"):
        return StateConvolutionParameters(
            provenance=NOWHERE,
            floor=floor,
            sequence=Seconds(values["sequence"]),
            memory_efficiency=values["memory_efficiency"],
        )
    if name == "update":
        return StateUpdateParameters(
            provenance=NOWHERE, floor=floor, memory_efficiency=values["memory_efficiency"]
        )
    return StateScanParameters(
        provenance=NOWHERE,
        floor=floor,
        item=Seconds(values["item"]),
        step=Seconds(values["step"]),
        passes=values["passes"],
    )


def _time(figures: Sequence[EngineFigure], device: Device, made: StateParameters) -> Vector:
    tokens, heads, features, batch, size, chunk = (
        column(figures, name) for name in ("tokens", "heads", "features", "batch", "state", "chunk")
    )
    if isinstance(made, StateConvolutionParameters):
        return state.convolved(made, device, (tokens, column(figures, "convolved"), batch))
    if isinstance(made, StateUpdateParameters):
        each = column(figures, "state_bytes")
        return state.updated(made, device, (heads, batch), size, each)
    return state.scanned(made, device, (tokens, heads, features, batch), size, chunk)


def _ratio(
    figures: Sequence[EngineFigure], device: Device, name: str
) -> Callable[[Values], Vector]:
    measured = seconds_of(figures)

    def ratio(values: Values) -> Vector:
        return _time(figures, device, _build(name, values)) / measured

    return ratio


def _problem(figures: Sequence[EngineFigure], device: Device, name: str) -> Problem:
    return Problem(
        first=_first(name, figures),
        ratio=_ratio(figures, device, name),
        hold=HOLD,
        shares=frozenset({"memory_efficiency"}),
        limits={"passes": (1.0, 40.0)},
    )


def fit_state(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[StateParameters, Judged]:
    """Fit one engine's kernel, or that of several, on one device."""
    judged = judge(figures, lambda subset: _problem(subset, device, form))
    return _build(form, judged.values), judged
