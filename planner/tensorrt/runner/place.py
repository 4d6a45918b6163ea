"""Which rank a process is, and where ranks meet, as launchers say it in variables."""

from collections.abc import Mapping
from typing import Final

from planner.tensorrt.runner.errors import InputError
from planner.tensorrt.runner.library import Document

STARTERS: Final = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("TRT_MY_RANK", "TRT_WORLD_SIZE", "TRT_LOCAL_RANK"),
)
"""Rank, world size and rank on this host, as torchrun, Open MPI, MPICH, Slurm and TensorRT's
samples name them."""
PORTS: Final = 2**16
LONGEST: Final = 9
"""Digits of a number."""


def rank_of(environment: Mapping[str, str], world: int) -> int | None:
    """Read the rank that torchrun, mpirun or srun gave; None where none did.

    Raises `InputError` if a number is none, or there are not as many ranks as the plan has.

    >>> rank_of({"RANK": "3", "WORLD_SIZE": "4"}, 4), rank_of({}, 4)
    (3, None)
    """
    for rank, size, _ in STARTERS:
        if rank not in environment or size not in environment:
            continue
        world_size = _number(environment, size)
        if world_size != world:
            raise InputError(f"{size}: started with {world_size} ranks, wanted {world}")
        own_rank = _number(environment, rank)
        if own_rank >= world:
            raise InputError(f"{rank}: got {own_rank}, wanted a rank from 0 to {world - 1}")
        return own_rank
    return None


def meets_at(environment: Mapping[str, str]) -> tuple[str, int]:
    """Read the host and port of rank 0.

    Raises `InputError` if they can be none.

    >>> meets_at({"MASTER_ADDR": "first"})
    ('first', 29511)
    """
    host = environment.get("MASTER_ADDR") or "127.0.0.1"
    try:
        host.encode("idna")
    except UnicodeError:
        raise InputError(f"MASTER_ADDR: got {host[:40]!r}, wanted a host") from None
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else 29511
    if not 0 < port < PORTS:
        raise InputError(f"MASTER_PORT: got {port}, wanted a port from 1 to {PORTS - 1}")
    return host, port


def runs(plan: Document, name: str, rank: int) -> bool:
    """Whether a rank runs a network: all do, unless it is of a stage of a pipeline.

    >>> plan = {"groups": {"forward.stage1": [[1]]}}
    >>> runs(plan, "forward.stage1", 0), runs(plan, "combine", 0)
    (False, True)
    """
    return name not in plan["groups"] or bool(members(plan, name, rank))


def buffers_of(plan: Document, rank: int) -> list[str]:
    """Name the buffers of a rank: those of engines that it runs, and the output.

    >>> calls = [{"engine": "stage0", "bind": {"x": ["a", 0]}},
    ...          {"engine": "stage1", "bind": {"x": ["b", 0]}}, {"send": ["a", "b"]}]
    >>> plan = {"groups": {"stage0": [[0]], "stage1": [[1]]}, "once": calls, "each_step": [],
    ...         "buffers": {"a": {}, "b": {}, "out": {}}, "output": "out"}
    >>> buffers_of(plan, 0), buffers_of(plan, 1)
    (['a', 'out'], ['b', 'out'])
    """
    calls = [*plan["once"], *plan["each_step"]]
    own_calls = [call for call in calls if "engine" in call and runs(plan, call["engine"], rank)]
    buffer_names = {buffer for call in own_calls for buffer, _ in call["bind"].values()} | {
        plan["output"]
    }
    return [name for name in plan["buffers"] if name in buffer_names]


def sends(plan: Document) -> bool:
    """Whether ranks send to one another outside of engines: stages of a pipeline do."""
    return any("send" in call for call in (*plan["once"], *plan["each_step"]))


def members(plan: Document, name: str, rank: int) -> tuple[int, ...]:
    """List the ranks that run a network together with this one; none where it runs alone."""
    groups = plan["groups"].get(name, [])
    return next((tuple(group) for group in groups if rank in group), ())


def place(plan: Document, name: str, rank: int) -> int:
    """Find a rank's number among those that run a network together."""
    group = members(plan, name, rank)
    return group.index(rank) if group else 0


def _number(environment: Mapping[str, str], name: str) -> int:
    words = environment[name].strip()
    if not (words.isascii() and words.isdecimal() and len(words) <= LONGEST):
        raise InputError(f"{name}: got {words[:40]!r}, wanted a whole number")
    return int(words)
