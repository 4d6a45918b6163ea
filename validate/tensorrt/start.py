"""A plan's folder written, its engines built, and run: by processes of ours, or as one of many.

Where mpirun or torchrun has started a process a rank, the first rank of each host writes and builds
in a folder of that host, and the others wait until it says that it has. The folders of hosts are
their own, so that none is needed that all hosts see.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from planner.export.files import write_folder
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.build import Options
from planner.tensorrt.runner.connections import Connections, join
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.processes import start
from planner.tensorrt.runner.run import Timed
from topology.base import InputError
from topology.base.values import dataclass
from validate.launch import Place
from validate.plans.system import children

Tell = Callable[[str], None]
MEET_S: Final = 120
"""Seconds until all ranks have come."""
TOTAL_S: Final = 1800
"""Seconds that a run may take, and that ranks wait for engines."""
MODULE: Final = "planner.tensorrt.runner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What is run. weights : see `harness.weights_for`. steps : all where zero.

    graph : steps after the first are replayed. place : this process's rank; None to start all.
    again : engines of the same plan that are there were built by a run just before.
    outside : weights are kept beside the engines. layers : each layer is timed in one step more.
    """

    weights: str
    steps: int = 0
    graph: bool = True
    place: Place | None = None
    again: bool = False
    outside: bool = False
    layers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """A rank's error, as its judge sees it, and the seconds of its steps.

    layers : engine, layer and seconds of each, where a rank of this host has timed them.
    """

    error: float
    seconds: tuple[float, ...]
    layers: tuple[Timed, ...] = ()


Judge = Callable[[harness.Folder, int], float] | None
"""From a folder and a rank to its error; None where numbers mean nothing."""


def build_and_run(
    files: Mapping[str, bytes], path: Path, execution: Execution, judge: Judge, tell: Tell
) -> tuple[list[RankResult], list[Path]]:
    """Write, build and run: what each rank did, in order; and the engines built by this process.

    Raises RunError if a build or a rank fails, on every rank that is told of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if execution.place is not None:
        return _as_rank(
            files, path.with_name(f"{path.name}.{socket.gethostname()}"), execution, judge
        )
    folder = _prepared_folder(files, path, execution)
    engines = _build(folder, execution, tell)
    world = len(cast("list[object]", folder.plan["ranks"]))
    start(command(folder.path, execution), world, TOTAL_S, children())
    return [_rank_result(folder, rank, execution, judge) for rank in range(world)], engines


def _prepared_folder(
    files: Mapping[str, bytes], path: Path, execution: Execution
) -> harness.Folder:
    """Write the folder, or take the same that a run before has left with its engines."""
    digest = json.loads(files["plan.json"])["digest"]
    if execution.again:
        with suppress(RunError):
            existing = harness.open_folder(path)
            if existing.plan["digest"] == digest:
                return existing
    return harness.open_folder(write_folder(files, str(path), force=True))


def command(path: Path, execution: Execution) -> list[str]:
    """Words behind ``python`` that run a folder; on a rank's own GPU where it has a place.

    >>> command(Path("a"), Execution(weights="filler", steps=5))[3:]
    ['--folder', 'a', '--steps', '5', '--graph']
    """
    words = ["-m", MODULE, "run", "--folder", str(path)]
    words += ["--steps", str(execution.steps)] if execution.steps else []
    words += ["--graph"] if execution.graph else []
    words += ["--layers"] if execution.layers else []
    return words + (["--device", str(execution.place.local)] if execution.place else [])


def meets_at(place: Place, step: int) -> tuple[str, int]:
    """Host and port where ranks meet; the launcher's own port is left to it.

    Raises InputError if there are several hosts, and nothing says which has rank 0.
    """
    if place.here and place.here < place.world and place.address == "127.0.0.1":
        raise InputError("MASTER_ADDR: got none, wanted the host of rank 0, as there are several")
    return place.address, place.port + step


def _as_rank(
    files: Mapping[str, bytes], path: Path, execution: Execution, judge: Judge
) -> tuple[list[RankResult], list[Path]]:
    place = cast(Place, execution.place)
    digest = str(json.loads(files["plan.json"])["digest"])
    opened = join(place.rank, place.world, meets_at(place, 1), MEET_S, digest)
    connections, engines = replace(opened, limit_s=TOTAL_S), []
    try:
        failure = ""
        if place.local == 0:
            try:
                folder = _prepared_folder(files, path, execution)
                engines = _build(folder, execution, lambda line: None)  # noqa: ARG005
            except (RunError, InputError) as refusal:
                failure = str(refusal)
        _agree(connections, "built", failure)
        failure, own_result = _run_own_rank(path, execution, judge)
        _agree(connections, "ran", failure)
        replies = connections.say("measured", [own_result.error, list(own_result.seconds)])
        results = cast("list[tuple[float, list[float]]]", replies)
        ranks = [RankResult(error=error, seconds=tuple(times)) for error, times in results]
        ranks[place.rank] = own_result
        return ranks, engines
    finally:
        connections.close()


def _agree(connections: Connections, topic: str, failure: str) -> None:
    """Hear whether every rank has done something; raise what those said that have not."""
    replies = [str(word) for word in connections.say(topic, failure)]
    complaints = [f"rank {rank}: {word}" for rank, word in enumerate(replies) if word]
    if complaints:
        raise RunError("; ".join(complaints))


def _run_own_rank(path: Path, execution: Execution, judge: Judge) -> tuple[str, RankResult]:
    """Run this rank in a process of its own: what failed, and what it did."""
    no_result = RankResult(error=0.0, seconds=())
    place = cast(Place, execution.place)
    address, port = meets_at(place, 2)
    rank_env = {"RANK": place.rank, "WORLD_SIZE": place.world, "MASTER_PORT": port}
    env = {**children(), "MASTER_ADDR": address, **{key: str(n) for key, n in rank_env.items()}}
    words = [sys.executable, *command(path, execution)]
    try:
        process = subprocess.run(  # noqa: S603  # this very program
            words, env=env, capture_output=True, text=True, check=False, timeout=TOTAL_S
        )
        if process.returncode:
            lines = process.stderr.strip().splitlines()
            return lines[-1] if lines else f"ended with {process.returncode}", no_result
        return "", _rank_result(harness.open_folder(path), place.rank, execution, judge)
    except (RunError, OSError, subprocess.TimeoutExpired) as error:
        return " ".join(str(error).split()), no_result


def _build(folder: harness.Folder, execution: Execution, tell: Tell) -> list[Path]:
    source = harness.weights_for(folder, execution.weights)
    return harness.build_all(folder, source, Options(outside=execution.outside), tell)


def _rank_result(
    folder: harness.Folder, rank: int, execution: Execution, judge: Judge
) -> RankResult:
    seconds = harness.result_of(folder.path, rank).seconds
    layers = harness.layers_of(folder.path, rank) if execution.layers else ()
    error = judge(folder, rank) if judge else 0.0
    return RankResult(error=error, seconds=seconds, layers=layers)
