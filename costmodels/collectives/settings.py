"""What a caller may choose besides the collective, its size and the fabric."""

from typing import Final, Literal, get_args

from costmodels.collectives.algorithms import BY_NAME
from costmodels.collectives.operations import PROTOCOLS, WireProtocol
from topology.base import InputError, unknown
from topology.base.values import dataclass

Launch = Literal["graph", "stream"]
Launcher = Literal["process", "single"]

UNMIXED: Final = ("NCCL_GRAPH_MIXING_SUPPORT", "0")
"""Environment variable of NCCL, and its value where graphs mix with no other call.

Right where no call is made outside while a graph is under way, nor another graph at its side.
"""

ALGORITHMS: Final[tuple[str, ...]] = ("auto", *BY_NAME, "engine")
LAUNCHES: Final[tuple[Launch, ...]] = get_args(Launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """How the library is run.

    nccl : release, major and minor; it decides which protocol is taken at a size.
    launcher : ``process``, one process a GPU; ``single``, one process launches all GPUs of its
        node in turn.
    engine : which serving engine's kernels `algorithm` ``engine`` and ``oneshot`` ... may use;
        ``best`` takes the fastest of them.
    graph_mixing : whether graphs may mix with other calls, as they may unless `UNMIXED` is set;
        replayed calls then take longer than nccl-tests' do.
    protocols : those that the library may take (NCCL_PROTO); any where none of them can run.
    """

    nccl: tuple[int, int] = (2, 29)
    launcher: Launcher = "process"
    engine: str = "best"
    graph_mixing: bool = False
    protocols: tuple[WireProtocol, ...] = PROTOCOLS

    def __post_init__(self) -> None:
        if self.launcher not in get_args(Launcher):
            raise unknown("launcher", self.launcher, get_args(Launcher))
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                raise unknown("protocol", protocol, PROTOCOLS)
        if self.nccl < (2, 18):
            raise InputError(f"NCCL {self.nccl[0]}.{self.nccl[1]}: expected 2.18 or newer")


DEFAULT: Final = NcclSettings()


def read_algorithm(name: str) -> str:
    """Take the name of an algorithm, or say which names there are."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return name


def read_launch(name: str) -> Launch:
    """Take ``graph`` or ``stream``, or say so."""
    for launch in LAUNCHES:
        if launch == name:
            return launch
    raise unknown("launch", name, LAUNCHES)
