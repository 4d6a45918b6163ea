"""A simulation as people and other programs read it: tables, a page, a trace."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from planner.plan_charts import memory, timelines
from planner.search.estimate import PlanEstimate, worded
from planner.simulation.comparison import StepComparison
from planner.simulation.critical import by_kind
from planner.simulation.disturbances import ranks_named
from planner.simulation.jobs import JobBeside, beside_table
from planner.simulation.simulation import LEAST_SHARE, Simulation
from planner.simulation.tasks import Event
from planner.simulation.utilisation import LinkUse, link_table
from planner.simulation.what_if import WhatIf, what_if_table
from topology.base import counted, format_seconds
from topology.base.table import Drawing, Part, Said, Title

MICROSECONDS: Final = 10**6
SHOWN_SHARE: Final = 0.005
NAMED_RANKS: Final = 2
"""Ranks that are named; more are counted."""


def headlines(simulation: Simulation) -> Iterator[str]:
    """Say how long it took, beside the closed form."""
    estimate, difference = simulation.estimate, simulation.apart
    verdict = (
        "as the closed form has it"
        if abs(difference) < LEAST_SHARE
        else f"{abs(100 * difference):.1f} % {'more' if difference > 0 else 'less'} than the "
        f"{format_seconds(estimate.latency_s)} of the closed form"
    )
    basis = estimate.basis.name.lower()
    yield f"{estimate.plan}: {format_seconds(simulation.latency_s)} simulated, {verdict}; {basis}"
    turns = f"{simulation.turns:g} turns" if simulation.turns != 1 else "1 turn"
    yield (
        f"{worded(simulation.stage)}: {turns} of {format_seconds(simulation.turn_s)}, of which "
        "one was run; "
        f"{simulation.tasks:,} operations on {_rank_count_words(simulation)}"
    )
    shares = {kind: s / simulation.turn_s for kind, s in by_kind(simulation.path).items()}
    share_texts = (
        f"{worded(kind)} {100 * x:.0f} %" for kind, x in shares.items() if x >= SHOWN_SHARE
    )
    yield f"critical path of a turn: {', '.join(share_texts)}"
    if simulation.latencies_s:
        percentile_texts = (
            f"{name} {format_seconds(s)}" for name, s in simulation.percentiles_s.items()
        )
        yield f"of requests drawn from the runs: {', '.join(percentile_texts)}"
    yield from (
        f"{name}: {number}" for name, number in _simulated_estimate(simulation).token_rows()
    )
    yield from _unevenness(simulation)
    replicas = estimate.plan.degree("dp")
    if replicas > 1:
        shown_replica = "one" if len(simulation.ranks) < estimate.gpus else "the slowest"
        yield f"{shown_replica} of {replicas} replicas, which meet on links alone"


def _unevenness(simulation: Simulation) -> Iterator[str]:
    """Say which ranks have most to do where they have unequal rows, and what that costs."""
    even_s = sum(simulation.even_stages_s.values())
    if not even_s:
        return
    tokens = {rank.rank: rank.tokens or 0 for rank in simulation.ranks}
    most, mean = max(tokens.values()), sum(tokens.values()) / len(tokens)
    busiest = [rank for rank, token_count in tokens.items() if token_count == most]
    who = ranks_named(busiest) if len(busiest) <= NAMED_RANKS else counted(len(busiest), "rank")
    percent_less = 100 * (1 - even_s / simulation.latency_s)
    yield (
        f"most to do: {who}, {most:,} tokens of {mean:,.1f} on average; even sequences would take "
        f"{format_seconds(even_s)}, {percent_less:.1f} % less"
    )


def _simulated_estimate(simulation: Simulation) -> PlanEstimate:
    """Give the estimate the stages that were simulated; what clients see under load stays."""
    estimate = simulation.estimate
    if estimate.serving is not None:
        return estimate
    rate = estimate.throughput_per_s * estimate.latency_s / simulation.latency_s
    return replace(estimate, stages_s=simulation.stages_s, throughput_per_s=rate)


def _rank_count_words(simulation: Simulation) -> str:
    """Count the ranks, and those of them that were run where others are like them."""
    leads, all_ranks = len(set(simulation.first)), counted(len(simulation.ranks), "rank")
    return all_ranks if leads >= len(simulation.ranks) else f"{leads} of {all_ranks}, which differ"


def parts(
    simulation: Simulation,
    headline: str,
    notes: Sequence[str],
    asked: tuple[Sequence[LinkUse], Sequence[WhatIf], Sequence[JobBeside], StepComparison | None],
) -> Iterator[Part]:
    """Say everything that ``planner simulate`` does; of what was `asked` beside, what there is."""
    uses, changes, jobs, comparison = asked
    yield Title(text=headline, level=1)
    yield Said(lines=[*headlines(simulation)])
    yield from ("", simulation.stage_table())
    yield Title(text=f"a turn of {worded(simulation.stage)}, by rank")
    yield simulation.rank_table()
    yield from ("", simulation.path_table())
    if uses:
        yield from ("", link_table(uses))
    if changes:
        yield from ("", what_if_table(simulation, changes))
    if jobs:
        yield from ("", beside_table(jobs))
    if comparison:
        yield from comparison.parts()
    yield simulation.timeline()
    yield Drawing(svg=timelines([simulation.estimate]))
    yield Drawing(svg=memory([simulation.estimate]))
    yield Said(lines=notes)


def trace(simulation: Simulation) -> str:
    """Write the turn as Chrome's trace events, which Perfetto and chrome://tracing open."""
    events: list[dict[str, object]] = []
    for rank in sorted({event.rank for event in simulation.events}):
        events.append(_metadata_event("process_name", rank, 0, f"rank {rank}"))
        events += [_metadata_event("thread_name", rank, tid, name) for name, tid in _LANES.items()]
    for event in simulation.events:
        events.append({
            "name": event.label.name,
            "cat": event.label.kind,
            "ph": "X",
            "ts": event.start_s * MICROSECONDS,
            "dur": (event.end_s - event.start_s) * MICROSECONDS,
            "pid": event.rank,
            "tid": _LANES[event.stream],
            "args": {
                "class": worded(event.label.kind),
                "loop": f"{event.label.loop} {event.label.turn}",
                "waited_us": (event.start_s - event.came_s) * MICROSECONDS,
            },
        })  # fmt: skip
    events += _arrows(simulation)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _arrows(simulation: Simulation) -> Iterator[dict[str, object]]:
    """Let an arrow go from the rank that a message waited for to each of the others."""
    rank_events: dict[int, list[Event]] = defaultdict(list)
    for event in simulation.events:
        if event.label.kind == "communication":
            rank_events[event.task].append(event)
    for number, ranks in rank_events.items():
        latest = max(ranks, key=lambda event: event.came_s)
        for event in ranks:
            if event is not latest:
                flow = {"name": event.label.name, "cat": "message", "id": f"{number}-{event.rank}"}
                position = {"ts": event.start_s * MICROSECONDS, "tid": _LANES[event.stream]}
                yield {**flow, **position, "ph": "s", "pid": latest.rank}
                yield {**flow, **position, "ph": "f", "bp": "e", "pid": event.rank}


_LANES: Final = {"compute": 0, "comm": 1}


def _metadata_event(event: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"name": event, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
