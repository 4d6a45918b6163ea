"""Ranks that do the same at the same time, of which one is run for all."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from costmodels.events import Task, Traffic, Uses, contended
from planner.simulation.links import Group, MessageKind, Wiring
from topology.base.values import dataclass
from topology.machine import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Which ranks are alike.

    first : the first rank that does the same, for every rank. groups : those that stand for the
    ranks of a group, by axis and rank. uses : of links, by all messages that one stands for.
    taken : parts of these links that others take.
    """

    first: Sequence[int]
    groups: Mapping[tuple[str, int], Group]
    uses: Mapping[tuple[MessageKind, Group], Uses]
    taken: Traffic = field(default_factory=dict)

    @property
    def leads(self) -> list[int]:
        """Ranks that stand for all, and are run."""
        return sorted(set(self.first))


@dataclass(frozen=True, slots=True)
class _Message:
    """A kind of message in a group of ranks, and what it takes of links that may be full."""

    sent: MessageKind
    group: Group
    taken: Mapping[Link, float]


def alike(wiring: Wiring, kinds: Iterable[MessageKind], marks: Sequence[Hashable]) -> Alike:
    """Find the ranks that do the same, as a run of all would show.

    Ranks are told apart by their marks, by whom they meet in each group, and by what their
    messages meet on links; again and again, until no two that seem alike differ in that.

    Parameters
    ----------
    marks : what tells a rank from others: its program, its pace.
    """
    messages = _messages(wiring, list(dict.fromkeys(kinds)))
    groups = list(dict.fromkeys((one.sent.axis, one.group) for one in messages))
    ranks, finer = list[int](), _numbered(marks)
    while not ranks or max(finer) > max(ranks):
        ranks = finer
        links = _crossed(messages, ranks, wiring)
        keys: list[tuple[int, ...]] = [(number,) for number in ranks]
        for (_, group), number in zip(groups, _met(messages, groups, ranks, links), strict=True):
            for rank in group:
                keys[rank] += (number,)
        finer = _numbered(keys)
    first = _firsts(ranks)
    leads = {group: tuple(sorted({first[rank] for rank in group})) for _, group in groups}
    return Alike(
        first=first,
        groups={(axis, rank): leads[group] for axis, group in groups for rank in group},
        uses=_uses(messages, links, leads),
        taken={number: wiring.taken(link) for link, number in links.items()},
    )


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    """Give keys numbers, in the order in which they come, and like keys the same."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


def _firsts(ranks: Sequence[int]) -> list[int]:
    seen: dict[int, int] = {}
    return [seen.setdefault(number, rank) for rank, number in enumerate(ranks)]


def _messages(wiring: Wiring, kinds: Sequence[MessageKind]) -> list[_Message]:
    """List the messages of all groups, with the links on which they may be held up."""
    messages = [_Message(sent, *taken) for sent in kinds for taken in wiring.shares(sent)]
    links: dict[Link, int] = {}
    tasks = [
        Task(
            ranks=one.group,
            stream=one.sent.stream,
            seconds=one.sent.seconds,
            uses=tuple(
                (links.setdefault(link, len(links)), share) for link, share in one.taken.items()
            ),
        )
        for one in messages
    ]
    full = contended(tasks, {number: wiring.taken(link) for link, number in links.items()})
    return [
        replace(one, taken={link: x for link, x in one.taken.items() if links[link] in full})
        for one in messages
    ]


def _crossed(messages: Sequence[_Message], ranks: Sequence[int], wiring: Wiring) -> dict[Link, int]:
    """Tell links apart by the messages that pass them, and by how much of them; by traffic too."""
    crossed: dict[Link, list[tuple[int, float]]] = defaultdict(list)
    numbers = _numbered((one.sent, frozenset(ranks[r] for r in one.group)) for one in messages)
    for one, number in zip(messages, numbers, strict=True):
        for link, share in one.taken.items():
            crossed[link].append((number, round(share, 9)))
    keys = ((link.rate, wiring.taken(link), *sorted(through)) for link, through in crossed.items())
    return dict(zip(crossed, _numbered(keys), strict=True))


def _met(
    messages: Sequence[_Message],
    groups: Sequence[tuple[str, Group]],
    ranks: Sequence[int],
    links: Mapping[Link, int],
) -> list[int]:
    """Tell groups apart by their ranks, and by the links that their messages pass."""
    met: dict[tuple[str, Group], list[Hashable]] = {
        (axis, group): [axis, frozenset(ranks[rank] for rank in group)] for axis, group in groups
    }
    for one in messages:
        passed = tuple(sorted(links[link] for link in one.taken))
        met[one.sent.axis, one.group].append(passed)
    return _numbered(map(tuple, met.values()))


def _uses(
    messages: Sequence[_Message], links: Mapping[Link, int], leads: Mapping[Group, Group]
) -> dict[tuple[MessageKind, Group], Uses]:
    """Let the first of the links that are alike stand for all, loaded with all that pass it."""
    firsts: dict[int, Link] = {}
    for link, number in links.items():
        firsts.setdefault(number, link)
    taken: dict[tuple[MessageKind, Group], dict[int, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for one in messages:
        for link, share in one.taken.items():
            if firsts[links[link]] == link:
                taken[one.sent, leads[one.group]][links[link]] += share
    return {key: tuple(shares.items()) for key, shares in taken.items()}
