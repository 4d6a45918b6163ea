"""What a plan would run on: the hardware, its nodes, the runtime; and what to price it on."""

from dataclasses import dataclass

from costmodels.catalogue import runtime
from costmodels.price import Target
from costmodels.runtime import Runtime
from planner.placement import fabrics
from planner.plan import Plan
from planner.request import Request
from topology.catalogue import hardware
from topology.devices import Precision
from topology.errors import InputError
from topology.hardware import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Hardware and runtime of a request, without a plan."""

    hardware: Hardware
    runtime: Runtime
    nodes: int = 0
    algorithm: str = "auto"

    def target(self, plan: Plan, precision: Precision) -> Target:
        """Return what the operations of a plan are priced on."""
        return Target(
            device=self.hardware.device,
            fabrics=fabrics(plan, self.hardware, self.nodes),
            runtime=self.runtime,
            precision=precision,
            algorithm=self.algorithm,
        )


def site_of(request: Request) -> Site:
    """Look up what a request names.

    Raises
    ------
    InputError
        If a name is unknown, or the device has no tensor cores for the precision.
    """
    found = hardware(request.hardware)
    if found.device.peak(request.precision) is None:
        can = ", ".join(precision for precision, _ in found.device.peaks)
        raise InputError(
            f"{found.name} has no tensor cores for {request.precision}: expected one of {can}"
        )
    found.island(request.gpus, request.nodes)
    return Site(
        hardware=found,
        runtime=runtime(request.runtime),
        nodes=request.nodes,
        algorithm=request.algorithm,
    )
