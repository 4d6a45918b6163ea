"""Ranks that do the same at the same time, of which one is run for all."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from costmodels.events import Task, Traffic, Uses, contended_links
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
    groups = list(dict.fromkeys((message.sent.axis, message.group) for message in messages))
    ranks, refined = list[int](), _key_numbers(marks)
    while not ranks or max(refined) > max(ranks):
        ranks = refined
        links = _link_numbers(messages, ranks, wiring)
        keys: list[tuple[int, ...]] = [(number,) for number in ranks]
        for (_, group), number in zip(
            groups, _group_numbers(messages, groups, ranks, links), strict=True
        ):
            for rank in group:
                keys[rank] += (number,)
        refined = _key_numbers(keys)
    first = _first_ranks(ranks)
    leads = {group: tuple(sorted({first[rank] for rank in group})) for _, group in groups}
    return Alike(
        first=first,
        groups={(axis, rank): leads[group] for axis, group in groups for rank in group},
        uses=_link_uses(messages, links, leads),
        taken={number: wiring.taken(link) for link, number in links.items()},
    )


def _key_numbers(keys: Iterable[Hashable]) -> list[int]:
    """Give keys numbers, in the order in which they come, and like keys the same."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _first_ranks(ranks: Sequence[int]) -> list[int]:
    first_ranks: dict[int, int] = {}
    return [first_ranks.setdefault(number, rank) for rank, number in enumerate(ranks)]


def _messages(wiring: Wiring, kinds: Sequence[MessageKind]) -> list[_Message]:
    """List the messages of all groups, with the links on which they may be held up."""
    messages = [_Message(sent, *shares) for sent in kinds for shares in wiring.shares(sent)]
    links: dict[Link, int] = {}
    tasks = [
        Task(
            ranks=message.group,
            stream=message.sent.stream,
            seconds=message.sent.seconds,
            uses=tuple(
                (links.setdefault(link, len(links)), share) for link, share in message.taken.items()
            ),
        )
        for message in messages
    ]
    full_links = contended_links(
        tasks, {number: wiring.taken(link) for link, number in links.items()}
    )
    return [
        replace(
            message,
            taken={link: x for link, x in message.taken.items() if links[link] in full_links},
        )
        for message in messages
    ]


def _link_numbers(
    messages: Sequence[_Message], ranks: Sequence[int], wiring: Wiring
) -> dict[Link, int]:
    """Tell links apart by the messages that pass them, and by how much of them; by traffic too."""
    crossed: dict[Link, list[tuple[int, float]]] = defaultdict(list)
    numbers = _key_numbers(
        (message.sent, frozenset(ranks[r] for r in message.group)) for message in messages
    )
    for message, number in zip(messages, numbers, strict=True):
        for link, share in message.taken.items():
            crossed[link].append((number, round(share, 9)))
    keys = ((link.rate, wiring.taken(link), *sorted(passing)) for link, passing in crossed.items())
    return dict(zip(crossed, _key_numbers(keys), strict=True))


def _group_numbers(
    messages: Sequence[_Message],
    groups: Sequence[tuple[str, Group]],
    ranks: Sequence[int],
    links: Mapping[Link, int],
) -> list[int]:
    """Tell groups apart by their ranks, and by the links that their messages pass."""
    group_keys: dict[tuple[str, Group], list[Hashable]] = {
        (axis, group): [axis, frozenset(ranks[rank] for rank in group)] for axis, group in groups
    }
    for message in messages:
        passed_links = tuple(sorted(links[link] for link in message.taken))
        group_keys[message.sent.axis, message.group].append(passed_links)
    return _key_numbers(map(tuple, group_keys.values()))


def _link_uses(
    messages: Sequence[_Message], links: Mapping[Link, int], leads: Mapping[Group, Group]
) -> dict[tuple[MessageKind, Group], Uses]:
    """Let the first of the links that are alike stand for all, loaded with all that pass it."""
    lead_links: dict[int, Link] = {}
    for link, number in links.items():
        lead_links.setdefault(number, link)
    lead_shares: dict[tuple[MessageKind, Group], dict[int, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for message in messages:
        for link, share in message.taken.items():
            if lead_links[links[link]] == link:
                lead_shares[message.sent, leads[message.group]][links[link]] += share
    return {key: tuple(shares.items()) for key, shares in lead_shares.items()}
