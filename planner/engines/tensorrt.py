"""Why TensorRT cannot run a plan, and what to watch where it can."""

from collections.abc import Iterable, Iterator
from typing import Final

from planner.engines.tables import allowed
from planner.engines.tensorrt_table import Allowed, Version, dotted, read_version
from planner.models.architecture import Model
from planner.request.plan import Plan
from planner.search.plans import nearest
from topology.catalogue import Hardware

INNER: Final = ("ulysses", "allgather_kv", "tp")
"""Axes whose ranks meet inside an engine."""
MEETS: Final = {"tp": ("all_reduce",), "ulysses": ("all_to_all",), "allgather_kv": ("all_gather",)}
"""Collectives that an axis needs inside engines."""
GATHERS: Final = ("ulysses", "allgather_kv")
"""Axes whose ranks gather rows inside an engine."""
CLOSE: Final = 3
"""Plans that are offered in place of one that cannot run."""


def obstacles(
    model: Model,
    plan: Plan,
    hardware: Hardware,
    version: str = "",
    *,
    precision: str = "bf16",
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
    known = allowed()
    runs = read_version(version) if version else known.newest
    del model  # what a model is made of is judged by `planner.search.plans.unsupported`
    yield from messages(plan)
    yield from _hardware(plan, hardware, precision, known)
    yield from _version(plan, runs, known)
    if not known.uneven_gathers:
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


def _hardware(plan: Plan, hardware: Hardware, precision: str, known: Allowed) -> Iterator[str]:
    has = hardware.device.compute_capability
    if _meet(plan) and has < known.capability:
        yield (
            f"collectives need compute capability {dotted(known.capability)}, "
            f"and {hardware.name} has {dotted(has)}"
        )
    needs = known.precisions.get(precision, (0, 0))
    if has < needs:
        yield f"{precision} needs compute capability {dotted(needs)}, got {dotted(has)}"


def _version(plan: Plan, runs: Version, known: Allowed) -> Iterator[str]:
    for axis, degree in plan.axes:
        for operation in MEETS.get(axis, ()):
            since = known.since[operation]
            if runs < since:
                yield f"{axis}{degree} needs {operation}, which TensorRT has since {dotted(since)}"
    if plan.degree("cfg") > 1 and runs < known.first:
        yield f"cfg{plan.degree('cfg')} needs TensorRT {dotted(known.first)}"
    if _inner(plan) > 1 and any(_same(runs, bad) for bad in known.groups_broken):
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
    known = allowed()
    runs = read_version(version) if version else known.newest
    proven = [*known.groups_broken, *known.groups_work]
    if _inner(plan) > 1 and not any(_same(runs, one) for one in proven):
        yield (
            "collectives among some ranks of an engine are unproven on TensorRT "
            f"{dotted(runs)}: they gave wrong sums on {dotted(known.groups_broken[0])}"
        )
    if plan.degree("ulysses") > 1:
        yield f"all-to-all needs NCCL {dotted(known.nccl_all_to_all)} or newer"
    if any(tower.ffn and tower.ffn.experts for block in model.blocks for tower in block.towers):
        yield "a mixture of experts is built so that every expert takes every token"


def nearest_that_run(plan: Plan, able: Iterable[Plan]) -> list[Plan]:
    """Return the plans most like one that TensorRT cannot run, of those that it can."""
    return nearest(plan, able, CLOSE)


def _meet(plan: Plan) -> bool:
    return any(axis in (*INNER, "cfg") for axis, _ in plan.axes)


def _inner(plan: Plan) -> int:
    return sum(axis in INNER for axis, _ in plan.axes)


def _same(runs: Version, other: Version) -> bool:
    """Whether a version is another, as far as it is told."""
    return runs[: len(other)] == other
