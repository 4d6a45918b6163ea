"""What a plan would run on: the hardware, its nodes, the runtime; and what to price it on."""

from dataclasses import dataclass

from costmodels.catalogue import runtime
from costmodels.price import Target
from costmodels.runtime import Runtime
from planner.models.architecture import Model
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
    attention: str = ""

    def attention_of(self, model: Model) -> str:
        """Attention kernel: what was asked for, or what a model's own eager code calls."""
        eager = self.runtime.name == "torch-eager" and self.hardware.device.architecture == "hopper"
        return self.attention or (model.attention if eager else "") or "auto"

    def target(self, model: Model, plan: Plan, precision: Precision) -> Target:
        """Return what the operations of a plan are priced on."""
        return Target(
            device=self.hardware.device,
            fabrics=fabrics(plan, self.hardware, self.nodes),
            runtime=self.runtime,
            precision=precision,
            algorithm=self.algorithm,
            attention=self.attention_of(model),
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
        attention=request.attention,
    )
