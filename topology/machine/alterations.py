"""A machine some of whose links are slower than they should be, faster, or gone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from topology.base import BytesPerSecond, CutError, Sourced, unknown
from topology.machine.graph import Edge, EdgeKind, Machine, Nic, Pair
from topology.machine.routes import graph_pairs

NETWORK: Final = "network"
KINDS: Final[Mapping[str, frozenset[EdgeKind]]] = {
    "nvlink": frozenset({"nvlink"}),
    "pcie": frozenset({"pcie", "host"}),
    "socket": frozenset({"socket"}),
    "c2c": frozenset({"c2c"}),
    NETWORK: frozenset(),
}
"""Links that one word names; of the network, the ports of NICs."""


def altered(machine: Machine, links: Mapping[str, float]) -> Machine:
    """Scale the bandwidth of links, each by so many times; 0 takes a link away.

    A link is named by its ends as `topology show` has them (``GPU0-NVSwitch``, ``NIC0-network``),
    or all of a kind by one of the `KINDS`. Copies of a host are altered alike.

    Raises InputError if there is no such link, or a GPU or a host is left that reaches no other.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine import fabric, machine_of
    >>> node = machine_of(find_hardware("h100-sxm"))
    >>> whole, half = (fabric(one, range(8)) for one in (node, altered(node, {"nvlink": 0.5})))
    >>> half.bandwidth / whole.bandwidth
    0.5
    >>> altered(node, {"GPU0-NVswitch": 0.5})
    Traceback (most recent call last):
    topology.base.errors.InputError: unknown link 'GPU0-NVswitch': did you mean GPU0-NVSwitch?
    """
    for name, times in links.items():
        machine = _scaled(machine, name, times)
    return machine


def named_links(machine: Machine, name: str) -> tuple[Sequence[Edge], Sequence[Nic]]:
    """Find the links of a host by a name as `altered` takes it; of the network, the NICs.

    Raises InputError if there is none.
    """
    edges = [edge for edge in machine.edges if _is_named(edge, name)]
    ports = [nic for nic in machine.nics if name in (NETWORK, f"{nic.name}-{NETWORK}")]
    if not edges and not ports:
        raise unknown("link", name, _suggested_links(machine, name))
    return edges, ports


def _scaled(machine: Machine, name: str, times: float) -> Machine:
    edges, ports = named_links(machine, name)
    changed = replace(
        machine,
        nics=tuple(
            _scaled_port(machine, nic, times) if nic in ports else nic for nic in machine.nics
        ),
        edges=tuple(
            replace(edge, bandwidth=_scaled_speed(edge.bandwidth, times)) if edge in edges else edge
            for edge in machine.edges
            if times or edge not in edges
        ),
        assumptions=(*machine.assumptions, _alteration_note(machine, name, times)),
    )
    if not times:
        removed_nics = {nic.name for nic in ports}
        changed = replace(
            changed,
            nics=tuple(nic for nic in changed.nics if nic.name not in removed_nics),
            edges=tuple(
                edge for edge in changed.edges if removed_nics.isdisjoint((edge.a, edge.b))
            ),
        )
    changed = replace(changed, pairs=tuple(_altered_pairs(machine, changed)))
    _check_joined(machine, changed, name)
    return changed


def _is_named(edge: Edge, name: str) -> bool:
    return edge.kind in KINDS.get(name, ()) or name in (
        f"{edge.a}-{edge.b}",
        f"{edge.b}-{edge.a}",
    )


def _suggested_links(machine: Machine, name: str) -> list[str]:
    """List the kinds of links that a machine has, and those of the ends that a name has, or all."""
    edge_kinds = {edge.kind for edge in machine.edges}
    kinds = [kind for kind, edges in KINDS.items() if edges & edge_kinds]
    kinds += [NETWORK] if machine.nics else []
    joined_ends = [(edge.a, edge.b) for edge in reversed(machine.edges)]
    joined_ends += [(nic.name, NETWORK) for nic in machine.nics]
    links = {"-".join(link): link for link in joined_ends}
    ends = set(name.lower().split("-"))
    matching_links = [
        text for text, link in links.items() if not ends.isdisjoint(map(str.lower, link))
    ]
    return [*kinds, *(matching_links or links)]


def _scaled_port(machine: Machine, nic: Nic, times: float) -> Nic:
    speed = nic.bandwidth or (machine.cluster.nic_bandwidth if machine.cluster else None)
    return nic if speed is None else replace(nic, bandwidth=_scaled_speed(speed, times))


def _scaled_speed(speed: Sourced, times: float) -> Sourced:
    source = f"{times:g} times {speed.source}"
    return replace(speed, value=speed.value * times, kind="assumed", source=source)


def _alteration_note(machine: Machine, name: str, times: float) -> str:
    scope = " of every host" if machine.copies > 1 else ""
    return f"{name}{scope} {f'at {times:g} times its bandwidth' if times else 'is down'}"


def _altered_pairs(old: Machine, new: Machine) -> Iterable[Pair]:
    """Keep what is known of pairs that no altered link joins; what was told of others scales."""
    old_pairs, new_pairs = ({(p.a, p.b): p for p in graph_pairs(machine)} for machine in (old, new))
    for pair in old.pairs:
        ends = pair.a, pair.b
        old_pair, new_pair = old_pairs.get(ends), new_pairs.get(ends)
        if old_pair is None or old_pair == new_pair:
            yield pair
        elif new_pair is not None:
            keeps_kind = pair.is_given and pair.kind == new_pair.kind
            scale = pair.bandwidth / old_pair.bandwidth if keeps_kind else 1.0
            basis = pair.basis if keeps_kind else new_pair.basis
            rate = BytesPerSecond(new_pair.bandwidth * scale)
            yield replace(new_pair, bandwidth=rate, read=pair.read, basis=basis)


def _check_joined(old: Machine, new: Machine, name: str) -> None:
    joined_ends = {(pair.a, pair.b) for pair in new.pairs}
    gpus = {gpu.name for gpu in old.gpus}
    for pair in old.pairs:
        if {pair.a, pair.b} <= gpus and (pair.a, pair.b) not in joined_ends:
            message = f"links: without {name} nothing joins {pair.a} and {pair.b}"
            raise CutError(message, frozenset((pair.a, pair.b)))
    if old.hosts > 1 and old.nics and not new.nics:
        raise CutError(f"links: without {name} nothing joins {old.hosts} hosts")
