"""In what order the engines of a plan run, on which buffers, and which ranks talk to each other.

A call binds an engine's inputs and outputs to buffers, or to one place of a buffer that holds
several; a copy moves a buffer's contents to another. Everything is the same on all ranks; `ranks`
says where each differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from costmodels.program import Program
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.tensorrt.network import Network, Value
from topology.base import InputError

Bind = dict[str, list[object]]
Call = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Buffers by name, with what they start with."""

    found: dict[str, dict[str, object]] = field(default_factory=dict)

    def add(self, value: Value, name: str, given: Mapping[str, object] | None = None) -> None:
        """Add a buffer of a value's shape; what is known of it already stays."""
        known = self.found.get(name, {"given": None})
        made = {"shape": list(value.shape), "dtype": value.dtype, "given": known["given"] or given}
        self.found[name] = made

    def many(self, value: Value, name: str, count: int) -> None:
        """Add a buffer that holds a value `count` times."""
        self.found[name] = {
            "shape": [count, *value.shape],
            "dtype": value.dtype,
            "given": None,
        }


def schedule_of(
    networks: Sequence[Network], program: Program, workload: Workload, plan: Plan
) -> dict[str, object]:
    """Return calls, buffers, communicators and ranks as a document."""
    by_name = {network.name: network for network in networks}
    buffers = _Buffers()
    passes = max(1, workload.passes // plan.degree("cfg"))
    if "forward" in by_name:
        once, each = _diffusion(by_name, program, passes, buffers)
    else:
        once, each = _decoder(by_name, buffers), []
    return {
        "steps": _number(_steps(program)),
        "once": once,
        "each_step": each,
        "output": program.output.name,
        "buffers": buffers.found,
        "communicators": {
            network.name: communicators(network, plan) for network in networks if network.ranks > 1
        },
        "ranks": [_rank(rank, plan, workload, passes) for rank in range(plan.gpus)],
    }


def communicators(network: Network, plan: Plan) -> list[list[int]]:
    """Ranks of the plan that share a communicator, each group in the communicator's order.

    >>> from planner.strategies import parse_plan
    >>> one = Network(name="forward", axes=(("tp", 2),), inputs=(), outputs=(), layers=(),
    ...               constants={}, tables={})
    >>> communicators(one, parse_plan("cfg2.tp2"))
    [[0, 1], [2, 3]]
    """
    inside = [name for name, _ in network.axes]
    by_outer_index: dict[tuple[tuple[str, int], ...], list[tuple[list[int], int]]] = {}
    for rank in range(plan.gpus):
        index = plan.index_of(rank)
        apart = tuple((name, place) for name, place in index.items() if name not in inside)
        by_outer_index.setdefault(apart, []).append(([index[name] for name in inside], rank))
    return [[rank for _, rank in sorted(members)] for members in by_outer_index.values()]


def _rank(rank: int, plan: Plan, workload: Workload, passes: int) -> dict[str, object]:
    """Where a rank's inputs lie: its first forward, its first sample, and of how many samples."""
    index, batch = plan.index_of(rank), _number(workload.batch)
    share = batch // plan.degree("dp") if batch > 1 else batch
    return {
        "rank": rank,
        "index": index,
        "forward": index.get("cfg", 0) * passes,
        "sample": index.get("dp", 0) * share if share < batch else 0,
        "samples": batch,
    }


def _number(size: object) -> int:
    if np.ndim(size):  # type: ignore[arg-type]  # numbers and arrays
        raise InputError("engines are written for one size: got several")
    return int(cast(int, size))


def _steps(program: Program) -> object:
    return next((stage.count for stage in program.stages if stage.name == "denoise"), 1)


def _given(name: str, place: int) -> dict[str, object]:
    return {"name": name, "forward": place}


def _diffusion(
    networks: Mapping[str, Network], program: Program, passes: int, buffers: _Buffers
) -> tuple[list[Call], list[Call]]:
    """Text towers once; then forwards, what combines them, and the new latents in their place."""
    main, forward, combine = program.output.name, networks["forward"], networks["combine"]
    prediction = dict(forward.outputs)["prediction"]
    buffers.many(prediction, "predictions", passes)
    given = {tensor.name for tensor in program.inputs}
    once: list[Call] = []
    each: list[Call] = []
    for place in range(passes):
        if "text_tower" in networks:
            tower = networks["text_tower"]
            bind = dict(_bound(tower, place, main, given, buffers))
            for name, value in tower.outputs:
                buffers.add(value, f"{name}#{place}")
                bind[name] = [f"{name}#{place}", 0]
            once.append({"engine": "text_tower", "bind": bind})
        bind = dict(_bound(forward, place, main, given, buffers))
        bind["prediction"] = ["predictions", place]
        each.append({"engine": "forward", "bind": bind})
    updated, value = combine.outputs[0]
    buffers.add(value, updated)
    each.append(
        {
            "engine": "combine",
            "bind": {
                main: [main, 0],
                "predictions": ["predictions", 0],
                updated: [updated, 0],
            },
        }
    )
    each.append({"copy": [updated, main]})
    return once, each


def _bound(
    network: Network, place: int, main: str, given: set[str], buffers: _Buffers
) -> Iterator[tuple[str, list[object]]]:
    """Bind inputs: the latents, what is given for this forward, and what was kept of it."""
    for value in network.inputs:
        name = main if value.name == main else f"{value.name}#{place}"
        source = None
        if value.name in given:
            source = _given(value.name, 0 if value.name == main else place)
        buffers.add(value, name, source)
        yield value.name, [name, 0]


def _decoder(networks: Mapping[str, Network], buffers: _Buffers) -> list[Call]:
    calls: list[Call] = []
    for network in networks.values():
        bind: Bind = {}
        for value in network.inputs:
            kept = value.name in buffers.found
            buffers.add(value, value.name, None if kept else _given(value.name, 0))
            bind[value.name] = [value.name, 0]
        for name, value in network.outputs:
            buffers.add(value, name)
            bind[name] = [name, 0]
        calls.append({"engine": network.name, "bind": dict(bind)})
    return calls
