"""A request with everything it names looked up: model, sizes in tokens, hardware, runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from costmodels.collectives import read_algorithm
from costmodels.expert_routing import Distribution
from costmodels.price import Target
from costmodels.profile import Profile
from costmodels.runtime import Runtime
from costmodels.tables import profile_for, runtime
from planner.engines.engine import Disaggregation, Engine, Scheduling
from planner.engines.tables import acceptances, allowed, engine_names, engines, find_engine
from planner.models import Kind, Model, lengths, line_of, read_model
from planner.placement.placement import Placement
from planner.request.lengths import Lengths, Trace, read_requests
from planner.request.plan import Plan
from planner.request.request import EXECUTOR, RUNTIME, Request
from planner.request.workload import USUAL, Habits, Speculation, Workload
from planner.scenario.experts import distribution_of, with_copies
from topology.base import InputError
from topology.base.values import dataclass
from topology.catalogue import Device, Fabric, Hardware, Precision, evenly, find_hardware

if TYPE_CHECKING:  # reading machines takes a while to import, and few requests bring one
    from planner.request.subset import Subset

INPUT_TOKENS: Final = 2048
OUTPUT_TOKENS: Final = 128
FOREIGN: Final[Mapping[Kind, tuple[str, ...]]] = {
    "decoder": ("height", "width", "frames", "steps", "text_tokens", "text_tower", "offload"),
    "diffusion": (
        "kv_precision", "input_tokens", "output_tokens", "concurrency", "rate", "arrivals",
        "lengths", "slo_ttft", "slo_tpot", "ttft_percentile", "tpot_percentile", "chunk",
        "prefix_hit", "spread", "burst", "speculative", "draft", "acceptance",
        "redundant_experts", "expert_distribution", "prefill_plan", "prefill_workers",
        "decode_plan", "decode_workers", "disaggregate",
    ),
}  # fmt: skip
"""What a kind of model does not have."""

OWN: Final = "mtp"
"""Stands for a model's own layers of multi-token prediction."""

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
    habits: Habits = USUAL
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

        Raises
        ------
        TopologyError
            If the machine has fewer, or its hosts would hold unequal shares.

        Examples
        --------
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
        each = self.gpus // (self.nodes or 1)
        spread = self.nodes > 1 and gpus > each
        return replace(self, gpus=gpus, nodes=gpus // each if spread else 0)

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
    def hosts(self) -> int:
        """Hosts of the GPUs: those asked for, or as few as hold them evenly."""
        if self.subset is not None:
            return self.subset.hosts
        return self.nodes or evenly(self.gpus, self.hardware.gpus)

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
        runtime, host = self.runtime, self.habits.host.get(self.runtime.name)
        if host is not None:
            runtime = host.of(runtime)
        if self.habits.repository and runtime.name == "torch-eager":
            return runtime.moving(dict(model.own.traffic))
        return runtime.doing(self.habits.functions(runtime.name, model.family, model.name))

    def fabrics(self, plan: Plan) -> Mapping[str, Fabric]:
        """Give the links along every axis of a plan."""
        if self.placed is not None:
            return self.placed.fabrics
        return plan.fabrics(self.hardware, self.nodes)

    def spread(self, plan: Plan) -> Fabric | None:
        """Give the links over whose ranks experts are spread, where each has whole ones."""
        own = plan.degree("tp") == 1 and plan.ep == plan.degree("adp") > 1
        return self.fabrics(plan)["adp"] if own else None

    def target(self, model: Model, plan: Plan) -> Target:
        """Return what the operations of a plan are priced on."""
        own = self.algorithm == "auto" and bool(self.habits.messages)
        device = self.hardware.device
        return Target(
            device=device,
            fabrics=self.fabrics(plan),
            ways=tuple(way.taken for way in self.habits.ways(model, self.spread(plan), device)),
            runtime=self.runtime_of(model),
            ranks=plan.gpus // plan.degree("dp"),
            algorithm="engine" if own else self.algorithm,
            messages=self.habits.messages if own else "best",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A request with everything it names looked up.

    lengths, trace : of a language model's requests, where they were given one by one.
    """

    request: Request
    model: Model
    workload: Workload
    deployment: Deployment
    lengths: Lengths | None = None
    trace: Trace = ()

    @property
    def as_published(self) -> bool:
        """Whether weights are quantised as the checkpoint has them."""
        published = self.model.quantisation
        return published is not None and published.precision == self.workload.precision

    @property
    def served(self) -> bool:
        """Whether requests are served together: one at a time of a language model."""
        return self.model.kind == "decoder" and self.request.batch == 1

    @property
    def ranked_under_load(self) -> bool:
        """Whether plans are ranked by what they do when many requests come."""
        request = self.request
        wanted = request.loaded or request.slo_ttft or request.slo_tpot
        return self.served and bool(wanted or request.objective != "latency")

    @property
    def resolved(self) -> Request:
        """The request, with what runs it here and the usual sizes filled in."""
        deployment, work, usual = self.deployment, self.workload, self.model.defaults
        request = replace(self.request, engine=deployment.engine, runtime=deployment.runtime.name)
        if self.model.kind == "decoder":
            prompt = int(work.length(self.model.streams[0].name))
            return replace(
                request,
                input_tokens=prompt,
                output_tokens=int(work.output_tokens),
                spread=request.spread or 0.0,
            )
        return replace(
            request,
            height=request.height or usual.height,
            width=request.width or usual.width,
            frames=int(work.frames),
            steps=int(work.steps),
        )

    @property
    def unmixed(self) -> "Scenario":
        """The same where graphs mix with no other calls of NCCL, which their variable says."""
        return replace(self, deployment=replace(self.deployment, graph_mixing=False))

    def run_by(self, engine: str, runtime: str) -> "Scenario":
        """Ask the same of an engine in a runtime; of none where `engine` is empty."""
        request = replace(self.request, engine=engine, runtime=runtime)
        deployment = _run_by(self.deployment, request, self.model)
        workload = replace(self.workload, habits=deployment.habits)
        if self.model.kind == "decoder" and not request.kv_precision:
            cache = usual_cache(self.model, workload.precision, deployment.habits)
            workload = replace(workload, kv_precision=cache)
        return replace(self, request=request, deployment=deployment, workload=workload)

    def on(self, gpus: int) -> "Scenario":
        """Ask the same about another number of GPUs."""
        return replace(self, deployment=self.deployment.on(gpus))


def resolve(request: Request, *, several: bool = False) -> Scenario:
    """Look up the model and the hardware of a request, and turn its sizes into tokens.

    Parameters
    ----------
    several : whether the request may name several engines, of which the scenario has the first.

    Raises
    ------
    InputError
        If a name is unknown, or a size or an engine does not suit the model.
    """
    if len(request.engines) > 1 and not several:
        raise InputError(f"engine: got {request.engine}, wanted one (recommend compares several)")
    _check_version(request)
    model = with_copies(read_model(request.model), request.redundant_experts or 0)
    request = replace(
        request,
        precision=request.precision or usual_precision(model, request),
        engine=engine_names(request.engine, model.kind),
    )
    deployment = deployment_of(request, model)
    for engine in request.engines:
        _check_engine(model, engine)
    _check_kind(model, request)
    found, trace = read_requests(request)
    workload = workload_of(model, request, deployment.habits, found)
    return Scenario(
        request=request,
        model=model,
        workload=workload,
        deployment=deployment,
        lengths=found,
        trace=trace,
    )


def _check_engine(model: Model, engine: str) -> None:
    """Refuse an engine of models of another kind."""
    if engine != EXECUTOR and find_engine(engine).kind != model.kind:
        names = [engine.name for engine in engines().of_kind(model.kind)]
        raise InputError(
            f"engine: got {engine}, which does not run {model.kind} models such as {model.name}: "
            f"wanted one of {', '.join([*names, EXECUTOR])}"
        )


def _check_version(request: Request) -> None:
    """Refuse a version of TensorRT that there is not, or beside what does not run on it."""
    version = request.tensorrt_version
    allowed().running(version)
    for what in ("engine", "runtime"):
        named = getattr(request, what)
        if version and named not in ("", RUNTIME):
            raise InputError(f"tensorrt_version: got {version} beside {what} {named}, wanted none")


def usual_precision(model: Model, request: Request) -> Precision:
    """Name the precision of a checkpoint, or 16 bits where the GPU multiplies no such numbers."""
    published = model.quantisation
    if published is None:
        return "bf16"
    machine = machine_of(request)
    hardware = find_hardware(request.hardware) if machine is None else machine.ruling("bf16")
    return "bf16" if hardware.device.peak(published.precision) is None else published.precision


def usual_cache(model: Model, precision: str, habits: Habits) -> str:
    """Name the precision of keys and values that a checkpoint asks for.

    Its own, or of one in another precision, if the engine takes that from a checkpoint alone.
    """
    own = model.quantisation
    if own is not None and own.precision == precision:
        return own.cache or "bf16"
    return habits.caches.get(precision, "bf16")


def workload_of(
    model: Model, request: Request, habits: Habits = USUAL, found: Lengths | None = None
) -> Workload:
    """Turn sizes into sequence lengths, with the model's usual ones where none were asked for.

    found : how long a language model's requests are, whose means are taken.

    Raises
    ------
    InputError
        If a size is one that the kind of model does not have, or that the model cannot take.
    """
    _check_kind(model, request)
    if model.kind == "decoder":
        usual = Lengths(prompt=INPUT_TOKENS, output=OUTPUT_TOKENS) if found is None else found
        prompt = request.input_tokens or usual.prompt
        output = usual.output if request.output_tokens is None else request.output_tokens
        return Workload(
            tokens=tuple((stream.name, prompt) for stream in model.streams),
            batch=request.batch,
            output_tokens=output,
            precision=request.precision or "bf16",
            kv_precision=request.kv_precision
            or usual_cache(model, request.precision or "bf16", habits),
            habits=habits,
            speculation=speculation_of(model, request),
        )
    sizes = model.defaults
    height, width = request.height or sizes.height, request.width or sizes.width
    frames = request.frames or sizes.frames
    tokens = lengths(model, height, width, frames, request.text_tokens)
    return Workload(
        tokens=tuple(tokens.items()),
        batch=request.batch,
        steps=request.steps or sizes.steps,
        passes=sizes.passes,
        pixels=height * width * frames,
        frames=frames,
        line=line_of(model.latent, width) if model.latent else 0,
        precision=request.precision or "bf16",
        habits=habits,
    )


def _check_kind(model: Model, request: Request) -> None:
    """Refuse what images have for language models, and numbers of tokens for others."""
    language = model.kind == "decoder"
    for name in FOREIGN.get(model.kind, ()):
        value = getattr(request, name)
        if value != Request.__dataclass_fields__[name].default:
            what = "a language model" if language else "no language model"
            raise InputError(f"{name}: got {str(value)[:60]}, wanted none: {model.name} is {what}")


def speculation_of(model: Model, request: Request) -> Speculation | None:
    """Find the draft of a request, with the usual acceptance where none is said; None without.

    Raises
    ------
    InputError
        If there is no such draft, or it writes other tokens than the model.
    """
    if request.speculative is None:
        return None
    if EXECUTOR in request.engines:
        raise InputError(
            f"speculative: got {request.speculative}, which planner validate does not run: wanted "
            "an engine of language models"
        )
    own = request.draft == OWN or (not request.draft and bool(model.draft))
    if own and not model.draft:
        raise InputError(f"draft: got {OWN}, and {model.name} has no such layers, wanted a model")
    if not own and not request.draft:
        raise InputError(
            f"draft: got none, and {model.name} has no layers that predict tokens after the next "
            "one, wanted a smaller model of its vocabulary"
        )
    draft = _own_draft(model) if own else _draft(model, request.draft)
    usual = acceptances()[OWN if own else "draft"].value
    return Speculation(
        tokens=request.speculative,
        acceptance=usual if request.acceptance is None else request.acceptance,
        draft=draft,
        own=own,
        modules=model.draft[0].count if own else 1,
    )


def _own_draft(model: Model) -> Model:
    """Make a model of the layers that predict tokens after the next one, run one by one.

    They take the model's embedding and its head, which are not counted again.
    """
    layers = tuple(replace(block, count=1) for block in model.draft)
    name = f"{model.name}'s own layers"
    return replace(model, name=name, blocks=layers, order=(), draft=(), outer_parameters=0)


def _draft(model: Model, name: str) -> Model:
    """Read a model that drafts for another."""
    draft = read_model(name)
    if draft.kind != model.kind:
        raise InputError(f"draft: got {draft.name}, wanted a language model")
    if draft.vocabulary != model.vocabulary:
        raise InputError(
            f"draft: got {draft.name} of {draft.vocabulary:,} tokens, wanted one of the "
            f"{model.vocabulary:,} that {model.name} has"
        )
    return draft


def deployment_of(request: Request, model: Model) -> Deployment:
    """Look up what a request of a model is run on and with.

    Raises
    ------
    InputError
        If a name is unknown, the device has no tensor cores for the precision, or the profile
        is none of this hardware.
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
    bare = Deployment(
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
    return _run_by(bare, request, model)


def _run_by(deployment: Deployment, request: Request, model: Model) -> Deployment:
    """Give a deployment the first engine of a request, its runtime and its habits.

    Where no runtime is asked for it is the one that the engine's launch line starts.
    """
    name = next(iter(request.engines), "")
    engine = None if name in ("", EXECUTOR) else find_engine(name)
    usual = RUNTIME if engine is None else engine.runtimes_of(model.name, model.family)[0]
    named = runtime(request.runtime or usual)
    profile, lean = deployment.profile, name == EXECUTOR
    return replace(
        deployment,
        engine=name,
        runtime=named if profile is None else profile.runtime(named, lean=lean),
        habits=_habits(request, engine, named.name),
        scheduling=_scheduling(request, engine, deployment.hardware.device),
        disaggregation=Disaggregation() if engine is None else engine.disaggregation,
    )


def _habits(request: Request, engine: Engine | None, runtime: str) -> Habits:
    """Give the habits of whoever runs a request, and those that it asks for itself.

    TensorRT and our executor round what a product takes in the function before, but in eager code.
    """
    eager = runtime == "torch-eager"
    habits = replace(USUAL, rounding=float(eager)) if engine is None else engine.habits
    built = runtime == RUNTIME and not request.engine
    fuses = built and allowed().fuses(allowed().running(request.tensorrt_version))
    if eager and not request.engine:
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
    ways = Scheduling() if engine is None else engine.scheduling.on(device)
    if request.chunk is None:
        return ways
    return replace(ways, chunk=request.chunk, rows=min(ways.rows, request.chunk))


def _profile(request: Request, hardware: Hardware, subset: "Subset | None") -> Profile | None:
    """Take the profile that was asked for, or that of the very machine this runs on."""
    if not request.detect or subset is None:
        return profile_for(hardware.name, request.profile)
    from planner.request.subset import profile_on  # noqa: PLC0415  # as below

    return profile_on(subset.machine, hardware.name, request.profile)


def machine_of(request: Request) -> "Subset | None":
    """Read the machine that a request brings, with all its GPUs; None where it brings none.

    Raises
    ------
    InputError
        If the machine cannot be read, or contradicts the request.
    """
    if not request.brings_machine:
        return None
    from planner.request.subset import read_machine  # noqa: PLC0415  # takes a while to import

    return read_machine(
        request.topology,
        detect=request.detect,
        hardware=request.hardware,
        pcie_generation=request.pcie_generation,
        nodes=request.nodes,
    )
