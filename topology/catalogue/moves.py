"""What a message brings to the links of its group, whichever machine they are of."""

from typing import Final, Literal

from topology.base.values import dataclass

Route = Literal[
    "ring", "tree", "switch", "switched_tree", "doubling", "exchange", "stages", "shift"
]  # fmt: skip
"""How a message goes: to the next rank; up and down two trees of hosts, chains inside each; up
and down once through a switch that adds and replicates, between hosts over the trees or through
the switches of the network; to ranks at doubling distances; to all others at once; to one rank on
each host that passes it on; so many ranks further on."""
NOBODY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What a message brings to the links of its group.

    sent : bytes that a rank sends, of a tree those that go up it, of an exchange with a root those
    that pass there. received : from a switch, which replicates. far : those of `stages` to other
    hosts, beside `sent` to ranks on its own. root : where a ring or an exchange begins, or ends if
    it goes `inward`; `NOBODY` where each rank has its own part. offset : of a shift; ends : the
    last ones send nothing. staging : B/s of the host memory that copies go through, 0 where they do
    not.
    """

    route: Route = "ring"
    sent: float
    received: float = 0.0
    far: float = 0.0
    root: int = NOBODY
    inward: bool = False
    offset: int = 0
    ends: bool = False
    staging: float = 0.0
