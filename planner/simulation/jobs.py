"""Two jobs on one machine at the same time: what each loses on links that both pass."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from costmodels.events import Lane, Task, Traffic, contended_links, run
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
COVERED_TURNS: Final = 1.5
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
    second_scenario = _second_scenario(
        scenario, model, plan, seated(scenario, simulation.estimate.plan)
    )
    estimate = judge(second_scenario, parse_plan(plan))
    if not isinstance(estimate, PlanEstimate):
        raise InputError(f"beside: plan {plan} of {model}: {estimate.reason}")
    usual = Disturbances(even=disturbed.even, traffic=disturbed.traffic)
    second_run = simulate(second_scenario, estimate, usual)
    hosts = max(scenario.deployment.hosts, second_scenario.deployment.hosts)
    first_gpus = simulation.estimate.gpus // scenario.deployment.hosts
    links: dict[Link, int] = {}
    jobs = (
        _job_of(scenario, simulation, disturbed, links, (hosts, 0)),
        _job_of(second_scenario, second_run, usual, links, (hosts, first_gpus)),
    )
    first_job, second_job = _job_beside(jobs[0], jobs[1]), _job_beside(jobs[1], jobs[0])
    return first_job, second_job


def _second_scenario(scenario: Scenario, model: str, plan: str, first: Deployment) -> Scenario:
    """Ask for another model on the GPUs that the first job leaves on its hosts, of usual sizes.

    Raises `InputError` if there are too few.
    """
    machine = first.subset.machine if first.subset else None
    shared_options = ("runtime", "nodes") if machine else ("hardware", "runtime", "nodes")
    options = {name: value for name in shared_options if (value := getattr(scenario.request, name))}
    options |= {"topology": machine} if machine else {}
    second = resolve(request_of(model, parse_plan(plan).gpus, options))
    deployment, place = second.deployment, first.placed
    taken_gpus = range(first.gpus // first.hosts) if place is None else place.devices
    subset = deployment.subset
    gpus = deployment.hardware.gpus if subset is None else len(subset.machine.gpus)
    _check_room(deployment, gpus, len(taken_gpus))
    if subset is None:
        return second
    second_subset = subset.beside(taken_gpus)
    hardware = second_subset.ruling(deployment.precision)
    return replace(second, deployment=replace(deployment, subset=second_subset, hardware=hardware))


def _check_room(second: Deployment, gpus: int, taken_gpus: int) -> None:
    """Refuse a job for which a host of so many GPUs has no room."""
    name, host_gpus = second.hardware.name, second.gpus // second.hosts
    if taken_gpus == gpus:
        raise InputError(
            f"beside: the first job fills the {counted(gpus, 'GPU')} of a host of {name}: give it "
            "fewer, or spread it over more hosts (--nodes)"
        )
    if taken_gpus + host_gpus > gpus:
        raise InputError(
            f"beside: got {counted(host_gpus, 'GPU')} a host behind {taken_gpus}, wanted at most "
            f"{gpus - taken_gpus} of the {gpus} of {name}"
        )


def _job_of(
    scenario: Scenario,
    simulation: Simulation,
    disturbed: Disturbances,
    links: dict[Link, int],
    room: tuple[int, int],
) -> _Job:
    """Write a turn of the main stage down for all ranks; links are numbered for both jobs."""

    def apart(wiring: Wiring, kinds: Iterable[MessageKind], marks: Sequence[Hashable]) -> Alike:
        return _unfolded(wiring, list(kinds), len(marks), links)

    _, stages, prices = stages_of(scenario, simulation.estimate, disturbed, room, apart)
    stage = next(candidate for candidate in stages if candidate.name == simulation.stage)
    work = tasks_of(stage, prices)
    if stage.turns > 1:
        work = work.amid(work.run().seconds)
    return _Job(simulation=simulation, work=work, alone_s=work.run().seconds)


def _unfolded(
    wiring: Wiring, kinds: Sequence[MessageKind], ranks: int, links: dict[Link, int]
) -> Alike:
    """Run every rank by itself: what it meets on links may be of the other job."""
    link_shares = {
        (kind, group): tuple(
            (links.setdefault(link, len(links)), share) for link, share in shares.items()
        )
        for kind in dict.fromkeys(kinds)
        for group, shares in wiring.shares(kind)
    }
    groups = {(kind.axis, rank): group for kind, group in link_shares for rank in group}
    traffic = {number: wiring.taken(link) for link, number in links.items()}
    return Alike(first=range(ranks), groups=groups, uses=link_shares, taken=traffic)


def _job_beside(job: _Job, other: _Job) -> JobBeside:
    """Run a turn of one job while the other has turn after turn."""
    estimate = job.simulation.estimate
    return JobBeside(
        model=estimate.model,
        plan=str(estimate.plan),
        gpus=estimate.gpus,
        stage=job.simulation.stage,
        turn_alone_s=job.alone_s,
        turn_s=_delayed_turn_s(job, other) if _share_full_link(job, other) else job.alone_s,
    )


def _share_full_link(first_job: _Job, other: _Job) -> bool:
    """Whether both pass a link of which messages may want more than there is."""
    tasks, lanes = list[Task](), dict[Lane, list[int]]()
    _append_turn(tasks, lanes, first_job.work, 0, 0.0)
    _append_turn(tasks, lanes, other.work, _rank_count(first_job), 0.0)
    full_links = contended_links(tasks, _outside_traffic(first_job, other))
    passed_links = (
        {link for task in job.work.tasks for link, _ in task.uses if link in full_links}
        for job in (first_job, other)
    )
    return bool(set.intersection(*passed_links))


def _delayed_turn_s(job: _Job, other: _Job) -> float:
    """Seconds of a turn of one job that begins with the first of many of the other."""
    other_turn_s = other.alone_s
    other_turns = math.ceil(COVERED_TURNS * job.alone_s / other_turn_s)
    count = len(job.work.tasks) + other_turns * len(other.work.tasks)
    if count > MOST_TOGETHER:
        raise InputError(
            f"beside: a turn of {job.simulation.estimate.plan} takes as long as {other_turns:,} of "
            f"{other.simulation.estimate.plan}, {count:.2g} operations: wanted at most "
            f"{MOST_TOGETHER:.2g}"
        )
    tasks, lanes = list[Task](), dict[Lane, list[int]]()
    _append_turn(tasks, lanes, job.work, 0, 0.0)
    for turn in range(other_turns):
        _append_turn(tasks, lanes, other.work, _rank_count(job), turn * other_turn_s)
    return max(run(tasks, lanes, _outside_traffic(job, other)).end[: len(job.work.tasks)])


def _outside_traffic(job: _Job, other: _Job) -> Traffic:
    """Give the parts of the links of both that others take."""
    return {**job.work.taken, **other.work.taken}


def _rank_count(job: _Job) -> int:
    """Give the first number that no rank of a job has."""
    return 1 + max(rank for rank, _ in job.work.lanes)


def _append_turn(
    tasks: list[Task],
    lanes: dict[Lane, list[int]],
    work: RankTasks,
    rank_offset: int,
    issue_offset_s: float,
) -> None:
    """Add a turn of a job whose ranks are numbered behind those of another."""
    start = len(tasks)
    tasks += [
        replace(
            task,
            ranks=tuple(rank + rank_offset for rank in task.ranks),
            after=tuple(number + start for number in task.after),
            issued=task.issued - work.ahead + issue_offset_s,
        )
        for task in work.tasks
    ]
    for (rank, stream), numbers in work.lanes.items():
        lane = lanes.setdefault((rank + rank_offset, stream), [])
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
