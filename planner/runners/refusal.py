"""Why a plan cannot be run: one answer, of engines and of TensorRT alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from planner.engines.engine import Engine, LaunchLine, Limits
from planner.engines.tables import allowed, find_engine
from planner.engines.tensorrt import layers
from planner.models import Model, grid
from planner.request.plan import Plan, nearest
from planner.request.request import EXECUTOR
from planner.runners.launch_settings import Settings, settings_of
from planner.scenario.scenario import Scenario
from planner.strategies.tp import padded_widths

SEQUENCE: Final = ("ulysses", "ring", "allgather_kv")
"""Axes over whose ranks a sequence is cut."""
DIVISIONS: Final[Mapping[str, str]] = {
    "tokens": "{} tokens",
    "ring": "{} tokens, which a ring cannot pad,",
    "frames": "{} latent frames",
    "latent_rows": "{} rows of latents",
    "sides": "{} rows and columns of tokens",
}
"""What may have to divide by the ranks of a sequence, in words; of `sides` one of the two."""
GOOD: Final = 32
"""First plans that TensorRT runs, among which the nearest to one that it does not is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A legal plan that an engine or a runtime cannot run, why, and the nearest that it can."""

    plan: Plan
    reason: str
    nearest: tuple[Plan, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints for a refused plan."""
        near = [str(plan) for plan in self.nearest]
        return {"plan": str(self.plan), "reason": self.reason, "nearest": near}


def runner_of(scenario: Scenario) -> str:
    """Name what a request is run with as people read it; empty where anything will do."""
    deployment = scenario.deployment
    if deployment.engine not in ("", EXECUTOR):
        return find_engine(deployment.engine).title
    return "TensorRT" if deployment.runtime.name == "tensorrt" else ""


def refusal(scenario: Scenario, plan: Plan) -> str:
    """Say why the engine or the runtime of a request cannot run a plan; empty where it can."""
    deployment = scenario.deployment
    if deployment.engine not in ("", EXECUTOR):
        engine = find_engine(deployment.engine)
        return refusal_of(engine, scenario.model, plan, settings_of(scenario, plan))
    return tensorrt_refusal(scenario, plan) if runner_of(scenario) else ""


def tensorrt_refusal(scenario: Scenario, plan: Plan) -> str:
    """Say why TensorRT cannot run a plan; empty where it can."""
    if scenario.workload.speculation is not None:
        return "its networks verify no drafted tokens"
    hardware, precision = scenario.deployment.hardware, scenario.workload.precision
    version = scenario.request.tensorrt_version
    stands = allowed().obstacles(plan, hardware, version, precision=precision)
    return "; ".join([*layers(scenario.model), *stands])


def is_unproven(scenario: Scenario, plan: Plan) -> bool:
    """Whether what runs a scenario is TensorRT, and nobody has told that it runs a plan right."""
    exported = runner_of(scenario) == "TensorRT"
    return exported and allowed().unproven(plan, scenario.request.tensorrt_version)


def refusals(scenario: Scenario, plans: Sequence[Plan]) -> tuple[Refusal, ...]:
    """Return those of the plans that cannot be run, each with the nearest that can.

    Parameters
    ----------
    plans : best first.
    """
    reasons = {plan: refusal(scenario, plan) for plan in plans}
    runs = [plan for plan, reason in reasons.items() if not reason]
    most = GOOD if runner_of(scenario) == "TensorRT" else len(runs)
    return tuple(
        Refusal(
            plan=plan,
            reason=reason,
            nearest=tuple(nearest(plan, [p for p in runs if p.gpus == plan.gpus][:most])),
        )
        for plan, reason in reasons.items()
        if reason
    )


def refusal_of(engine: Engine, model: Model, plan: Plan, settings: Settings) -> str:
    """Say why an engine cannot run a plan of a model as it is asked for; empty where it can."""
    limits = engine.limits_of(model.name, model.family)
    if limits is None:
        return f"does not run the {model.family} family"
    case = _Case(engine, limits, engine.line_of(limits), model, plan, settings)
    return next(filter(None, (rule(case) for rule in RULES)), "")


@dataclass(frozen=True, slots=True)
class _Case:
    """A plan of a model that an engine is asked to run, with the limits that it has there."""

    engine: Engine
    limits: Limits
    line: LaunchLine
    model: Model
    plan: Plan
    settings: Settings

    @property
    def of(self) -> str:
        """Name the model, or its family where the engine makes no difference between its models."""
        name = self.model.name
        return name if name in self.engine.models else f"the {self.model.family} family"


def _stranger(case: _Case) -> str:
    """Say why an engine cannot load a model; empty where it can."""
    limits = case.limits
    if limits.reason:
        return limits.reason
    if limits.named and case.settings.folder:
        return "runs models that it knows by name, not a folder"
    return f"does not know {case.model.name} by name" if limits.named and not limits.name else ""


def _axes(case: _Case) -> str:
    """Say which axis of a plan an engine has no flag for, or takes the flag of and does nothing."""
    limits = case.limits
    for axis, degree in case.plan.axes:
        lacks = [limits.lacks[axis]] if axis in limits.lacks else []
        if axis not in case.line.axes:
            return ": ".join([f"has no {axis} axis", *lacks])
        if limits.axes is not None and axis not in limits.axes:
            return ": ".join([f"has no {axis} axis for {case.of}", *lacks])
        degrees = limits.degrees.get(axis)
        if degrees and degree not in degrees:
            return f"{axis} of {degree}: expected one of {', '.join(map(str, degrees))}"
    return ""


def _together(case: _Case) -> str:
    """Say which of what is asked for exclude each other: axes, precision, attention, offloading."""
    settings = case.settings
    offload = ["offload"] if settings.offload else []
    used = [axis for axis, _ in case.plan.axes]
    drafts = ["speculation"] if settings.drafter else []
    used += [settings.precision, settings.attention, *offload, *drafts]
    for name, others in case.limits.alone.items():
        beside = [other for other in used if other in others]
        if name in used and beside:
            return f"{name} and {beside[0]} exclude each other"
    return ""


def _speculation(case: _Case) -> str:
    """Say that an engine cannot be told of drafts."""
    drafter, line = case.settings.drafter, case.line
    if not drafter or drafter in {**line.speculation, **line.untold}:
        return ""
    return "has no speculative decoding"


def _parallel_decode(case: _Case) -> str:
    flag, ranks = case.line.vae, case.plan.vae
    if ranks == 1:
        return ""
    if not flag or not case.limits.vae:
        return "has no parallel VAE decode" + (f" for {case.of}" if flag else "")
    some = "{n}" not in flag and ranks != case.plan.gpus
    return f"decodes on one GPU or on all {case.plan.gpus}, not on {ranks}" if some else ""


def _experts(case: _Case) -> str:
    flag, groups, ranks = case.line.ep, case.plan.ep, case.plan.expert_ranks
    if groups == 1:
        return ""
    if not flag:
        return "has no expert parallelism"
    some = "{n}" not in flag and groups != ranks
    return (
        f"gives experts of their own to all {ranks} ranks, not to {groups} groups" if some else ""
    )


def _division(case: _Case) -> str:
    """Say what does not divide by the ranks that an engine cuts a sequence over."""
    latent, plan = case.model.latent, case.plan
    if latent is None:
        return ""
    sizes, usual = case.settings.sizes, case.model.defaults
    height, width, frames = (
        sizes.get(name, getattr(usual, name)) for name in ("height", "width", "frames")
    )
    along_frames, rows, columns = (int(n) for n in grid(latent, height, width, frames))
    ranks = prod(degree for axis, degree in plan.axes if axis in SEQUENCE)
    tokens = along_frames * rows * columns
    counts = {
        "tokens": ([tokens], ranks),
        "ring": ([tokens], ranks if plan.degree("ring") > 1 else 1),
        "frames": ([along_frames], ranks),
        "latent_rows": ([height // latent.spatial], ranks),
        "sides": ([rows, columns], ranks),
    }
    for name in case.limits.divide:
        values, over = counts[name]
        if all(value % over for value in values):
            whole = " and ".join(f"{value:,}" for value in values)
            return f"{DIVISIONS[name].format(whole)} do not divide by {over}"
    return ""


def _precision(case: _Case) -> str:
    asked, limits, published = case.settings.precision, case.limits, case.model.quantisation
    if not asked and published is not None:
        read = published.method in case.line.published
        return "" if read else f"does not read {published.method} checkpoints"
    known = ("bf16", *case.line.precision, *case.line.untold)
    if asked in (known if limits.precisions is None else limits.precisions):
        return ""
    lacks = [limits.lacks[asked]] if asked in limits.lacks else []
    return ": ".join([f"has no {asked} for {case.of}", *lacks])


def _attention(case: _Case) -> str:
    kernel, limits = case.settings.attention, case.limits
    if kernel and kernel not in case.line.attention:
        return f"cannot be told to call {kernel} attention"
    if kernel and limits.attention is not None and kernel not in limits.attention:
        return f"has no {kernel} attention for {case.of}"
    return ""


def _size(case: _Case) -> str:
    """Say that an engine makes videos of some sizes alone, and not the one asked for."""
    sizes, usual, known = case.settings.sizes, case.model.defaults, case.limits.sizes
    width, height = (sizes.get(name, getattr(usual, name)) for name in ("width", "height"))
    asked = f"{width}x{height}"
    return f"{asked}: expected one of {', '.join(known)}" if known and asked not in known else ""


def _padded(case: _Case) -> str:
    """Say that no engine here pads a FFN whose width does not divide; empty where none must.

    vLLM does not either: vllm-project/vllm#16260.
    """
    padded = padded_widths(case.model, case.plan)
    widths = " and ".join(map(str, padded))
    return f"does not pad the FFN width {widths} for {case.plan}" if padded else ""


def group_copies(plan: Plan) -> int:
    """Count the copies of attention that one launch of an engine has: sharing experts, or not."""
    return plan.degree("adp") if plan.degree("adp") > 1 else plan.degree("dp")


def _spread(case: _Case) -> str:
    """Say why an engine cannot run a plan over several hosts; empty where it can."""
    several, hosts, copies = case.engine.several_hosts, case.settings.hosts, group_copies(case.plan)
    if hosts == 1:
        return ""
    if several.reason or not several.command:
        return f"{several.reason or 'runs on one host'}, not on {hosts}"
    if case.limits.line and not case.line.hosts:
        return f"runs {case.of} on one host"
    never = [axis for axis, _ in case.plan.axes if axis in several.never]
    if never:
        return f"has no {never[0]} axis over {hosts} hosts"
    if several.replicas and copies > 1 and copies % hosts:
        return f"would split its {copies} copies over {hosts} hosts"
    return ""


RULES: Final = (
    _stranger, _axes, _together, _parallel_decode, _experts, _division, _precision, _attention,
    _speculation, _size, _padded, _spread,
)  # fmt: skip
"""What may stand against a plan, in the order in which it is said."""
