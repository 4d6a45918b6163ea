"""Hardware, runtime and engine of a request, looked up."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from costmodels.collectives import read_algorithm
from costmodels.expert_routing import Distribution
from costmodels.price import Target
from costmodels.profile import Profile
from costmodels.runtime import Runtime
from costmodels.tables import profile_for, runtime
from planner.engines.engine import Disaggregation, Engine, Scheduling
from planner.engines.tables import allowed, find_engine
from planner.models import Model
from planner.placement.placement import Placement
from planner.request.plan import Plan
from planner.request.request import EXECUTOR, RUNTIME, Request
from planner.request.workload import DEFAULT_HABITS, Habits
from planner.scenario.experts import distribution_of
from topology.base.values import dataclass
from topology.catalogue import Device, Fabric, Hardware, Precision, even_hosts, find_hardware

if TYPE_CHECKING:  # reading machines takes a while to import, and few requests bring one
    from planner.request.subset import Subset

REPOSITORY: Final = "repository"
"""The engine whose habits eager PyTorch has where no engine is named: a model's own code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Hardware, runtime and engine of a request, without a plan, and what was measured there.

    gpus : as many as were asked for. engine : that runs the model, by its name in the table; empty
    for none, or the model's own repository. habits : of the engine, as the request has them.
    scheduling : how it serves many requests. disaggregation : how it does so with two pools.
    nodes : hosts; 0 for as few as hold the GPUs. graph_mixing : as NCCL has it where its variable
    is not set. distribution : of tokens to experts; empty for the usual one of whoever runs them.
    subset : GPUs of the machine that the request brings. placed : where a plan sits on them.
    """

    gpus: int
    precision: Precision
    hardware: Hardware
    runtime: Runtime
    engine: str = ""
    habits: Habits = DEFAULT_HABITS
    scheduling: Scheduling = Scheduling()
    disaggregation: Disaggregation = Disaggregation()
    nodes: int = 0
    algorithm: str = "auto"
    attention: str = ""
    graph_mixing: bool = True
    distribution: Distribution = ""
    profile: Profile | None = None
    subset: "Subset | None" = None
    placed: Placement | None = None

    def on(self, gpus: int) -> "Deployment":
        """Take another number of GPUs: the best of a machine, or as many on each host.

        Raises `TopologyError` if the machine has fewer, or its hosts would hold unequal shares.

        >>> from planner.scenario.scenario import resolve
        >>> two = resolve(Request(model="flux.1-dev", gpus=16, nodes=2)).deployment
        >>> [two.on(gpus).nodes for gpus in (8, 16, 32)]  # 0: as many as it takes
        [0, 2, 4]
        """
        if gpus == self.gpus:
            return self
        if self.subset is not None:
            subset = self.subset.on(gpus)
            hardware = subset.ruling(self.precision)
            return replace(self, gpus=gpus, subset=subset, hardware=hardware, nodes=0)
        host_gpus = self.gpus // (self.nodes or 1)
        spans_hosts = self.nodes > 1 and gpus > host_gpus
        return replace(self, gpus=gpus, nodes=gpus // host_gpus if spans_hosts else 0)

    @property
    def runner(self) -> Engine | None:
        """The engine that runs the model; None where ours do, an export or `planner validate`."""
        return None if self.engine in ("", EXECUTOR) else find_engine(self.engine)

    @property
    def exported(self) -> bool:
        """Whether TensorRT runs the model, from a folder that ``planner export`` writes."""
        return self.engine in ("", EXECUTOR) and self.runtime.name == RUNTIME

    @property
    def name(self) -> str:
        """What runs the model, as other programs know it, without a version."""
        return self.engine.partition("@")[0] or EXECUTOR

    @property
    def title(self) -> str:
        """What runs the model, as people read it."""
        runner = self.runner
        if runner is not None:
            return runner.title
        return "TensorRT" if self.exported else "planner validate"

    @property
    def runs_as(self) -> str:
        """How kernels are launched: others than TensorRT that behave as it replay CUDA graphs."""
        replays_graphs = self.runtime.name == RUNTIME and not self.title.startswith("TensorRT")
        return "CUDA graphs" if replays_graphs else self.runtime.name

    @property
    def hosts(self) -> int:
        """Hosts of the GPUs: those asked for, or as few as hold them evenly."""
        if self.subset is not None:
            return self.subset.hosts
        return self.nodes or even_hosts(self.gpus, self.hardware.gpus)

    def attention_of(self, model: Model) -> str:
        """Attention kernel: what was asked for, or what an engine or the own repository calls."""
        architecture = self.hardware.device.architecture
        installed = model.attention if architecture == "hopper" else ""
        return (
            self.attention
            or (installed if self.habits.installed_attention else "")
            or self.habits.kernel(model.family, architecture)
            or ("engine" if model.kind == "decoder" and self.engine != EXECUTOR else "auto")
        )

    def runtime_of(self, model: Model) -> Runtime:
        """Return the runtime, with the ways and the host times of whoever runs the model."""
        return _habitual_runtime(self.runtime, self.habits, model)

    def fabrics(self, plan: Plan) -> Mapping[str, Fabric]:
        """Give the links along every axis of a plan."""
        if self.placed is not None:
            return self.placed.fabrics
        return plan.fabrics(self.hardware, self.nodes)

    def spread(self, plan: Plan) -> Fabric | None:
        """Give the links over whose ranks experts are spread, where each has whole ones."""
        whole_experts = plan.degree("tp") == 1 and plan.ep == plan.degree("adp") > 1
        return self.fabrics(plan)["adp"] if whole_experts else None

    def target(self, model: Model, plan: Plan) -> Target:
        """Return what the operations of a plan are priced on; replicas have no links to it."""
        own_kernels = self.algorithm == "auto" and bool(self.habits.messages)
        device = self.hardware.device
        return Target(
            device=device,
            fabrics={axis: links for axis, links in self.fabrics(plan).items() if axis != "dp"},
            ways=tuple(way.taken for way in self.habits.ways(model, self.spread(plan), device)),
            runtime=self.runtime_of(model),
            ranks=plan.gpus // plan.degree("dp"),
            algorithm="engine" if own_kernels else self.algorithm,
            messages=self.habits.messages if own_kernels else "best",
            rounding=self.habits.rounding_of(model.family),
            beside=self.habits.beside,
            attention=self.attention_of(model),
            engine=self.engine.partition("@")[0],
            mask=self.habits.masks.get(model.family, ""),
            urgent=self.habits.rings == "urgent",
            graph_mixing=self.graph_mixing,
            distribution=self.distribution,
            profile=self.profile,
        )


@lru_cache(maxsize=64)
def _habitual_runtime(runtime: Runtime, habits: Habits, model: Model) -> Runtime:
    host = habits.host.get(runtime.name)
    if host is not None:
        runtime = host.of(runtime)
    pixel, rank = (0.0 if time is None else time.value for time in (habits.pixel, habits.rank))
    runtime = replace(runtime, host_pixel=pixel, host_rank=rank)
    if habits.repository and runtime.name == "torch-eager":
        return runtime.moving(dict(model.own.traffic))
    return runtime.doing(habits.functions(runtime.name, model.family, model.name))


def usual_precision(model: Model, hardware: Hardware) -> Precision:
    """Name the precision of a checkpoint, or 16 bits where the GPU multiplies no such numbers.

    These are fp16 on GPUs that multiply no bf16.
    """
    published = model.quantisation
    if published is None or hardware.device.peak(published.precision) is None:
        return hardware.device.half
    return published.precision


def asked_hardware(request: Request) -> Hardware:
    """Look up the GPU of a request, the one that all others wait for."""
    machine = machine_of(request)
    return find_hardware(request.hardware) if machine is None else machine.ruling("fp16")


def deployment_of(request: Request, model: Model) -> Deployment:
    """Look up what a request of a model is run on and with.

    Raises `InputError` if a name is unknown, the device has no tensor cores for the precision, or
    the profile is none of this hardware.
    """
    read_algorithm(request.algorithm)
    precision = request.precision or "bf16"
    machine = machine_of(request)
    subset = None if machine is None else machine.on(request.gpus, request.nodes)
    hardware = find_hardware(request.hardware) if subset is None else subset.ruling(precision)
    profile = _profile(request, hardware, subset)
    hardware.device.needed_peak(precision)
    if subset is None:
        hardware.island(request.gpus, request.nodes)
    bare_deployment = Deployment(
        gpus=request.gpus,
        precision=precision,
        hardware=hardware,
        runtime=runtime(request.runtime or RUNTIME),
        nodes=request.nodes,
        algorithm=request.algorithm,
        attention=request.attention,
        distribution=distribution_of(request, model),
        profile=profile,
        subset=subset,
    )
    return run_by(bare_deployment, request, model)


def runtimes_of(name: str, model: Model) -> list[str]:
    """List the runtimes of an engine, the slowest last; our own have one that is usual."""
    if name in ("", EXECUTOR):
        return [RUNTIME]
    return find_engine(name).runtimes_of(model.name, model.family)


def run_by(deployment: Deployment, request: Request, model: Model) -> Deployment:
    """Give a deployment the first engine of a request, its runtime and its habits.

    Where no runtime is asked for it is the one that the engine's launch line starts.
    """
    name = next(iter(request.engines), "")
    engine = None if name in ("", EXECUTOR) else find_engine(name)
    named_runtime = runtime(request.runtime or runtimes_of(name, model)[0])
    profile, lean = deployment.profile, name == EXECUTOR
    return replace(
        deployment,
        engine=name,
        runtime=named_runtime if profile is None else profile.runtime(named_runtime, lean=lean),
        habits=_habits(request, engine, named_runtime.name),
        scheduling=_scheduling(request, engine, deployment.hardware.device),
        disaggregation=Disaggregation() if engine is None else engine.disaggregation,
    )


def _habits(request: Request, engine: Engine | None, runtime: str) -> Habits:
    """Give the habits of whoever runs a request, and those that it asks for itself.

    TensorRT and our executor round what a product takes in the function before, but in eager code.
    """
    is_eager = runtime == "torch-eager"
    habits = replace(DEFAULT_HABITS, rounding=float(is_eager)) if engine is None else engine.habits
    is_exported = runtime == RUNTIME and not request.engine
    fuses = is_exported and allowed().fuses(allowed().running(request.tensorrt_version))
    if is_eager and not request.engine:
        habits = find_engine(REPOSITORY).habits
    return replace(
        habits,
        text_tower=request.text_tower or habits.text_tower,
        kv_repeat=request.kv_repeat,
        wide_collectives=request.wide_collectives or fuses,
        scattered_inputs=request.scattered_inputs,
    )


def _scheduling(request: Request, engine: Engine | None, device: Device) -> Scheduling:
    """Give the ways of the engine that serves, with the budget that is asked for."""
    scheduling = Scheduling() if engine is None else engine.scheduling.on(device)
    if request.chunk is None:
        return scheduling
    return replace(scheduling, chunk=request.chunk, rows=min(scheduling.rows, request.chunk))


def _profile(request: Request, hardware: Hardware, subset: "Subset | None") -> Profile | None:
    """Take the profile that was asked for, or that of the very machine this runs on."""
    if not request.detect or subset is None:
        return profile_for(hardware.name, request.profile)
    from planner.request.subset import profile_on  # noqa: PLC0415  # as below

    return profile_on(subset.machine, hardware.name, request.profile)


def machine_of(request: Request) -> "Subset | None":
    """Read the machine that a request brings; None where it brings none.

    Of catalogue hardware with links of its own it is the usual one.

    Raises `InputError` if the machine cannot be read, or contradicts the request.
    """
    if not request.brings_machine and not request.links:
        return None
    from planner.request.subset import (  # noqa: PLC0415  # takes a while to import
        read_machine,
        usual_machine,
    )

    links = dict(request.links)
    if not request.brings_machine:
        return usual_machine(request.hardware, request.gpus, request.nodes, links)
    return read_machine(
        request.topology,
        detect=request.detect,
        hardware=request.hardware,
        pcie_generation=request.pcie_generation,
        nodes=request.nodes,
        links=links,
    )
