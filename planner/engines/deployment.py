"""What a plan would run on: the hardware, its nodes, the runtime; and what to price it on."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from costmodels.collectives import read_algorithm
from costmodels.price import Target
from costmodels.profiles.profile import Profile
from costmodels.runtime import Runtime
from costmodels.tables import profile_for, runtime
from planner.models.architecture import Model
from planner.placement.placement import Placement, fabrics
from planner.request.plan import Plan
from planner.request.request import EXECUTOR, Request
from planner.request.workload import TextTower
from topology.base import PrecisionError
from topology.catalogue import Hardware, Precision, find_hardware

if TYPE_CHECKING:
    from planner.engines.launch import Engine
    from planner.request.subset import Subset


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Hardware and runtime of a request, without a plan, and what was measured there.

    engine : that runs the model, by its name in the table; empty for none, or its own repository.
    runner : the engine's habits. text_tower : when a tower that ignores the step is run.
    subset : GPUs of the machine that the request brings. placed : where a plan sits on them.
    """

    hardware: Hardware
    runtime: Runtime
    engine: str = ""
    runner: "Engine | None" = None
    text_tower: TextTower = "usual"
    nodes: int = 0
    algorithm: str = "auto"
    attention: str = ""
    profile: Profile | None = None
    subset: "Subset | None" = None
    placed: Placement | None = None

    def on(self, gpus: int, precision: Precision) -> "Deployment":
        """Narrow a machine to the best of its GPUs; catalogue hardware stays as it is.

        Raises
        ------
        TopologyError
            If the machine has fewer, or its hosts would hold unequal shares.
        """
        if self.subset is None or self.subset.gpus == gpus:
            return self
        subset = self.subset.on(gpus)
        return replace(self, subset=subset, hardware=subset.ruling(precision), nodes=0)

    @property
    def own(self) -> bool:
        """Whether a model's own repository runs it: eager PyTorch, where no engine is named."""
        return self.runtime.name == "torch-eager" and not self.engine

    @property
    def slow_decoder(self) -> bool:
        """Whether pictures are decoded as a model's own repository does."""
        eager = self.runtime.name == "torch-eager"
        return self.own or (eager and self.runner is not None and self.runner.slow_decoder)

    def attention_of(self, model: Model) -> str:
        """Attention kernel: what was asked for, or what an engine or the own repository calls."""
        architecture = self.hardware.device.architecture
        own = model.attention if architecture == "hopper" else ""
        if self.runner is None:
            return self.attention or (own if self.own else "") or "auto"
        habit = self.runner.kernel(model.family, architecture)
        return self.attention or (own if self.runner.inside else "") or habit or "auto"

    def runtime_of(self, model: Model) -> Runtime:
        """Return the runtime, with the ways of whoever runs the model in eager PyTorch."""
        if self.own:
            return self.runtime.moving(dict(model.own.traffic))
        if self.runner is None or self.runtime.name != "torch-eager":
            return self.runtime
        found = self.runtime.doing(self.runner.functions(model.family))
        return replace(found, host_kernel=self.runner.host_kernel or found.host_kernel)

    def target(self, model: Model, plan: Plan, precision: Precision) -> Target:
        """Return what the operations of a plan are priced on."""
        return Target(
            device=self.hardware.device,
            fabrics=self.placed.fabrics
            if self.placed is not None
            else fabrics(plan, self.hardware, self.nodes),
            runtime=self.runtime_of(model),
            precision=precision,
            ranks=plan.gpus // plan.degree("dp"),
            algorithm=self.algorithm,
            attention=self.attention_of(model),
            profile=self.profile,
        )


def deployment_of(request: Request) -> Deployment:
    """Look up what a request names.

    Raises
    ------
    InputError
        If a name is unknown, the device has no tensor cores for the precision, or the profile
        is none of this hardware.
    """
    read_algorithm(request.algorithm)
    subset = _subset(request)
    found = find_hardware(request.hardware) if subset is None else subset.ruling(request.precision)
    profile = _profile(request, found, subset)
    if found.device.peak(request.precision) is None:
        can = ", ".join(precision for precision, _ in found.device.peaks)
        raise PrecisionError(
            f"{found.name} has no tensor cores for {request.precision}: expected one of {can}"
        )
    if subset is None:
        found.island(request.gpus, request.nodes)
    asked, lean = runtime(request.runtime), request.engine == EXECUTOR
    runner = _runner(request.engine)
    return Deployment(
        hardware=found,
        runtime=asked if profile is None else profile.runtime(asked, lean=lean),
        engine=request.engine,
        runner=runner,
        text_tower=request.text_tower or (runner.text_tower if runner else "usual"),
        nodes=request.nodes,
        algorithm=request.algorithm,
        attention=request.attention,
        profile=profile,
        subset=subset,
    )


def _runner(engine: str) -> "Engine | None":
    if engine in ("", EXECUTOR):
        return None
    from planner.engines.tables import engine as find_engine  # noqa: PLC0415  # few requests name one

    return find_engine(engine)


def _profile(request: Request, found: Hardware, subset: "Subset | None") -> Profile | None:
    """Take the profile that was asked for, or that of the very machine this runs on."""
    if not request.detect or subset is None:
        return profile_for(found.name, request.profile)
    from planner.request.subset import profile_on  # noqa: PLC0415  # as below

    return profile_on(subset.machine, found.name, request.profile)


def _subset(request: Request) -> "Subset | None":
    whole = machine_of(request)
    return None if whole is None else whole.on(request.gpus, request.nodes)


def machine_of(request: Request) -> "Subset | None":
    """Read the machine that a request brings, with all its GPUs; None where it brings none.

    Raises
    ------
    InputError
        If the machine cannot be read, or contradicts the request.
    """
    if not request.brings_machine:
        return None
    from planner.request.subset import read_machine  # noqa: PLC0415  # reading machines takes a while to import

    return read_machine(
        request.topology,
        detect=request.detect,
        hardware=request.hardware,
        pcie_generation=request.pcie_generation,
        nodes=request.nodes,
    )
