"""Why a plan cannot be run: one answer, of engines and of TensorRT alike; and what to watch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from planner.engines.engine import Engine
from planner.engines.reading import Version, read_version
from planner.engines.scenario import Scenario
from planner.engines.settings import Settings, settings_of
from planner.engines.tables import allowed, find_engine
from planner.engines.tensorrt_table import Allowed, dotted
from planner.models import Model
from planner.request.plan import Plan, nearest
from planner.request.request import EXECUTOR
from planner.strategies.tensor import padded_widths
from topology.catalogue import Hardware

INNER: Final = ("ulysses", "allgather_kv", "tp")
"""Axes whose ranks meet inside an engine."""
MEETS: Final = {"tp": ("all_reduce",), "ulysses": ("all_to_all",), "allgather_kv": ("all_gather",)}
"""Collectives that an axis needs inside engines."""
GATHERS: Final = ("ulysses", "allgather_kv")
"""Axes whose ranks gather rows inside an engine."""
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


def refusal(scenario: Scenario, plan: Plan, version: str = "") -> str:
    """Say why the engine or the runtime of a request cannot run a plan; empty where it can.

    Parameters
    ----------
    version : of TensorRT, such as ``11.2.1.2``; the newest known where left out.
    """
    deployment = scenario.deployment
    if deployment.engine not in ("", EXECUTOR):
        engine = find_engine(deployment.engine)
        return refusal_of(engine, scenario.model, plan, settings_of(scenario, plan.gpus))
    return tensorrt_refusal(scenario, plan, version) if runner_of(scenario) else ""


def tensorrt_refusal(scenario: Scenario, plan: Plan, version: str = "") -> str:
    """Say why TensorRT cannot run a plan; empty where it can."""
    hardware, precision = scenario.deployment.hardware, scenario.workload.precision
    return "; ".join(obstacles(plan, hardware, version, precision=precision))


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
    """Say why an engine cannot run a plan of a model; empty where it can."""
    return (
        _stranger(engine, model, settings)
        or _inexpressible(engine, plan)
        or _family(engine, model.family, plan, settings)
        or _padded(model, plan)
        or _spread(engine, plan, settings)
    )


def _stranger(engine: Engine, model: Model, settings: Settings) -> str:
    """Say why an engine cannot load a model; empty where it can."""
    limits = engine.limits
    strange = limits.families and model.family not in limits.families
    if strange or limits.without.get(model.family) == ():
        return f"does not run the {model.family} family"
    if settings.folder and not limits.folder:
        return "runs models that it knows by name, not a folder"
    if limits.models and model.name not in limits.models:
        return f"does not know {model.name} by name"
    return ""


def _inexpressible(engine: Engine, plan: Plan) -> str:
    """Say what of a plan an engine has no flag for; empty where it has all."""
    limits = engine.limits
    for axis, degree in plan.axes:
        if axis not in engine.line.axes:
            return ": ".join([f"has no {axis} axis", *filter(None, [limits.lacks.get(axis)])])
        degrees = limits.degrees.get(axis)
        if degrees and degree not in degrees:
            return f"{axis} of {degree}: expected one of {', '.join(map(str, degrees))}"
    if plan.vae > 1 and not engine.line.vae:
        return "has no parallel VAE decode"
    together = [axis for axis, _ in plan.axes if axis in limits.alone]
    return f"{' and '.join(together)} exclude each other" if len(together) > 1 else ""


def _family(engine: Engine, family: str, plan: Plan, settings: Settings) -> str:
    """Say what an engine cannot do with one family alone; empty where it can all."""
    for axis, _ in plan.axes:
        if axis in engine.limits.without.get(family, ()):
            return f"has no {axis} axis for the {family} family"
    alone = family in engine.line.commands and settings.hosts > 1
    return f"runs {family} on one host" if alone else ""


def _padded(model: Model, plan: Plan) -> str:
    """Say that no engine here pads a FFN whose width does not divide; empty where none must.

    vLLM does not either: vllm-project/vllm#16260.
    """
    degree = plan.degree("tp")
    widths = [str(width) for width in padded_widths(model, degree)]
    return f"does not pad the FFN width {' and '.join(widths)} for tp{degree}" if widths else ""


def _spread(engine: Engine, plan: Plan, settings: Settings) -> str:
    """Say why an engine cannot run a plan over several hosts; empty where it can."""
    several, hosts, copies = engine.several_hosts, settings.hosts, plan.degree("dp")
    if hosts == 1:
        return ""
    if several.reason or not several.command:
        return f"{several.reason or 'runs on one host'}, not on {hosts}"
    never = [axis for axis, _ in plan.axes if axis in several.never]
    if never:
        return f"has no {never[0]} axis over {hosts} hosts"
    if several.replicas and copies > 1 and copies % hosts:
        return f"would split its {copies} copies over {hosts} hosts"
    return ""


def obstacles(
    plan: Plan, hardware: Hardware, version: str = "", *, precision: str = "bf16"
) -> Iterator[str]:
    """Yield what keeps TensorRT from running a plan, one clause each; nothing where it can.

    Parameters
    ----------
    version : such as ``11.2.1.2``; the newest known where left out.

    Raises
    ------
    InputError
        If the version is no version.
    """
    table = allowed()
    runs = read_version(version) if version else table.newest
    yield from messages(plan)
    yield from _hardware(plan, hardware, precision, table)
    yield from _version(plan, runs, table)
    if not table.uneven_gathers:
        yield from _uneven(plan)


def messages(plan: Plan) -> Iterator[str]:
    """Yield what stands against a plan whatever the GPU: messages that no layer passes."""
    degrees = dict(plan.axes)
    if "ring" in degrees:
        yield (
            "ring needs point-to-point messages, which TensorRT has not, and a log-sum-exp that "
            "its attention does not give (what NVIDIA's builder calls ring is allgather_kv)"
        )
    if "pp" in degrees:
        yield "pp needs point-to-point messages between stages, which TensorRT has not"
    if "ep" in degrees:
        yield "experts on several GPUs are not modelled"


def _hardware(plan: Plan, hardware: Hardware, precision: str, table: Allowed) -> Iterator[str]:
    has = hardware.device.compute_capability
    if _meet(plan) and has < table.capability:
        yield (
            f"collectives need compute capability {dotted(table.capability)}, "
            f"and {hardware.name} has {dotted(has)}"
        )
    needs = table.precisions.get(precision, (0, 0))
    if has < needs:
        yield f"{precision} needs compute capability {dotted(needs)}, got {dotted(has)}"


def _version(plan: Plan, runs: Version, table: Allowed) -> Iterator[str]:
    for axis, degree in plan.axes:
        for operation in MEETS.get(axis, ()):
            since = table.since[operation]
            if runs < since:
                yield f"{axis}{degree} needs {operation}, which TensorRT has since {dotted(since)}"
    if plan.degree("cfg") > 1 and runs < table.first:
        yield f"cfg{plan.degree('cfg')} needs TensorRT {dotted(table.first)}"
    if _inner(plan) > 1 and any(_same(runs, bad) for bad in table.groups_broken):
        yield (
            f"{plan}: collectives among some ranks of an engine give wrong sums on TensorRT "
            f"{dotted(runs)} (pytorch/TensorRT issue 4380)"
        )


def _uneven(plan: Plan) -> Iterator[str]:
    """Yield axes along which fewer ranks gather than meet along another inside an engine."""
    inside = {axis: degree for axis, degree in plan.axes if axis in INNER}
    most = max(inside.values(), default=1)
    for axis in GATHERS:
        if 1 < inside.get(axis, 1) < most:
            yield (
                f"{axis}{inside[axis]} gathers among {inside[axis]} ranks in an engine with "
                f"collectives of {most}, which TensorRT's builder refuses"
            )


def cautions(model: Model, plan: Plan, version: str = "") -> Iterator[str]:
    """Yield what to watch with a plan that TensorRT can run."""
    table = allowed()
    runs = read_version(version) if version else table.newest
    proven = [*table.groups_broken, *table.groups_work]
    if _inner(plan) > 1 and not any(_same(runs, other) for other in proven):
        yield (
            "collectives among some ranks of an engine are unproven on TensorRT "
            f"{dotted(runs)}: they gave wrong sums on {dotted(table.groups_broken[0])}"
        )
    if plan.degree("ulysses") > 1:
        yield f"all-to-all needs NCCL {dotted(table.nccl_all_to_all)} or newer"
    if any(tower.ffn and tower.ffn.experts for block in model.blocks for tower in block.towers):
        yield "a mixture of experts is built so that every expert takes every token"


def _meet(plan: Plan) -> bool:
    return any(axis in (*INNER, "cfg") for axis, _ in plan.axes)


def _inner(plan: Plan) -> int:
    return sum(axis in INNER for axis, _ in plan.axes)


def _same(runs: Version, other: Version) -> bool:
    """Whether a version is another, as far as it is told."""
    return runs[: len(other)] == other
