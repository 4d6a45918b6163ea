"""Run a plan as events on every rank's streams, and say what each rank did."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any, Final

import numpy as np

from costmodels.events import TaskTimes
from costmodels.price import Class, FoundPrices
from costmodels.program import Communication, turns
from costmodels.tables import rank_spread
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate, worded
from planner.search.evaluate import seated
from planner.simulation.critical import PathPiece, by_kind, by_work, critical_path
from planner.simulation.disturbances import UNDISTURBED, Disturbances
from planner.simulation.gantt import chart, legend, middle, rows
from planner.simulation.links import MessageKind, Wiring
from planner.simulation.sequences import evened, sequences_of
from planner.simulation.symmetry import Alike, alike
from planner.simulation.tasks import (
    Event,
    PlacedLoop,
    Prices,
    RankTasks,
    StageRun,
    jittered,
    messages_of,
    paces_of,
    tasks_of,
)
from planner.simulation.uneven import targets_of
from topology.base import InputError, counted, format_seconds
from topology.base.rows import as_frame, flat
from topology.base.table import Drawing, Table
from topology.base.values import dataclass
from topology.catalogue import Device

Folding = Callable[[Wiring, Iterable[MessageKind], Sequence[Hashable]], Alike]
MOST_RANKS: Final = 16
"""Ranks in a table; of more, those with least and with most to do."""
LEAST_SHARE: Final = 1 / 10_000
"""Part of a turn that is worth a number."""
RANK_HEAD: Final = ("rank", "pace", "compute", "communication", "hidden", "waiting", "idle")
MOST_WORK: Final = 6
"""Lines of the critical path."""
MOST_TASKS: Final = 3_000_000
PICTURED_RANKS: Final = 4
"""Ranks of a timeline in characters, and its columns."""
TIMELINE_COLUMNS: Final = 96
DRAWN_REQUESTS: Final = 2000
"""Requests that are drawn from the turns of all runs."""
MANY_TURNS: Final = 1000
"""Turns above which the sum of draws is normal."""
PERCENTILES: Final = (50, 90, 99)
DECODE: Final = "vae_decode"
OUTPUT: Final = "output"
STAGE_ALIASES: Final = {"text_tower": "text_encode"}
"""Stages that an estimate counts as part of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """What a rank does in a turn of the main stage, in seconds.

    pace : how many times as long as usual it computes. compute_s : by class. communication_s : of
    messages under way, of which the hidden part runs beside compute. waiting_s : for other ranks.
    idle_s : the rest, such as waiting for its host. tokens : of its own requests or its piece of a
    sequence; None where all ranks have as many.
    """

    rank: int
    pace: float
    compute_s: Mapping[Class, float]
    communication_s: float
    communication_hidden_s: float
    waiting_s: float
    idle_s: float
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A plan as it ran.

    estimate : the same by the closed form. stages_s : seconds of each stage. stage : the main one,
    turns : of it. turn_s : seconds of the one that was run. ranks : of one replica in that turn, or
    of all where their requests differ. even_stages_s : seconds of each stage were sequences even;
    none where they are.
    first : of all ranks, replica by replica, the first one that does the same as each; events are
    those of such ranks. wiring : the links under all ranks. tasks : run in all. path : what that
    turn could not have been shorter than. latencies_s : of requests drawn from several runs, in
    order; none of one.
    """

    estimate: PlanEstimate
    stages_s: Mapping[str, float]
    stage: str
    turns: float
    turn_s: float
    ranks: Sequence[RankTime]
    first: Sequence[int]
    events: Sequence[Event]
    wiring: Wiring
    tasks: int
    path: Sequence[PathPiece]
    latencies_s: Sequence[float] = ()
    even_stages_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def percentiles_s(self) -> Mapping[str, float]:
        """Seconds that so many per cent of the requests of several runs take at most."""
        if not self.latencies_s:
            return {}
        values = np.percentile(self.latencies_s, PERCENTILES)
        return {f"p{name}": float(x) for name, x in zip(PERCENTILES, values, strict=True)}

    @property
    def latency_s(self) -> float:
        """Seconds of a simulated request."""
        return sum(self.stages_s.values())

    @property
    def apart(self) -> float:
        """How much longer it took than the closed form says, as a part of that."""
        return self.latency_s / self.estimate.latency_s - 1

    def __repr__(self) -> str:
        return (
            f"<Simulation {self.estimate.plan} of {self.estimate.model} on "
            f"{self.estimate.gpus} x {self.estimate.hardware}: {format_seconds(self.latency_s)}>"
        )

    def _repr_html_(self) -> str:
        from topology.base.page import notebook  # noqa: PLC0415  # for notebooks alone

        return notebook([self.stage_table(), self.rank_table(), self.timeline()])

    def rows(self) -> list[dict[str, object]]:
        """Return a row of each rank."""
        return [flat(asdict(rank)) for rank in self.ranks]

    def to_frame(self) -> Any:  # noqa: ANN401  # of whichever package is there
        """Return a data frame of pandas or polars; see `as_frame`."""
        return as_frame(self.rows())

    def timeline(self) -> Drawing:
        """Draw one layer of the turn."""
        window = middle(self.events, self.stage, self.turn_s)
        streams = list(rows(self.events, window, TIMELINE_COLUMNS, PICTURED_RANKS))
        name_width = max((len(name) for name, _ in streams), default=0)
        lines = [f"{name:<{name_width}}  {line}".rstrip() for name, line in streams]
        title = f"{window.words}, {format_seconds(window.seconds)}"
        return Drawing(
            title=title,
            lines=[*lines, legend("".join(line for _, line in streams))],
            svg=chart(title, self.events, window),
        )

    def stage_table(self) -> Table:
        """Put stages as they ran beside the closed form."""
        columns = {"simulated": self.stages_s, "closed form": self.estimate.stages_s}
        if self.even_stages_s:
            columns["even sequences"] = self.even_stages_s
        stage_rows = [
            [
                worded(name),
                *(format_seconds(stages_s.get(name, 0.0)) for stages_s in columns.values()),
            ]
            for name in self.stages_s
        ]
        return Table(head=("stage", *columns), rows=stage_rows, indent=2)

    def rank_table(self) -> Table:
        """Say what every rank does in a turn; of many, those with least and with most to do."""
        ranks = self.ranks
        if len(ranks) > MOST_RANKS:
            ordered = sorted(ranks, key=lambda rank: (rank.tokens or 0, rank.pace))
            ranks = [*ordered[: MOST_RANKS // 2], *ordered[-MOST_RANKS // 2 :]]
        rows = [_rank_row(rank, LEAST_SHARE * self.turn_s) for rank in ranks]
        if not self.even_stages_s:
            return Table(head=RANK_HEAD, rows=rows, indent=2)
        tokens = [f"{rank.tokens:,}" for rank in ranks]
        wide_rows = [
            [row[0], rank_tokens, *row[1:]] for row, rank_tokens in zip(rows, tokens, strict=True)
        ]
        return Table(head=(RANK_HEAD[0], "tokens", *RANK_HEAD[1:]), rows=wide_rows, indent=2)

    def path_table(self) -> Table:
        """Say what the turn could not have been shorter than, by kind and by what it makes."""
        path_rows = [
            [name, worded(kind), format_seconds(seconds), f"{100 * seconds / self.turn_s:.0f} %"]
            for (kind, name), seconds in by_work(self.path).items()
        ]
        head = ("made on the critical path", "by", "time", "share")
        return Table(head=head, rows=path_rows[:MOST_WORK], indent=2, align="<<>>")

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        estimate = self.estimate
        return {
            "model": estimate.model,
            "hardware": estimate.hardware,
            "gpus": estimate.gpus,
            "plan": str(estimate.plan),
            "runtime": estimate.runtime,
            "engine": estimate.engine,
            "precision": estimate.precision,
            "latency_s": self.latency_s,
            "stages_s": dict(self.stages_s),
            "closed_form_latency_s": estimate.latency_s,
            "closed_form_stages_s": dict(estimate.stages_s),
            "basis": estimate.basis_word,
            "stage": self.stage,
            "turns": self.turns,
            "turn_s": self.turn_s,
            "ranks": [asdict(rank) for rank in self.ranks],
            "tasks": self.tasks,
            "critical_path_s": dict(by_kind(self.path)),
            **({"latency_percentiles_s": dict(self.percentiles_s)} if self.latencies_s else {}),
            **({"even_stages_s": dict(self.even_stages_s)} if self.even_stages_s else {}),
            **({"serving": estimate.serving.to_dict()} if estimate.serving else {}),
        }


def _rank_row(time: RankTime, threshold: float) -> list[str]:
    other_times = (time.communication_s, time.communication_hidden_s, time.waiting_s, time.idle_s)
    times = (sum(time.compute_s.values()), *other_times)
    cells = [format_seconds(seconds) if seconds > threshold else "-" for seconds in times]
    return [str(time.rank), f"{time.pace:.4f}", *cells]


def simulate(
    scenario: Scenario, estimate: PlanEstimate, disturbed: Disturbances = UNDISTURBED
) -> Simulation:
    """Run a plan that was estimated.

    Every stage is run once on all ranks of a replica: one denoising step, one prefill, one decode
    step in the middle of the answer. Its other turns are taken to be alike, or by chance like one
    of the runs.

    Raises `InputError` if there is no such rank, or the plan is too large to simulate.
    """
    wiring, turns = _run_turns(scenario, estimate, disturbed)
    main_turn = max(turns, key=lambda turn: turn.seconds)
    events = tuple(_turn_events(main_turn))
    stand_ins = main_turn.stage.same.first
    by_rank = rank_times(events, main_turn.stage.paces, main_turn.ran.seconds)
    sequences = sequences_of(scenario, estimate.plan)
    rank_tokens = [sequences.held(wiring.plan, rank) for rank in range(len(stand_ins))]
    shown_ranks = (
        stand_ins if len(set(rank_tokens)) > 1 else stand_ins[: estimate.plan.without("dp").gpus]
    )
    even_scenario = evened(scenario, estimate.plan) if not sequences.even else None
    return Simulation(
        estimate=estimate,
        stages_s=_stages_s(turns, estimate),
        stage=main_turn.stage.name,
        turns=main_turn.stage.turns,
        turn_s=main_turn.ran.seconds,
        ranks=tuple(
            replace(by_rank[lead], rank=rank, tokens=rank_tokens[rank])
            for rank, lead in enumerate(shown_ranks)
        ),
        first=stand_ins,
        events=events,
        wiring=wiring,
        tasks=sum(len(turn.work.tasks) for turn in turns),
        path=tuple(critical_path(main_turn.work, main_turn.ran)),
        latencies_s=_drawn_latencies(turns, _outside_s(estimate)) if disturbed.runs > 1 else (),
        even_stages_s={}
        if even_scenario is None
        else simulated_stages_s(even_scenario, estimate, disturbed),
    )


def simulated_stages_s(
    scenario: Scenario, estimate: PlanEstimate, disturbed: Disturbances = UNDISTURBED
) -> Mapping[str, float]:
    """Run a plan for the seconds of its stages alone; otherwise as `simulate` does."""
    return _stages_s(_run_turns(scenario, estimate, disturbed)[1], estimate)


def _run_turns(
    scenario: Scenario, estimate: PlanEstimate, disturbed: Disturbances
) -> tuple[Wiring, list["_Turn"]]:
    """Run a turn of each stage."""
    disturbed.checked(estimate.plan)
    wiring, stages, prices = stages_of(scenario, estimate, disturbed)
    _check_size(stages, estimate.plan, disturbed.runs)
    return wiring, [_run_turn(stage, prices, disturbed) for stage in stages]


def _stages_s(turns: Sequence["_Turn"], estimate: PlanEstimate) -> Mapping[str, float]:
    """Add up the seconds of stages, under the names that an estimate has for them."""
    spent: dict[str, float] = defaultdict(float)
    for turn in turns:
        spent[STAGE_ALIASES.get(turn.stage.name, turn.stage.name)] += turn.seconds
    if OUTPUT in estimate.stages_s:
        spent[OUTPUT] = _outside_s(estimate)
    return spent


def _outside_s(estimate: PlanEstimate) -> float:
    """Seconds of a request outside of what is run."""
    return estimate.stages_s.get(OUTPUT, 0.0)


def stages_of(
    scenario: Scenario,
    estimate: PlanEstimate,
    disturbed: Disturbances,
    room: tuple[int, int] = (0, 0),
    folded: Folding | None = None,
) -> tuple[Wiring, list[StageRun], Prices]:
    """Find the links under a plan, and the ranks that its stages are run on, with their prices.

    room : hosts, and GPUs of each that another job has. folded : says which ranks do the same;
    `alike` where left out.
    """
    if scenario.workload.speculation is not None:
        raise InputError("speculative: got one, wanted none: events follow steps of a token each")
    plan, prices = estimate.plan, defaultdict[Device, FoundPrices](FoundPrices)
    deployment = seated(scenario, plan)
    target = deployment.target(scenario.model, plan)
    wiring = Wiring(deployment, plan, disturbed.traffic, *room)
    targets = targets_of(scenario, estimate, wiring, target, disturbed)
    sequences = sequences_of(scenario, plan)
    numbers = [sequences.number(wiring.plan, rank) for rank in range(plan.gpus)]
    stages = [
        _stage_run(
            targets.works(stage, numbers, wiring.plan), wiring, prices, disturbed, folded or alike
        )
        for stage in sequences.stages(scenario, plan, target)
    ]
    return wiring, stages, prices


def _drawn_latencies(turns: Sequence["_Turn"], beside: float) -> tuple[float, ...]:
    """Draw requests: each of their turns takes as long as one of the runs, by chance.

    beside : seconds of a request outside of them.
    """
    generator = np.random.default_rng(0)
    total = np.full(DRAWN_REQUESTS, float(beside))
    for turn in turns:
        count = round(turn.stage.turns)
        samples = np.asarray(turn.samples)
        if count <= MANY_TURNS:
            total += generator.choice(samples, (DRAWN_REQUESTS, count)).sum(axis=1)
        else:
            total += generator.normal(
                samples.mean() * count, samples.std() * count**0.5, DRAWN_REQUESTS
            )
    return tuple(sorted(total.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One turn of a stage as it ran, amid others where it has several.

    samples : seconds that it took in each of the runs. lag : that the first turn takes longer, as
    its hosts have no lead.
    """

    stage: StageRun
    work: RankTasks
    ran: TaskTimes
    samples: Sequence[float]
    lag: float

    @property
    def seconds(self) -> float:
        return float(np.mean(self.samples)) * self.stage.turns + self.lag


def _stage_run(
    shared: tuple[list[PlacedLoop], list[int]],
    wiring: Wiring,
    prices: Prices,
    disturbed: Disturbances,
    folded: Folding,
) -> StageRun:
    """Find the ranks that a stage is run on; replicas are disturbed alike, and one GPU decodes.

    shared : works that differ, and the number of every rank's. folded : says which ranks do the
    same, of the links under them, their messages and their marks.
    """
    (works, work_of), plan = shared, wiring.plan
    replica, replicas = plan.without("dp"), plan.degree("dp")
    paused = {
        replica_number * replica.gpus + rank: seconds
        for replica_number in range(replicas)
        for rank, seconds in disturbed.paused.items()
    }
    has_messages = any(isinstance(op, Communication) for op in works[0].loop.walk())
    spread = rank_spread() if has_messages and not disturbed.even else 0.0
    paces = paces_of(replica.gpus, spread, disturbed.slow)
    if works[0].loop.name == DECODE and not has_messages:
        decoding_rank = Alike(first=[0], groups={}, uses={})
        return StageRun(
            works=works[:1], work_of=[0], paces=paces[:1], paused=paused, same=decoding_rank
        )
    marks = [
        (work, paces[rank], disturbed.paused.get(rank, 0.0), rank if disturbed.jitter else 0)
        for work, rank in zip(work_of, [*range(replica.gpus)] * replicas, strict=True)
    ]
    folded_ranks = folded(wiring, messages_of(works, prices), marks)
    return StageRun(
        works=works, work_of=work_of, paces=paces * replicas, paused=paused, same=folded_ranks
    )


def _run_turn(stage: StageRun, prices: Prices, disturbed: Disturbances) -> _Turn:
    """Run one turn of a stage, of several one amid others."""
    work = tasks_of(stage, prices)
    ran, lag = work.run(), 0.0
    if stage.turns > 1 and (amid := work.amid(ran.seconds)).ahead:
        first, work, ran = ran.seconds, amid, amid.run()
        lag = first - ran.seconds
    samples = [ran.seconds]
    if disturbed.jitter:
        draws = (jittered(work, disturbed.jitter, seed) for seed in range(disturbed.runs))
        all_runs = [(draw, draw.run()) for draw in draws]
        samples = [ran.seconds for _, ran in all_runs]
        work, ran = all_runs[0]
    return _Turn(stage=stage, work=work, ran=ran, samples=samples, lag=lag)


def _check_size(stages: Sequence[StageRun], plan: Plan, runs: int) -> None:
    tasks = 0
    for stage in stages:
        work_tasks = [
            sum(turns(loops[1:]) for _, loops in work.loop.nested()) for work in stage.works
        ]
        tasks += sum(work_tasks[stage.work_of[rank]] for rank in stage.same.leads)
    if tasks * runs > MOST_TASKS:
        runs_hint = f" in each of {runs} runs" if runs > 1 else ""
        advice = "fewer runs do" if tasks <= MOST_TASKS else "`planner estimate` prices it"
        ranks = max(len(stage.same.leads) for stage in stages)
        raise InputError(
            f"simulate: {plan} has {tasks:.2g} operations on {counted(ranks, 'rank')}{runs_hint}, "
            f"wanted at most {MOST_TASKS:.2g} in all; {advice}"
        )


def _turn_events(turn: _Turn) -> Iterator[Event]:
    times = turn.ran
    for number, (task, label) in enumerate(zip(turn.work.tasks, turn.work.labels, strict=True)):
        for rank, came in zip(task.ranks, times.came[number], strict=True):
            yield Event(
                task=number,
                rank=rank,
                stream=task.stream,
                label=label,
                came_s=came,
                start_s=times.start[number],
                end_s=times.end[number],
                sent=turn.work.sent.get(number),
            )


def rank_times(
    events: Sequence[Event], paces: Sequence[float], turn_s: float
) -> dict[int, RankTime]:
    """Add up what every rank does that has events.

    A moment counts as compute if anything is computed then; else as communication, if a message
    is under way; else as waiting, if the rank has come to one; else as idle.
    """
    by_rank: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_rank[event.rank].append(event)
    return {
        rank: _rank_time(rank, paces[rank], rank_events, turn_s)
        for rank, rank_events in by_rank.items()
    }


def _rank_time(rank: int, pace: float, events: Sequence[Event], turn_s: float) -> RankTime:
    compute: dict[Class, float] = defaultdict(float)
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.label.kind == "communication":
            spans["communication"].append((event.start_s, event.end_s))
            spans["waiting"].append((event.came_s, event.start_s))
        else:
            compute[event.label.kind] += event.end_s - event.start_s
            spans["compute"].append((event.start_s, event.end_s))
    compute_spans, message_spans = spans["compute"], spans["communication"]
    computing_s, under_way_s = covered(compute_spans), covered(message_spans)
    active_s = covered([*compute_spans, *message_spans])
    occupied_s = covered([*compute_spans, *message_spans, *spans["waiting"]])
    return RankTime(
        rank=rank,
        pace=pace,
        compute_s=dict(compute),
        communication_s=under_way_s,
        communication_hidden_s=computing_s + under_way_s - active_s,
        waiting_s=occupied_s - active_s,
        idle_s=max(0.0, turn_s - occupied_s),
    )


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of what spans cover together.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, -1.0
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
