"""How busy links are in a turn: while messages of a kind are under way, and over all of it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from planner.simulation.links import MessageKind
from planner.simulation.simulation import Simulation, covered
from planner.simulation.tasks import Event
from topology.base import format_seconds
from topology.base.table import Table
from topology.base.values import dataclass
from topology.machine import Link

HEAD: Final = ("messages", "under way", "on the path", "slowed", "busiest link", "busy")
BUSY_TOLERANCE: Final = 2.0**-20
SHOWN_SHARE: Final = 0.005
Passed = Mapping[Link, Mapping[int, float]]
"""Seconds of links, by the rank that stands for a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Messages of a kind, and the link that has most to do with them.

    under_way_s : seconds in which some are on that link. path_s : that the critical path has of
    them. slowed : how much longer they take than alone, as a part of that. busy : part of what the
    busiest link can carry while they are under way, with the traffic of others. links_as_busy :
    itself among them.
    """

    messages: str
    under_way_s: float
    path_s: float
    slowed: float
    busiest_link: str
    busy: float
    links_as_busy: int


def link_uses(simulation: Simulation) -> list[LinkUse]:
    """Say of each kind of message which link is the busiest, and then of the whole turn."""
    events: dict[MessageKind, list[Event]] = defaultdict(list)
    for event in simulation.events:
        if event.sent is not None:
            events[event.sent].append(event)
    kinds: dict[str, list[MessageKind]] = defaultdict(list)
    for sent in events:
        kinds[f"{sent.kind} along {sent.axis}"].append(sent)
    link_times = {sent: _link_times(simulation, sent) for sent in events}
    uses = [
        _link_use(
            name, {sent_kind: events[sent_kind] for sent_kind in name_kinds}, link_times, simulation
        )
        for name, name_kinds in kinds.items()
        if any(link_times[sent_kind] for sent_kind in name_kinds)
    ]
    if not uses:
        return []
    uses.sort(key=lambda use: -use.under_way_s)
    return [*uses, _link_use("the whole turn", events, link_times, simulation, simulation.turn_s)]


def _link_times(simulation: Simulation, sent: MessageKind) -> Passed:
    """Give the seconds of links for a message of each group, by the rank that stands for it."""
    link_times: dict[Link, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for group, seconds in simulation.wiring.busy(sent):
        for link, time in seconds.items():
            link_times[link][simulation.first[group[0]]] += time
    return link_times


def _link_use(
    name: str,
    events: Mapping[MessageKind, Sequence[Event]],
    passed: Mapping[MessageKind, Passed],
    simulation: Simulation,
    within_s: float = 0.0,
) -> LinkUse:
    taken = simulation.wiring.taken
    busy: dict[Link, float] = defaultdict(float)
    for sent, kind_events in events.items():
        times = Counter(event.rank for event in kind_events)
        for link, ranks in passed[sent].items():
            busy[link] += sum(times[rank] * seconds for rank, seconds in ranks.items())
    filled = {link: seconds / (1.0 - taken(link)) for link, seconds in busy.items()}
    busiest, busiest_s = max(filled.items(), key=lambda item: item[1])
    spans = [
        (event.start_s, event.end_s)
        for sent, kind_events in events.items()
        for event in kind_events
        if event.rank in passed[sent].get(busiest, ())
    ]
    alone_s = sum(sent.seconds * len(kind_events) for sent, kind_events in events.items())
    taken_s = sum(
        event.end_s - event.start_s for kind_events in events.values() for event in kind_events
    )
    under_way = within_s or covered(spans)
    return LinkUse(
        messages=name,
        under_way_s=under_way,
        path_s=sum(piece.seconds for piece in simulation.path if piece.sent in events),
        slowed=max(0.0, taken_s / alone_s - 1),
        busiest_link=str(busiest),
        busy=busy[busiest] / under_way + taken(busiest),
        links_as_busy=sum(
            seconds > busiest_s * (1 - BUSY_TOLERANCE) for seconds in filled.values()
        ),
    )


def link_table(uses: Sequence[LinkUse]) -> Table:
    """Put the busiest links in rows."""
    rows = [
        [
            use.messages.replace("_", "-"),
            format_seconds(use.under_way_s),
            format_seconds(use.path_s) if use.path_s else "-",
            f"{100 * use.slowed:.0f} %" if use.slowed > SHOWN_SHARE else "-",
            use.busiest_link
            + (f" and {use.links_as_busy - 1} more" if use.links_as_busy > 1 else ""),
            f"{100 * use.busy:.0f} %",
        ]
        for use in uses
    ]
    return Table(head=HEAD, rows=rows, indent=2, align="<>>><>")
