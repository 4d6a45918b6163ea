"""Which links every axis of a plan runs over: ranks in order, the innermost axis on neighbours."""

from planner.plan import Plan
from topology.fabric import Fabric
from topology.hardware import Hardware


def fabrics(plan: Plan, hardware: Hardware, nodes: int = 0) -> dict[str, Fabric]:
    """Describe the links of the groups along each axis.

    Raises
    ------
    TopologyError
        If the GPUs of the plan do not fit the nodes.

    Examples
    --------
    >>> from topology.catalogue import hardware
    >>> fabrics(Plan((("cfg", 2), ("ulysses", 8))), hardware("h100-sxm"))["ulysses"].nodes
    1
    """
    island = hardware.island(plan.gpus, nodes)
    return {name: hardware.group(degree, plan.stride(name), island) for name, degree in plan.axes}
