"""Why a plan cannot be run: one answer, of engines and of TensorRT alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Final

from costmodels.sizes import any_true
from planner.engines.caches import SKIP
from planner.engines.engine import Engine, LaunchLine, Limits
from planner.engines.tables import allowed
from planner.engines.tensorrt import dotted, layers
from planner.models import Model, grid
from planner.request.plan import Plan, nearest
from planner.runners.launch_settings import Settings, settings_of
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import Shared
from planner.search.judging import judge
from planner.search.plans import objections, plans
from planner.strategies.tp import padded_widths
from topology.base import IllegalPlanError, format_seconds
from topology.base.values import dataclass

DIVISIONS: Final[Mapping[str, str]] = {
    "tokens": "{} tokens",
    "ring": "{} tokens, which a ring cannot pad,",
    "frames": "{} latent frames",
    "latent_rows": "{} rows of latents",
    "sides": "{} rows and columns of tokens",
}
"""What may have to divide by the ranks of a sequence, in words; of `sides` one of the two."""
NEAREST_AMONG: Final = 32
"""Plans among which the nearest to one that is refused is looked for."""
NEAREST_NAMED: Final = 3
"""Plans that are named in place of one that is refused."""


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


def refusal(scenario: Scenario, plan: Plan) -> str:
    """Say why the engine or the runtime of a request cannot run a plan; empty where it can."""
    return refuser(scenario)(plan)


def refuser(scenario: Scenario) -> Callable[[Plan], str]:
    """Say of many plans what `refusal` says of one; what is asked of all is collected once."""
    engine = scenario.deployment.runner
    if engine is None:
        return cache(partial(_own_refusal, scenario))
    shared_settings = cache(lambda gpus: settings_of(scenario, Plan((("dp", gpus),))))

    def refuses(plan: Plan) -> str:
        spreads_experts = plan.degree("adp") > 1  # over links that settings tell of
        settings = settings_of(scenario, plan) if spreads_experts else shared_settings(plan.gpus)
        return refusal_of(engine, scenario.model, plan, settings)

    return cache(refuses)


def _own_refusal(scenario: Scenario, plan: Plan) -> str:
    """Say why TensorRT or `planner validate` cannot run a plan."""
    if scenario.workload.prefixed:
        return "runs whole prompts, of which nothing is cached"
    return (
        tensorrt_refusal(scenario, plan) if scenario.deployment.exported else executor_refusal(plan)
    )


def executor_refusal(plan: Plan) -> str:
    """Say why `planner validate` runs no such plan in PyTorch; empty where it does."""
    unsupported = plan.patch > 1 or plan.fsdp > 1 or plan.degree("uaa") > 1
    return "proved by the reference, not run here" if unsupported else ""


def tensorrt_refusal(scenario: Scenario, plan: Plan) -> str:
    """Say why TensorRT cannot run a plan; empty where it can."""
    if scenario.workload.speculation is not None:
        return "its networks verify no drafted tokens"
    if scenario.workload.reuse is not None:
        return "its networks keep no features of another step"
    hardware, precision = scenario.deployment.hardware, scenario.workload.precision
    version = scenario.request.tensorrt_version
    obstacles = [*allowed().obstacles(plan, hardware, version, precision=precision)]
    decodes = any_true(scenario.workload.output_tokens > 0)
    if scenario.model.kind == "decoder" and plan.sequence_ranks > 1 and decodes:
        obstacles.append(
            "parts of a cut cache are merged by log-sum-exps, which its attention does not give"
        )
    return "; ".join([*layers(scenario.model), *obstacles])


def refusals(scenario: Scenario, plans: Sequence[Plan]) -> tuple[Refusal, ...]:
    """Return those of the plans that cannot be run, each with the nearest that can.

    plans : best first.
    """
    refuses = refuser(scenario)
    reasons = {plan: refuses(plan) for plan in plans}
    runnable = [plan for plan, reason in reasons.items() if not reason]
    limit = NEAREST_AMONG if scenario.deployment.exported else len(runnable)
    return tuple(
        Refusal(
            plan=plan,
            reason=reason,
            nearest=tuple(nearest(plan, [p for p in runnable if p.gpus == plan.gpus][:limit])),
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


def _load_refusal(case: _Case) -> str:
    """Say why an engine cannot load a model; empty where it can."""
    limits = case.limits
    if limits.reason:
        return limits.reason
    if limits.named and case.settings.folder:
        return "runs models that it knows by name, not a folder"
    return f"does not know {case.model.name} by name" if limits.named and not limits.name else ""


def _device(case: _Case) -> str:
    """Say that a GPU is of a generation that an engine has no kernels for, or none of a format."""
    engine, settings, published = case.engine, case.settings, case.model.quantisation
    precision = settings.precision or (published.precision if published else "")
    format_capability = engine.capabilities.get(precision, ())
    needed, present = max(engine.capability, format_capability), settings.capability
    if not present or present >= needed:
        return ""
    purpose = f" for {precision}" if needed > engine.capability else ""
    return (
        f"needs GPUs of compute capability {dotted(needed)}{purpose}, and these have "
        f"{dotted(present)}"
    )


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


def _exclusions(case: _Case) -> str:
    """Say which of what is asked for exclude each other: axes, precision, attention, offloading."""
    settings = case.settings
    options = {"offload": settings.offload, "speculation": bool(settings.drafter)}
    used = [axis for axis, _ in case.plan.axes]
    used += [settings.precision, settings.attention, *(name for name in options if options[name])]
    for name, others in case.limits.alone.items():
        excluded = [other for other in used if other in others]
        if name in used and excluded:
            return f"{name} and {excluded[0]} exclude each other"
    return ""


def _speculation(case: _Case) -> str:
    """Say that an engine cannot be told of drafts."""
    drafter, line = case.settings.drafter, case.line
    supported = not drafter or drafter in {**line.speculation, **line.untold}
    return "" if supported else "has no speculative decoding"


def _features(case: _Case) -> str:
    """Say that an engine has no such cache of features."""
    name = case.settings.features
    if not name or name in case.line.features:
        return ""
    return "reuses no features of another step" if name == SKIP else f"has no {name} here"


def _parallel_decode(case: _Case) -> str:
    flag, ranks = case.line.vae, case.plan.vae
    if ranks == 1:
        return ""
    if not flag or not case.limits.vae:
        return "has no parallel VAE decode" + (f" for {case.of}" if flag else "")
    if "{n}" in flag or ranks == case.plan.gpus:
        return ""
    return f"decodes on one GPU or on all {case.plan.gpus}, not on {ranks}"


def _experts(case: _Case) -> str:
    flag, groups, ranks = case.line.ep, case.plan.ep, case.plan.expert_ranks
    if groups == 1 or "{n}" in flag or (flag and groups == ranks):
        return ""
    if not flag:
        return "has no expert parallelism"
    return f"gives experts of their own to all {ranks} ranks, not to {groups} groups"


def _pieces(case: _Case) -> str:
    """Say that an engine runs a pipeline without pieces, or only with them."""
    flag, stages = case.line.patch, case.plan.degree("pp")
    if case.plan.patch > 1 and not flag:
        return "has no PipeFusion, whose pieces follow one another through a pipeline"
    if case.plan.patch == 1 and stages > 1 and flag:
        return f"runs a pipeline in pieces alone (pipefusion{stages}), which is another result"
    return ""


def _shares_weights(case: _Case) -> str:
    """Say that an engine does not hold weights in parts, or only on all ranks."""
    flag, parts, gpus = case.line.fsdp, case.plan.fsdp, case.plan.gpus
    if parts == 1 or (flag and parts == gpus):
        return ""
    return f"spreads weights over all {gpus} GPUs" if flag else "has no FSDP here"


def _division(case: _Case) -> str:
    """Say what does not divide by the ranks that an engine cuts a sequence over."""
    latent, plan = case.model.latent, case.plan
    if latent is None:
        return ""
    sizes, defaults = case.settings.sizes, case.model.defaults
    height, width, frames = (
        sizes.get(name, getattr(defaults, name)) for name in ("height", "width", "frames")
    )
    along_frames, rows, columns = (int(n) for n in grid(latent, height, width, frames))
    ranks = plan.sequence_ranks // plan.degree("uaa")
    tokens = along_frames * rows * columns
    counts = {
        "tokens": ([tokens], ranks),
        "ring": ([tokens], ranks if plan.degree("ring") > 1 else 1),
        "frames": ([along_frames], ranks),
        "latent_rows": ([height // latent.spatial], ranks),
        "sides": ([rows, columns], ranks),
    }
    for name in case.limits.divide:
        values, divisor = counts[name]
        if all(value % divisor for value in values):
            sizes_text = " and ".join(f"{value:,}" for value in values)
            return f"{DIVISIONS[name].format(sizes_text)} do not divide by {divisor}"
    return ""


def _precision(case: _Case) -> str:
    precision, limits, published = case.settings.precision, case.limits, case.model.quantisation
    if not precision and published is not None:
        reads_method = published.method in case.line.published
        return "" if reads_method else f"does not read {published.method} checkpoints"
    known_precisions = ("bf16", *case.line.precision, *case.line.untold)
    if precision in (known_precisions if limits.precisions is None else limits.precisions):
        return ""
    lacks = [limits.lacks[precision]] if precision in limits.lacks else []
    return ": ".join([f"has no {precision} for {case.of}", *lacks])


def _attention(case: _Case) -> str:
    kernel, limits = case.settings.attention, case.limits
    if kernel and kernel not in case.line.attention:
        return f"cannot be told to call {kernel} attention"
    if kernel and limits.attention is not None and kernel not in limits.attention:
        return f"has no {kernel} attention for {case.of}"
    return ""


def _size(case: _Case) -> str:
    """Say that an engine makes videos of some sizes alone, and not the one asked for."""
    sizes, defaults, allowed_sizes = case.settings.sizes, case.model.defaults, case.limits.sizes
    width, height = (sizes.get(name, getattr(defaults, name)) for name in ("width", "height"))
    size_text = f"{width}x{height}"
    return (
        f"{size_text}: expected one of {', '.join(allowed_sizes)}"
        if allowed_sizes and size_text not in allowed_sizes
        else ""
    )


def _padding_refusal(case: _Case) -> str:
    """Say that no engine here pads a FFN whose width does not divide; empty where none must.

    vLLM does not either: vllm-project/vllm#16260.
    """
    padded = padded_widths(case.model, case.plan)
    widths = " and ".join(map(str, padded))
    return f"does not pad the FFN width {widths} for {case.plan}" if padded else ""


def group_copies(plan: Plan) -> int:
    """Count the copies of attention that one launch of an engine has: sharing experts, or not."""
    return plan.degree("adp") if plan.degree("adp") > 1 else plan.degree("dp")


def one_copy(line: LaunchLine, model: Model, plan: Plan) -> Plan:
    """Give the plan of one copy, where copies are started one by one; the whole plan elsewhere."""
    apart = line.experts if model.has_experts else ()
    return replace(plan, axes=tuple(axis for axis in plan.axes if axis[0] not in apart))


def _hosts_refusal(case: _Case) -> str:
    """Say why an engine cannot run a plan over several hosts; empty where it can."""
    several, hosts = case.engine.several_hosts, case.settings.hosts
    one = one_copy(case.line, case.model, case.plan)
    started = case.plan.gpus // one.gpus
    if started % hosts and hosts % started:
        return _split(started, hosts)
    hosts = max(1, hosts // started)
    if hosts == 1:
        return ""
    if several.reason or not several.command:
        return f"{several.reason or 'runs on one host'}, not on {hosts}"
    if case.limits.line and not case.line.hosts:
        return f"runs {case.of} on one host"
    barred_axes = next((axis for axis, _ in one.axes if axis in several.never), "")
    if barred_axes:
        return f"has no {barred_axes} axis over {hosts} hosts"
    copies = group_copies(one) if several.replicas else 1
    return _split(copies, hosts) if copies > 1 and copies % hosts else ""


def _split(copies: int, hosts: int) -> str:
    return f"would split its {copies} copies over {hosts} hosts"


RULES: Final = (
    _load_refusal, _device, _axes, _exclusions, _parallel_decode, _experts, _pieces,
    _shares_weights,
    _division, _precision, _attention, _features, _speculation, _size, _padding_refusal,
    _hosts_refusal,
)  # fmt: skip
"""What may stand against a plan, in the order in which it is said."""


SIGN: Final = "!"
"""Stands behind a plan's name in a table; the reason follows below."""


def nearest_advice(scenario: Scenario, plan: Plan, refuses: Callable[[Plan], str]) -> str:
    """Name the plans most like one that is refused, of all that are not, and that fit."""
    model, work, shared = scenario.model, scenario.workload, Shared()
    runnable = (
        other
        for other in plans(model, plan.gpus)
        if not any(objections(model, work, other, plan.gpus)) and not refuses(other)
    )
    fitting = (
        str(other)
        for other in nearest(plan, runnable, count=NEAREST_AMONG)
        if isinstance(judge(scenario, other, shared), PlanEstimate)
    )
    names = ", ".join(islice(fitting, NEAREST_NAMED))
    return f"; nearest that run: {names}" if names else ""


def check_tensorrt(scenario: Scenario, plan: Plan) -> None:
    """Refuse a plan that TensorRT cannot run.

    Raises `IllegalPlanError` with the reasons, and the plans most like it that TensorRT runs.
    """
    reason = tensorrt_refusal(scenario, plan)
    if reason:
        nearest_text = nearest_advice(
            scenario, plan, lambda other: tensorrt_refusal(scenario, other)
        )
        raise IllegalPlanError(f"plan {plan}: {reason}{nearest_text}")


def footnotes(
    scenario: Scenario, shown: Sequence[PlanEstimate], refused: Sequence[Refusal]
) -> list[str]:
    """Return what stands below plans: reasons of those that cannot run, and what to watch."""
    deployment = scenario.deployment
    if deployment.runner is None and not deployment.exported:
        return []
    reasons = {row.plan: row for row in refused}
    barred = [(plan, reasons[plan.plan]) for plan in shown if plan.plan in reasons]
    lines = [
        _reason_line(
            deployment.title, [pair for pair in barred if pair[1].reason == reason], len(shown)
        )
        for reason in dict.fromkeys(row.reason for _, row in barred)
    ]
    if not deployment.exported:
        return lines
    runnable = [plan.plan for plan in shown if plan.plan not in reasons]
    version = scenario.request.tensorrt_version
    cautions = [
        f"TensorRT: {line}"
        for plan in runnable
        for line in allowed().cautions(scenario.model, plan, version)
    ]
    return [*lines, *dict.fromkeys(cautions), *_attention_offers(scenario, runnable)]


def _attention_offers(scenario: Scenario, runnable: Sequence[Plan]) -> Iterator[str]:
    """Name the plan whose keys may stay on their ranks, where TensorRT has such an attention."""
    table, request = allowed(), scenario.request
    capability = scenario.deployment.hardware.device.compute_capability
    has_attention = table.running(request.tensorrt_version) >= table.attention_since
    if not (has_attention and table.spreads_attention(capability)):
        return
    from planner.tensorrt import spreads_attention  # noqa: PLC0415  # slow to load

    for plan in runnable:
        degree = plan.degree("allgather_kv")
        if degree > 1 and spreads_attention(scenario.model, scenario.workload, plan):
            yield (
                f"TensorRT: {plan} may keep keys on their ranks, a ring inside the layer as "
                f"ring{degree} is priced: planner export --multi-device-attention"
            )
            return


def _reason_line(runner: str, refused: Sequence[tuple[PlanEstimate, Refusal]], shown: int) -> str:
    """Say a reason of several plans once, with the plan that is nearest to each."""
    nearest_names = list(dict.fromkeys(str(plan) for _, row in refused for plan in row.nearest[:1]))
    plan_texts = [f"{plan.plan} ({format_seconds(plan.latency_s)})" for plan, _ in refused]
    names = "any of these" if len(refused) == shown > 1 else ", ".join(plan_texts)
    nearest_text = f"; nearest that it can: {', '.join(nearest_names)}" if nearest_names else ""
    return f"{SIGN} not with {runner}: {names}: {refused[0][1].reason}{nearest_text}"
