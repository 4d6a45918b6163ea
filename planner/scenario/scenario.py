"""A request with everything it names looked up: model, sizes in tokens, hardware, runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from planner.engines.caches import reuse_of
from planner.engines.tables import allowed, engine_names, engines, feature_caches, find_engine
from planner.models import Kind, Model, lengths, line_of, read_model
from planner.request.lengths import Lengths, Trace, read_requests
from planner.request.request import EXECUTOR, RUNTIME, CachePrecision, Request
from planner.request.workload import DEFAULT_HABITS, Habits, Workload
from planner.scenario.deployment import (
    Deployment,
    asked_hardware,
    deployment_of,
    run_by,
    runtimes_of,
    usual_precision,
)
from planner.scenario.drafts import speculation_of
from planner.scenario.experts import with_copies
from topology.base import InputError
from topology.base.values import dataclass

INPUT_TOKENS: Final = 2048
OUTPUT_TOKENS: Final = 128
FOREIGN: Final[Mapping[Kind, tuple[str, ...]]] = {
    "decoder": (
        "height", "width", "frames", "steps", "text_tokens", "text_tower", "offload", "cache",
        "warmup_steps",
    ),
    "diffusion": (
        "kv_precision", "input_tokens", "output_tokens", "concurrency", "rate", "arrivals",
        "lengths", "slo_ttft", "slo_tpot", "ttft_percentile", "tpot_percentile", "chunk",
        "prefix_hit", "spread", "burst", "speculative", "draft", "acceptance",
        "redundant_experts", "expert_distribution", "prefill_plan", "prefill_workers",
        "decode_plan", "decode_workers", "disaggregate",
    ),
}  # fmt: skip
"""What a kind of model does not have."""


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
        deployment, workload, defaults = self.deployment, self.workload, self.model.defaults
        runtime, nodes = deployment.runtime.name, deployment.hosts
        request = replace(self.request, engine=deployment.engine, runtime=runtime, nodes=nodes)
        if self.model.kind == "decoder":
            prompt = int(workload.length(self.model.streams[0].name))
            return replace(
                request,
                input_tokens=prompt,
                output_tokens=int(workload.output_tokens),
                kv_precision=cast("CachePrecision", workload.kv_precision),
            )
        return replace(
            request,
            height=request.height or defaults.height,
            width=request.width or defaults.width,
            frames=int(workload.frames),
            steps=int(workload.steps),
            text_tokens=int(dict(workload.tokens)["text"])
            if "text" in dict(workload.tokens)
            else None,
        )

    @property
    def unmixed(self) -> "Scenario":
        """The same where graphs mix with no other calls of NCCL, which their variable says."""
        return replace(self, deployment=replace(self.deployment, graph_mixing=False))

    @property
    def unloaded(self) -> "Scenario":
        """The same of one request at a time, as all loads of requests of these lengths have it."""
        request = replace(self.request, concurrency=None, rate=None, burst=1.0, arrivals="")
        return replace(self, request=request, trace=())

    def run_by(self, engine: str, runtime: str) -> "Scenario":
        """Ask the same of an engine in a runtime; of none where `engine` is empty."""
        request = replace(self.request, engine=engine, runtime=runtime)
        deployment = run_by(self.deployment, request, self.model)
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

    several : whether the request may name several engines, of which the scenario has the first.

    Raises `InputError` if a name is unknown, or a size or an engine does not suit the model.
    """
    if len(request.engines) > 1 and not several:
        raise InputError(
            f"engine: got {request.engine}, wanted one (recommend and capacity compare several)"
        )
    _check_version(request)
    model = with_copies(read_model(request.model), request.redundant_experts or 0)
    request = replace(
        request,
        precision=request.precision or usual_precision(model, asked_hardware(request)),
        engine=engine_names(request.engine, model.kind),
    )
    deployment = deployment_of(request, model)
    for engine in request.engines:
        _check_engine(model, engine, request.runtime)
    _check_kind(model, request)
    lengths_read, trace = read_requests(request)
    workload = workload_of(model, request, deployment.habits, lengths_read)
    return Scenario(
        request=request, model=model, workload=workload, deployment=deployment,
        lengths=lengths_read, trace=trace,
    )  # fmt: skip


def _check_engine(model: Model, engine: str, runtime: str) -> None:
    """Refuse an engine of models of another kind, and a runtime that it has not."""
    if engine == EXECUTOR:
        return
    if find_engine(engine).kind != model.kind:
        names = [engine.name for engine in engines().of_kind(model.kind)]
        raise InputError(
            f"engine: got {engine}, which does not run {model.kind} models such as {model.name}: "
            f"wanted one of {', '.join([*names, EXECUTOR])}"
        )
    available = runtimes_of(engine, model)
    if runtime and runtime not in available:
        raise InputError(
            f"runtime: got {runtime}, which {engine} has not: wanted {' or '.join(available)}"
        )


def _check_version(request: Request) -> None:
    """Refuse a version of TensorRT that there is not, or beside what does not run on it."""
    version = request.tensorrt_version
    allowed().running(version)
    for field in ("engine", "runtime"):
        requested = getattr(request, field)
        if version and requested not in ("", RUNTIME):
            raise InputError(
                f"tensorrt_version: got {version} beside {field} {requested}, wanted none"
            )


def usual_cache(model: Model, precision: str, habits: Habits) -> str:
    """Name the precision of keys and values that a checkpoint asks for.

    Its own, or of one in another precision, if the engine takes that from a checkpoint alone.
    """
    published = model.quantisation
    if published is not None and published.precision == precision:
        return published.cache or "bf16"
    return habits.caches.get(precision, "bf16")


def lengths_of(scenario: Scenario) -> Lengths:
    """Return how long the requests of a scenario are."""
    if scenario.lengths is not None:
        return scenario.lengths
    workload, spread = scenario.workload, scenario.request.spread
    return Lengths(
        prompt=int(workload.length(scenario.model.streams[0].name)),
        output=max(1, int(workload.output_tokens)),
        spread=spread or 0.0,
        scatter=scenario.deployment.scheduling.scatter if spread is None else 0.0,
    )


def workload_of(
    model: Model, request: Request, habits: Habits = DEFAULT_HABITS, found: Lengths | None = None
) -> Workload:
    """Turn sizes into sequence lengths, with the model's usual ones where none were asked for.

    found : how long a language model's requests are, whose means are taken.

    Raises `InputError` if a size is one that the kind of model does not have, or that the model
    cannot take.
    """
    _check_kind(model, request)
    if model.kind == "decoder":
        usual_lengths = (
            Lengths(prompt=INPUT_TOKENS, output=OUTPUT_TOKENS) if found is None else found
        )
        prompt = request.input_tokens or usual_lengths.prompt
        output = usual_lengths.output if request.output_tokens is None else request.output_tokens
        return Workload(
            tokens=tuple((stream.name, prompt) for stream in model.streams),
            batch=request.batch,
            output_tokens=output,
            cached=min(int(request.prefix_hit * prompt), prompt - 1),
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
        steps=request.steps or sizes.steps_of(frames),
        passes=sizes.passes,
        pixels=height * width * frames,
        frames=frames,
        line=line_of(model.latent, width) if model.latent else 0,
        precision=request.precision or "bf16",
        habits=habits,
        reuse=reuse_of(feature_caches(), model.name, request.cache),
        warmup=1 if request.warmup_steps is None else request.warmup_steps,
    )


def _check_kind(model: Model, request: Request) -> None:
    """Refuse what images have for language models, and numbers of tokens for others."""
    is_language = model.kind == "decoder"
    for name in FOREIGN.get(model.kind, ()):
        value = getattr(request, name)
        if value != Request.__dataclass_fields__[name].default:
            kind_text = "a language model" if is_language else "no language model"
            raise InputError(
                f"{name}: got {str(value)[:60]}, wanted none: {model.name} is {kind_text}"
            )
