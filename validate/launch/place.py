"""Which rank a process is, however it was started."""

from collections.abc import Mapping
from typing import Final

from planner.tensorrt.runner.place import STARTERS
from topology.base import InputError
from topology.base.values import dataclass

PROGRESS: Final = "VALIDATE_PROGRESS"
"""Variable that names the folder of heartbeats; the parent sets it."""
PHASE_LIMIT: Final = "VALIDATE_PHASE_LIMIT"
"""Seconds that a phase may take which states no limit of its own."""

LAST_PORT: Final = 65535
_LOCAL_SIZES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank, how many there are, and where they meet.

    local : number of the rank on its host. progress : folder of heartbeats, empty without a parent
    of ours. phase_s : seconds that a phase may take which states no limit of its own.
    hosted : the store where ranks meet is torchrun's, not rank 0's. here : ranks on this host, 0
    where nothing says so.
    """

    rank: int
    world: int
    local: int
    address: str = "127.0.0.1"
    port: int = 29500
    progress: str = ""
    phase_s: float = 300.0
    hosted: bool = False
    here: int = 0


def find_place(env: Mapping[str, str]) -> Place:
    """Read the rank from the environment; alone where nothing says otherwise.

    Raises InputError if a number is none, or the rank is not below the world size.

    >>> place = find_place({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
    >>> place.rank, place.world, place.local
    (3, 4, 3)
    """
    for names in STARTERS:
        if names[0] in env and names[1] in env:
            rank, world = _number(env, names[0]), _number(env, names[1])
            local = _number(env, names[2]) if names[2] in env else rank
            break
    else:
        rank, world, local = 0, 1, 0
    if not 0 <= rank < world:
        raise InputError(f"rank: got {rank}, wanted a number from 0 to {world - 1}")
    return Place(
        rank=rank,
        world=world,
        local=local,
        address=env.get("MASTER_ADDR", "127.0.0.1"),
        port=port_of(env, 29500),
        progress=env.get(PROGRESS, ""),
        phase_s=float(_number(env, PHASE_LIMIT)) if PHASE_LIMIT in env else 300.0,
        hosted=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        here=next((_number(env, name) for name in _LOCAL_SIZES if name in env), 0),
    )


def is_rank(env: Mapping[str, str]) -> bool:
    """Whether torchrun or mpirun has started this process as one of several ranks.

    Slurm names ranks in shells too, where there is one process; it is not taken for a starter.

    >>> is_rank({"RANK": "0", "WORLD_SIZE": "2"}), is_rank({"SLURM_PROCID": "0"})
    (True, False)
    """
    return any(rank in env and world in env for rank, world, _ in STARTERS[:3])


def port_of(env: Mapping[str, str], usual: int) -> int:
    """Read the port at which ranks meet; raises InputError if there can be none of that number."""
    port = _number(env, "MASTER_PORT") if "MASTER_PORT" in env else usual
    if not 0 < port <= LAST_PORT:
        raise InputError(f"MASTER_PORT: got {port}, wanted a port from 1 to {LAST_PORT}")
    return port


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise InputError(f"{name}: got {env[name][:40]!r}, wanted a whole number") from None


def variables(rank: int, world: int, port: int, progress: str) -> dict[str, str]:
    """Return the variables that tell a child its place, as torchrun names them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        PROGRESS: progress,
    }
