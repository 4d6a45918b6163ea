"""Which links every axis of a plan runs over: ranks in order, the innermost axis on neighbours.

That is for catalogue hardware; `planner.placement.seating` looks for the best order on a machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.request.plan import Plan
from topology.catalogue import Fabric, Hardware


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


def visible(devices: tuple[int, ...]) -> str:
    """Say the order of GPUs as CUDA takes it.

    >>> visible((0, 2, 1, 3))
    'CUDA_VISIBLE_DEVICES=0,2,1,3'
    """
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, devices))}"


def fabrics(plan: Plan, hardware: Hardware, nodes: int = 0) -> dict[str, Fabric]:
    """Describe the links of the groups along each axis.

    Raises `TopologyError` if the GPUs of the plan do not fit the nodes.

    >>> from topology.catalogue import find_hardware
    >>> fabrics(Plan((("cfg", 2), ("ulysses", 8))), find_hardware("h100-sxm"))["ulysses"].nodes
    1
    """
    island = hardware.island(plan.gpus, nodes)
    return {name: hardware.group(degree, plan.stride(name), island) for name, degree in plan.axes}
