"""What is run and timed: a model at a size, under a plan, in a way to launch it."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Final, Literal, get_args

from planner.engines.tables import find_engine
from planner.models import Model, read_model
from planner.models.fields import Fields
from planner.request.plan import Plan
from planner.request.request import EXECUTOR, Request, TowerHabit
from planner.request.workload import Workload
from planner.scenario.deployment import Deployment, deployment_of
from planner.scenario.scenario import Scenario, workload_of
from planner.search.plans import objections
from planner.strategies import parse_plan
from topology.base import InputError, ModelError, unknown
from topology.base.values import dataclass
from topology.catalogue import Precision

Mode = Literal["eager", "compile", "graph"]
Stage = Literal["denoise", "prefill", "decode"]

ENGINES: Final[Mapping[str, str]] = {
    "diffusers": "diffusers",
    "vllm": "vllm",
    "sglang": "sglang-llm",
}
"""Other people's engines whose own code can be run, by the backend that runs it."""
SERVED_ENGINES: Final = ("vllm", "sglang-llm")
"""Those of language models: one process runs all ranks of a plan, by the engine's benchmark."""
RUNNABLE_PRECISIONS: Final = ("bf16", "fp16", "fp8")
"""Precisions that the executor has, of those that can be priced."""

RUNTIMES: Final[Mapping[Mode, str]] = {
    "eager": "torch-eager",
    "compile": "torch-compile",
    "graph": "torch-graph",
}
"""Runtime of the cost models that prices a way to launch."""

SIZES: Final = ("height", "width", "frames", "input_tokens", "text_tokens")

_OUTPUT_TOKENS: Final = {"denoise": None, "prefill": 0, "decode": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to time: a denoising step with all its forwards, a prefill or a decode step.

    Sizes left out are the model's usual ones. stage : of a decoder, ``prefill`` or ``decode``.
    engine : whose code runs, empty for the planner's executor; of an engine, one forward is timed.
    """

    model: str
    plan: str = "single"
    mode: Mode = "graph"
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    input_tokens: int | None = None
    text_tokens: int | None = None
    batch: int = 1
    precision: Precision = "bf16"
    stage: Stage = "denoise"
    engine: str = ""

    def __post_init__(self) -> None:
        """Refuse a mode or stage that does not exist."""
        for name, words in (("mode", get_args(Mode)), ("stage", get_args(Stage))):
            if getattr(self, name) not in words:
                raise unknown(name, str(getattr(self, name)), words)

    @property
    def size(self) -> str:
        """Size in words, "" for the usual one.

        >>> Case(model="flux", height=512, width=768).size
        '768x512'
        """
        parts = [f"{self.width}x{self.height}"] if self.height and self.width else []
        parts += [f"{self.frames}f"] if self.frames else []
        parts += [f"{self.input_tokens} tokens"] if self.input_tokens else []
        parts += [f"{self.text_tokens} text"] if self.text_tokens else []
        return " ".join([*parts, *([f"batch {self.batch}"] if self.batch > 1 else [])])

    @property
    def subject(self) -> str:
        """Model, size, stage and precision: what plans and modes are compared on."""
        stage = "" if self.stage == "denoise" else self.stage
        kind = "" if self.precision == "bf16" else self.precision
        return " ".join(part for part in (self.model, self.size, stage, kind) if part)

    @property
    def key(self) -> str:
        """Name of the case, no other has it.

        >>> Case(model="flux", plan="tp2").key
        'flux | tp2 | graph'
        """
        words = (self.subject, self.plan, self.mode, self.engine)
        return " | ".join(word for word in words if word)

    def request(self, hardware: str, profile: str = "") -> Request:
        """Ask the planner the same thing."""
        sizes = {name: getattr(self, name) for name in SIZES}
        runtime = RUNTIMES[self.mode]
        if self.engine in SERVED_ENGINES and self.mode == "graph":
            runtime = find_engine(self.engine).runtime
        habit: TowerHabit = "once" if self.mode == "compile" else "every_step"
        return Request(
            model=self.model,
            gpus=parse_plan(self.plan).gpus,
            hardware=hardware,
            runtime=runtime,
            engine=self.engine or EXECUTOR,
            text_tower=habit if self.stage == "denoise" and not self.engine else None,
            batch=self.batch,
            precision=self.precision,
            kv_precision=None if self.stage == "denoise" else "bf16",
            steps=1 if self.stage == "denoise" else None,
            attention="" if self.engine else "auto",  # the executor's is the fastest right one
            output_tokens=_OUTPUT_TOKENS[self.stage],
            profile=profile,
            **sizes,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the fields of a case that are not left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A case with everything it names looked up."""

    case: Case
    model: Model
    workload: Workload
    plan: Plan
    deployment: Deployment

    @property
    def objections(self) -> str:
        """Say why the plan is illegal for the model; empty where it is legal."""
        return "; ".join(objections(self.model, self.workload, self.plan, self.plan.gpus))


def look_up(case: Case, hardware: str = "h100-sxm", profile: str = "") -> Subject:
    """Read the model of a case, and turn its sizes into the tokens of one step.

    Raises InputError if a name or a size cannot be right.

    profile : path of a calibration profile; empty for the one that ships, ``none`` for none.
    """
    return subject_of(case, case.request(hardware, profile))


def subject_of(case: Case, request: Request) -> Subject:
    """Look up what a request for a case names.

    Raises InputError if a name or a size cannot be right.
    """
    plan = parse_plan(case.plan)
    model = read_model(case.model)
    deployment = deployment_of(request, model)
    if (model.kind == "diffusion") != (case.stage == "denoise"):
        valid_stages = "denoise" if model.kind == "diffusion" else "prefill or decode"
        raise InputError(f"stage of {case.model}: got {case.stage}, wanted {valid_stages}")
    workload = workload_of(model, request, deployment.habits)
    steps = replace(workload, steps=1) if model.kind == "diffusion" else workload
    steps = replace(steps, passes=1) if case.engine else steps
    return Subject(case=case, model=model, workload=steps, plan=plan, deployment=deployment)


def digest_of(case: Case, hardware: str) -> str:
    """Sum up what a case asks for: all that its model's configuration says, and all sizes.

    Two cases of one key differ in it where a file was changed in between; empty where the model
    cannot be read.
    """
    try:
        subject = look_up(case, hardware)
    except ModelError:
        return ""
    return hashlib.sha256(repr((subject.model, subject.workload)).encode()).hexdigest()[:16]


def read_case(fields: Mapping[str, object], where: str = "case") -> Case:
    """Read a case from its fields.

    Raises InputError if one is unknown, of another type, or none that a case has.
    """
    names, reader = set(Case.__dataclass_fields__), Fields(where=where, values=fields)
    for name in fields:
        if name not in names:
            raise unknown("field of a case", str(name), sorted(names))
    numbers = {name: reader.integer(name) for name in (*SIZES, "batch") if reader.has(name)}
    texts = {name: reader.text(name) for name in names - {*SIZES, "batch"} if reader.has(name)}
    case = Case(**{"model": reader.text("model"), **numbers, **texts})  # type: ignore[arg-type]  # by name
    choices = (("precision", get_args(Precision)), ("engine", ("", *ENGINES.values())))
    for name, words in choices:
        if getattr(case, name) not in words:
            raise unknown(f"{name} in {where}", getattr(case, name), words)
    return replace(case, plan=str(parse_plan(case.plan)))


STEPS: Final = 32
"""Steps that decode in an engine's benchmark; the cache grows by as many tokens."""
SMALLEST_CHUNK: Final = 2048
"""Tokens of a step; vLLM takes no fewer than the sequences that it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSizes:
    """Tokens in an engine's benchmark: of a prompt, of it and its answer, and of a step."""

    prompt: int
    longest: int
    chunk: int


def bench_sizes(scenario: Scenario) -> BenchSizes:
    """Give the sizes of an engine's benchmark: all prompts of a batch are one step."""
    prompt = int(scenario.workload.length(scenario.model.streams[0].name))
    chunk = max(SMALLEST_CHUNK, int(scenario.workload.batch) * prompt)
    return BenchSizes(prompt=prompt, longest=prompt + STEPS + 1, chunk=chunk)
