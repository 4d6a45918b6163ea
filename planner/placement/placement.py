"""Where the ranks of a plan sit on a machine, as `planner.placement.seating` finds it."""

from collections.abc import Mapping

from topology.base.values import dataclass
from topology.catalogue import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks of a plan sit on a machine.

    devices : numbers of the GPUs of each host, in the order of its ranks. fabrics : the slowest
    group's links along each axis. seconds : of the plan's messages there, nothing hidden.
    exact : every order was tried, or none can matter.
    """

    devices: tuple[int, ...]
    hosts: int
    fabrics: Mapping[str, Fabric]
    seconds: float
    exact: bool

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "devices": list(self.devices),
            "nodes": self.hosts,
            "communication_s": self.seconds,
            "exact": self.exact,
        }


def visible_devices(devices: tuple[int, ...]) -> str:
    """Say the order of GPUs as CUDA takes it.

    >>> visible_devices((0, 2, 1, 3))
    'CUDA_VISIBLE_DEVICES=0,2,1,3'
    """
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, devices))}"
