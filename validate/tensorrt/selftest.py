"""The eight collectives of TensorRT on the GPUs of this machine: their numbers, and their times.

``planner doctor --run`` makes an engine of each, as a folder that the exported runner runs like any
plan. Ranks start with numbers of their own, and what each is left with is held against numpy. A
step is one graph of so many calls that the host's part of it is small.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.collectives.operations import REDUCING_OPS, ROOTED_OPS
from planner.engines.tables import allowed
from planner.engines.tensorrt import dotted
from planner.export.tensorrt import network_files
from planner.tensorrt import SCHEMA, EngineNetwork, document_of
from planner.tensorrt.network import Layer, Value
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.library import Document, is_rtx, load, numbers, version
from topology.base import KIB, MIB
from topology.base.values import dataclass
from validate.fit.rows import Row, line
from validate.plans import system
from validate.tensorrt.evaluate import Array, EngineMessage, deliver
from validate.tensorrt.start import Execution, Judge, RankResult, build_and_run

Tell = Callable[[str], None]
SIZES: Final = (64 * KIB, MIB, 16 * MIB)
"""Bytes of a message: the larger buffer of one rank."""
WIDTH: Final = 256
"""Numbers of a row."""
CALLS: Final = 50
"""Calls of a collective in a step."""
STEPS: Final = 10
"""Steps, the first of which is no graph and the second of which is warm."""
COLD_STEPS: Final = 2
BOUND: Final = 1 / 2**16
"""Largest error of 32-bit sums, of the largest number."""
MODE: Final = "tensorrt"
"""How they were run, as rows say it."""
ROWS: Final = "rows.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of one collective: errors and rows by size, or why it did not run."""

    op: str
    error: float = 0.0
    rows: tuple[Row, ...] = ()
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {**asdict(self), "right": self.right}

    @property
    def right(self) -> bool:
        """Whether it ran, and gave the right numbers."""
        return not self.reason and self.error <= BOUND


Ran = str | Sequence[Tried]
"""What became of all collectives, or why none was run."""


def run_all(gpus: int, results: Path, tell: Tell) -> Ran:
    """Run every collective that the installed TensorRT has, on so many GPUs of this host.

    results : folder for engines and logs, and for ``rows.jsonl``, their times as calibrate's rows.
    """
    reason = obstacle(gpus)
    if reason:
        return reason
    installed = numbers(version(load()))
    ops = [op for op, since in allowed().since.items() if since <= installed]
    outcomes = [_try_collective(op, gpus, results, tell) for op in ops]
    rows = [row for collective in outcomes for row in collective.rows]
    system.write(results / ROWS, "".join(f"{line(row)}\n" for row in rows))
    return outcomes


def obstacle(gpus: int) -> str:
    """Say why no collective can be run on a machine of so many GPUs; empty where some can."""
    if gpus < 2:
        return f"{gpus} GPUs here, wanted 2 or more"
    try:
        library = load()
    except RunError as error:
        return str(error)
    if is_rtx(library):
        return "TensorRT-RTX runs no collectives"
    installed = numbers(version(library))
    return "" if installed >= allowed().first else f"TensorRT {version(library)} has no collectives"


def _try_collective(op: str, gpus: int, results: Path, tell: Tell) -> Tried:
    execution = Execution(weights="drawn", steps=STEPS, graph=True)
    worst, rows = 0.0, list[Row]()
    for size in SIZES:
        tell(f"{op} of {size} bytes on {gpus} GPUs")
        path = results / f"{op}.{size}"
        files = folder_of(op, size, gpus)
        judge = _rank_judge(expected(json.loads(files["plan.json"]), op, path / "inputs"))
        try:
            ranks, _ = build_and_run(files, path, execution, judge, tell)
        except RunError as error:
            return Tried(op=op, rows=tuple(rows), reason=" ".join(str(error).split()))
        worst = max(worst, *(rank.error for rank in ranks))
        rows.append(_row(op, size, ranks))
    return Tried(op=op, error=worst, rows=tuple(rows))


def _row(op: str, size: int, ranks: Sequence[RankResult]) -> Row:
    """Take the slowest rank of each warm step, as calibrate's rows have times."""
    steps = zip(*(rank.seconds[COLD_STEPS:] for rank in ranks), strict=True)
    times = sorted(max(step) / CALLS for step in steps)
    values = {
        "seconds": times[len(times) // 2],
        "low": times[0],
        "high": times[9 * len(times) // 10],
        "repeats": float(len(times)),
    }
    sizes: dict[str, int | str] = {"op": op, "bytes": size}
    key = f"collective op={op} bytes={size}"
    return Row(key=key, family="collective", sizes=sizes, mode=MODE, values=values)


def network_of(op: str, size: int, ranks: int) -> EngineNetwork:
    """Write the network of one collective, whose message is about `size` bytes."""
    share = max(1, size // (4 * WIDTH * ranks))
    full_shape, share_shape = (share * ranks, WIDTH), (share, WIDTH)
    input_shape = share_shape if op in ("all_gather", "gather") else full_shape
    output_shape = share_shape if op in ("reduce_scatter", "scatter") else full_shape
    out = Value("met", output_shape, "fp32")
    attributes = {
        "operation": op,
        "reduce": "SUM" if op in REDUCING_OPS else "NONE",
        "root": 0 if op in ROOTED_OPS else -1,
        "axis": "all",
        "ranks": ranks,
    }
    layer = Layer(
        kind="collective", name=op, inputs=("given",), outputs=(out,), attributes=attributes
    )
    return EngineNetwork(
        name=op,
        axes=(("all", ranks),),
        inputs=(Value("given", input_shape, "fp32"),),
        outputs=(("made", out),),
        layers=(layer,),
        constants={},
        tables={},
    )


def folder_of(op: str, size: int, ranks: int) -> dict[str, bytes]:
    """Return the files of a folder that runs one collective many times a step."""
    network = network_of(op, size, ranks)
    ((input_value,), ((_, output_value),)) = network.inputs, network.outputs
    rows = input_value.shape[0]
    plan: dict[str, object] = {
        "schema": SCHEMA,
        "model": op,
        "plan": f"{ranks} ranks",
        "hardware": "this machine",
        "precision": "fp32",
        "engines": [{"name": op}],
        "buffers": {
            "given": _buffer(input_value, {"name": "given", "forward": 0}),
            "made": _buffer(output_value, None),
        },
        "groups": {op: [list(range(ranks))]},
        "once": [],
        "each_step": [
            {"engine": op, "bind": {"given": ["given", 0], "made": ["made", 0]}}
        ] * CALLS,
        "steps": STEPS,
        "output": "made",
        "ranks": [
            {
                "rank": rank, "device": rank, "host": 0,
                "forward": 0, "sample": rank * rows, "samples": ranks * rows,
            }
            for rank in range(ranks)
        ],
        "needs": _needs(op),
        "environment": {},
        "checkpoint": {},
        "tensorrt_version": version(load()),
    }  # fmt: skip
    plan["digest"] = harness.digest_of(plan, [document_of(network)])
    return {"plan.json": json.dumps(plan).encode(), **network_files([network])}


def _buffer(value: Value, source: Mapping[str, object] | None) -> dict[str, object]:
    return {"shape": list(value.shape), "dtype": value.dtype, "given": source}


def _needs(op: str) -> dict[str, str]:
    releases = allowed()
    nccl = releases.nccl_all_to_all if op == "all_to_all" else releases.nccl
    return {"tensorrt": dotted(releases.since[op]), "nccl": dotted(nccl)}


def expected(plan: Document, op: str, inputs: Path) -> list[Array | None]:
    """Return what every rank is left with; None where a collective says nothing of it.

    inputs : folder of numbers to start with, which are drawn where there is none.
    """
    shape, ranks = tuple(plan["buffers"]["given"]["shape"]), plan["ranks"]
    draw_input = harness.given_from(inputs)
    all_inputs = draw_input("given", 0, (ranks[0]["samples"], *shape[1:])).astype(np.float64)
    members = tuple(range(len(ranks)))
    messages = [
        EngineMessage(operation=op, members=members, given=all_inputs[start : start + shape[0]])
        for start in (rank["sample"] for rank in ranks)
    ]
    root_only = op in ("reduce", "gather")
    return [None if root_only and rank else result for rank, result in enumerate(deliver(messages))]


def _rank_judge(expected_outputs: Sequence[Array | None]) -> Judge:
    """Make what compares a rank's numbers with those that it is to have."""

    def error(folder: harness.Folder, rank: int) -> float:
        target = expected_outputs[rank]
        if target is None:
            return 0.0
        out = harness.result_of(folder.path, rank).output
        return float(np.abs(out - target).max() / np.abs(target).max())

    return error
