"""Why TensorRT cannot run a plan, by the table of what it allows; and what to watch."""

from collections.abc import Iterator

from costmodels.formats import FORMATS
from planner.engines.reading import Version
from planner.engines.tables import allowed
from planner.engines.tensorrt_table import Allowed, dotted, is_of
from planner.models import Model
from planner.request.plan import Plan
from topology.catalogue import Hardware


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
        If there is no such version.
    """
    table = allowed()
    runs = table.running(version)
    yield from messages(plan)
    yield from _hardware(plan, hardware, precision, table)
    yield from _version(plan, runs, table)
    if not table.uneven_gathers:
        yield from _uneven(plan, table)


def layers(model: Model) -> Iterator[str]:
    """Yield what of a model is written in no layers of TensorRT, whatever the plan and the GPU."""
    if any(tower.latent is not None for tower in model.towers):
        yield "multi-head latent attention is written in no layers of TensorRT"
    if any(tower.recurrence is not None for tower in model.towers):
        yield "recurrences are written in no layers of TensorRT"


def messages(plan: Plan) -> Iterator[str]:
    """Yield what stands against a plan whatever the GPU: axes that TensorRT has no layers for."""
    lacks = allowed().lacks
    yield from (lacks[axis] for axis, _ in plan.axes if axis in lacks)
    if plan.ep > 1 and plan.degree("adp") == 1:
        yield lacks["ep"]


def _hardware(plan: Plan, hardware: Hardware, precision: str, table: Allowed) -> Iterator[str]:
    has = hardware.device.compute_capability
    if _meet(plan) and has < table.capability:
        yield (
            f"collectives need compute capability {dotted(table.capability)}, "
            f"and {hardware.name} has {dotted(has)}"
        )
    if not FORMATS[precision].multiplied:
        yield f"networks here hold no weights alone in {precision}"
    needs = table.precisions.get(precision, (0, 0))
    if has < needs:
        yield f"{precision} needs compute capability {dotted(needs)}, got {dotted(has)}"


def _version(plan: Plan, runs: Version, table: Allowed) -> Iterator[str]:
    for axis, degree in plan.axes:
        operation = table.meets.get(axis, "")
        if operation and runs < table.since[operation]:
            since = dotted(table.since[operation])
            yield f"{axis}{degree} needs {operation}, which TensorRT has since {since}"
    if plan.degree("cfg") > 1 and runs < table.first:
        yield f"cfg{plan.degree('cfg')} needs TensorRT {dotted(table.first)}"
    if _inner(plan) > 1 and any(is_of(runs, bad) for bad in table.groups_broken):
        yield (
            f"{plan}: collectives among some ranks of an engine give wrong sums on TensorRT "
            f"{dotted(runs)} (pytorch/TensorRT issue 4380)"
        )


def _uneven(plan: Plan, table: Allowed) -> Iterator[str]:
    """Yield axes along which fewer ranks gather than meet along another inside an engine."""
    inside = {axis: degree for axis, degree in plan.axes if axis in table.meets}
    most = max(inside.values(), default=1)
    for axis in table.meets:
        if table.meets[axis] != "all_reduce" and 1 < inside.get(axis, 1) < most:
            yield (
                f"{axis}{inside[axis]} gathers among {inside[axis]} ranks in an engine with "
                f"collectives of {most}, which TensorRT's builder refuses"
            )


def cautions(model: Model, plan: Plan, version: str = "") -> Iterator[str]:
    """Yield what to watch with a plan that TensorRT can run, and the way round."""
    table = allowed()
    runs = table.running(version)
    if unproven(plan, version):
        yield (
            "collectives among some ranks of an engine are unproven on TensorRT "
            f"{dotted(runs)}: they gave wrong sums on {dotted(table.groups_broken[0])}"
        )
    if _inner(plan) and table.fuses(runs):
        yield (
            f"TensorRT {dotted(runs)} builds collectives into what stands around them and may skip "
            "them (pytorch/TensorRT issue 4381): casts to 32 bits keep them apart, and are priced"
        )
    if plan.degree("ulysses") > 1:
        yield f"all-to-all needs NCCL {dotted(table.nccl_all_to_all)} or newer"
    if any(tower.ffn and tower.ffn.experts for block in model.blocks for tower in block.towers):
        yield "a mixture of experts is built so that every expert takes every token"


def unproven(plan: Plan, version: str = "") -> bool:
    """Whether nobody has told that collectives among some ranks of its engines are right."""
    table = allowed()
    runs = table.running(version)
    told = [*table.groups_broken, *table.groups_work]
    return _inner(plan) > 1 and not any(is_of(runs, other) for other in told)


def _meet(plan: Plan) -> bool:
    return any(axis in (*allowed().meets, "cfg") for axis, _ in plan.axes)


def _inner(plan: Plan) -> int:
    return sum(axis in allowed().meets for axis, _ in plan.axes)
