"""Two jobs on one machine at the same time: what each loses on links that both pass."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from costmodels.events import Lane, Task, Traffic, contended, run
from planner.scenario.deployment import Deployment
from planner.scenario.keywords import request_of
from planner.scenario.scenario import Scenario, resolve
from planner.search.estimate import PlanEstimate, worded
from planner.search.evaluate import seated
from planner.search.judging import judge
from planner.simulation.disturbances import Disturbances
from planner.simulation.links import MessageKind, Wiring
from planner.simulation.simulation import Simulation, simulate, stages_of
from planner.simulation.symmetry import Alike
from planner.simulation.tasks import RankTasks, tasks_of
from planner.strategies import parse_plan
from topology.base import InputError, counted, format_seconds, shown
from topology.base.table import Table
from topology.base.values import dataclass
from topology.machine import Link

MOST_TOGETHER: Final = 300_000
"""Operations of two jobs."""
COVERED: Final = 1.5
"""Times a turn of one job that the turns of the other last at least, each by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBeside:
    """A job while another one runs: seconds of a turn of its main stage, by itself and then."""

    model: str
    plan: str
    gpus: int
    stage: str
    turn_alone_s: float
    turn_s: float

    @property
    def lost(self) -> float:
        """How much longer a turn takes, as a part of what it takes alone."""
        return self.turn_s / self.turn_alone_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A turn of the main stage of a job, on all of its ranks, and its seconds by itself."""

    simulation: Simulation
    work: RankTasks
    alone_s: float


def beside(
    scenario: Scenario, simulation: Simulation, other: str, disturbed: Disturbances
) -> tuple[JobBeside, JobBeside]:
    """Run a job beside another one on the next GPUs of the same hosts.

    Of each a turn is run while the other has one turn after another.

    other : its model and plan, such as ``flux:ulysses4``; of the usual sizes.

    Raises `InputError` if there is no such job, no room for it on the hosts, or jitter of one.
    """
    model, colon, plan = other.rpartition(":")
    if not (colon and plan):
        raise InputError(f"beside: got {shown(other)}, wanted a model and a plan: flux:ulysses4")
    if disturbed.jitter:
        raise InputError("jitter: got it with --beside, wanted one of the two: it is of one job")
    second = _second(scenario, model, plan, seated(scenario, simulation.estimate.plan))
    estimate = judge(second, parse_plan(plan))
    if not isinstance(estimate, PlanEstimate):
        raise InputError(f"beside: plan {plan} of {model}: {estimate.reason}")
    usual = Disturbances(even=disturbed.even, traffic=disturbed.traffic)
    ran = simulate(second, estimate, usual)
    hosts = max(scenario.deployment.hosts, second.deployment.hosts)
    taken = simulation.estimate.gpus // scenario.deployment.hosts
    links: dict[Link, int] = {}
    jobs = (
        _job(scenario, simulation, disturbed, links, (hosts, 0)),
        _job(second, ran, usual, links, (hosts, taken)),
    )
    first, last = _together(jobs[0], jobs[1]), _together(jobs[1], jobs[0])
    return first, last


def _second(scenario: Scenario, model: str, plan: str, first: Deployment) -> Scenario:
    """Ask for another model on the GPUs that the first job leaves on its hosts, of usual sizes.

    Raises `InputError` if there are too few.
    """
    machine = first.subset.machine if first.subset else None
    same = ("runtime", "nodes") if machine else ("hardware", "runtime", "nodes")
    options = {name: value for name in same if (value := getattr(scenario.request, name))}
    options |= {"topology": machine} if machine else {}
    second = resolve(request_of(model, parse_plan(plan).gpus, options))
    deployment, place = second.deployment, first.placed
    taken = range(first.gpus // first.hosts) if place is None else place.devices
    subset = deployment.subset
    gpus = deployment.hardware.gpus if subset is None else len(subset.machine.gpus)
    _check_room(deployment, gpus, len(taken))
    if subset is None:
        return second
    beside = subset.beside(taken)
    hardware = beside.ruling(deployment.precision)
    return replace(second, deployment=replace(deployment, subset=beside, hardware=hardware))


def _check_room(second: Deployment, gpus: int, taken: int) -> None:
    """Refuse a job for which a host of so many GPUs has no room."""
    name, each = second.hardware.name, second.gpus // second.hosts
    if taken == gpus:
        raise InputError(
            f"beside: the first job fills the {counted(gpus, 'GPU')} of a host of {name}: give it "
            "fewer, or spread it over more hosts (--nodes)"
        )
    if taken + each > gpus:
        raise InputError(
            f"beside: got {counted(each, 'GPU')} a host behind {taken}, wanted at most "
            f"{gpus - taken} of the {gpus} of {name}"
        )


def _job(
    scenario: Scenario,
    simulation: Simulation,
    disturbed: Disturbances,
    links: dict[Link, int],
    room: tuple[int, int],
) -> _Job:
    """Write a turn of the main stage down for all ranks; links are numbered for both jobs."""

    def apart(wiring: Wiring, kinds: Iterable[MessageKind], marks: Sequence[Hashable]) -> Alike:
        return _apart(wiring, list(kinds), len(marks), links)

    _, stages, prices = stages_of(scenario, simulation.estimate, disturbed, room, apart)
    stage = next(one for one in stages if one.name == simulation.stage)
    work = tasks_of(stage, prices)
    if stage.turns > 1:
        work = work.amid(work.run().seconds)
    return _Job(simulation=simulation, work=work, alone_s=work.run().seconds)


def _apart(
    wiring: Wiring, kinds: Sequence[MessageKind], ranks: int, links: dict[Link, int]
) -> Alike:
    """Run every rank by itself: what it meets on links may be of the other job."""
    taken = {
        (kind, group): tuple(
            (links.setdefault(link, len(links)), share) for link, share in shares.items()
        )
        for kind in dict.fromkeys(kinds)
        for group, shares in wiring.shares(kind)
    }
    groups = {(kind.axis, rank): group for kind, group in taken for rank in group}
    others = {number: wiring.taken(link) for link, number in links.items()}
    return Alike(first=range(ranks), groups=groups, uses=taken, taken=others)


def _together(one: _Job, other: _Job) -> JobBeside:
    """Run a turn of one job while the other has turn after turn."""
    estimate = one.simulation.estimate
    return JobBeside(
        model=estimate.model,
        plan=str(estimate.plan),
        gpus=estimate.gpus,
        stage=one.simulation.stage,
        turn_alone_s=one.alone_s,
        turn_s=_held_up(one, other) if _meet(one, other) else one.alone_s,
    )


def _meet(one: _Job, other: _Job) -> bool:
    """Whether both pass a link of which messages may want more than there is."""
    tasks, lanes = list[Task](), dict[Lane, list[int]]()
    _add(tasks, lanes, one.work, 0, 0.0)
    _add(tasks, lanes, other.work, _behind(one), 0.0)
    full = contended(tasks, _taken(one, other))
    passed = (
        {link for task in job.work.tasks for link, _ in task.uses if link in full}
        for job in (one, other)
    )
    return bool(set.intersection(*passed))


def _held_up(one: _Job, other: _Job) -> float:
    """Seconds of a turn of one job that begins with the first of many of the other."""
    each = other.alone_s
    turns = math.ceil(COVERED * one.alone_s / each)
    count = len(one.work.tasks) + turns * len(other.work.tasks)
    if count > MOST_TOGETHER:
        raise InputError(
            f"beside: a turn of {one.simulation.estimate.plan} takes as long as {turns:,} of "
            f"{other.simulation.estimate.plan}, {count:.2g} operations: wanted at most "
            f"{MOST_TOGETHER:.2g}"
        )
    tasks, lanes = list[Task](), dict[Lane, list[int]]()
    _add(tasks, lanes, one.work, 0, 0.0)
    for turn in range(turns):
        _add(tasks, lanes, other.work, _behind(one), turn * each)
    return max(run(tasks, lanes, _taken(one, other)).end[: len(one.work.tasks)])


def _taken(one: _Job, other: _Job) -> Traffic:
    """Give the parts of the links of both that others take."""
    return {**one.work.taken, **other.work.taken}


def _behind(one: _Job) -> int:
    """Give the first number that no rank of a job has."""
    return 1 + max(rank for rank, _ in one.work.lanes)


def _add(
    tasks: list[Task], lanes: dict[Lane, list[int]], work: RankTasks, behind: int, issued: float
) -> None:
    """Add a turn of a job whose ranks are numbered behind those of another."""
    start = len(tasks)
    tasks += [
        replace(
            task,
            ranks=tuple(rank + behind for rank in task.ranks),
            after=tuple(number + start for number in task.after),
            issued=task.issued - work.ahead + issued,
        )
        for task in work.tasks
    ]
    for (rank, stream), numbers in work.lanes.items():
        lane = lanes.setdefault((rank + behind, stream), [])
        lane += [number + start for number in numbers]


def beside_table(jobs: Sequence[JobBeside]) -> Table:
    """Put what jobs lose to each other in rows."""
    rows = [
        [
            f"{job.model} {job.plan}",
            counted(job.gpus, "GPU"),
            worded(job.stage),
            format_seconds(job.turn_alone_s),
            format_seconds(job.turn_s),
            f"{100 * job.lost:+.1f} %",
        ]
        for job in jobs
    ]
    head = ("jobs at once", "on", "a turn of", "alone", "together", "change")
    return Table(head=head, rows=rows, indent=2, align="<><>")
