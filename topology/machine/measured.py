"""What somebody measured between two GPUs, in place of what their label would mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from topology.base import BytesPerSecond, InputError, TopologyError, parse_rate
from topology.catalogue import link_rates
from topology.machine.graph import Machine, Pair
from topology.machine.routes import Hop

Ends = frozenset[str]
_WANTED: Final = "expected a pair of GPUs or a label, and a bandwidth such as 13.2 GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredText:
    """One table ``[[measured]]``: bytes a second of a pair of GPUs, or of all with a label."""

    pair: Ends
    label: str
    bandwidth: BytesPerSecond


def read_measured(rows: object) -> tuple[MeasuredText, ...]:
    """Read the tables ``[[measured]]`` of a file.

    >>> read_measured([{"label": "PHB", "bandwidth": "6.5 GB/s"}])[0].bandwidth
    6500000000.0

    Raises
    ------
    TopologyError
        If one names no pair and no label, or a bandwidth that cannot be.
    """
    if not isinstance(rows, list):
        raise TopologyError(f"measured is {str(rows)[:40]!r}: {_WANTED}")
    return tuple(map(_row, rows))


def _row(row: object) -> MeasuredText:
    table = row if isinstance(row, dict) else {}
    pair, label = table.get("pair", []), table.get("label", "")
    named = isinstance(pair, list) and len({*map(str, pair)}) == 2
    if table.keys() - {"pair", "label", "bandwidth"} or named == bool(label):
        raise TopologyError(f"measured: {str(row)[:80]}: {_WANTED}")
    try:
        value = parse_rate(str(table.get("bandwidth", "")))
    except InputError as error:
        raise TopologyError(f"measured: {str(row)[:80]}: {error}") from None
    ends = frozenset(map(str, pair)) if named else frozenset[str]()
    return MeasuredText(pair=ends, label=str(label).upper(), bandwidth=value)


def bandwidths(host: Machine, said: Sequence[MeasuredText]) -> dict[Ends, BytesPerSecond]:
    """Find the pairs of GPUs of a host that tables speak of; those by name stand above labels.

    Raises
    ------
    TopologyError
        If a host has no such pair or label.
    """
    gpus = {gpu.name for gpu in host.gpus}
    pairs = [pair for pair in host.pairs if {pair.a, pair.b} <= gpus]
    found: dict[Ends, BytesPerSecond] = {}
    for one in sorted(said, key=lambda one: len(one.pair)):
        meant = {
            frozenset((pair.a, pair.b))
            for pair in pairs
            if one.pair == {pair.a, pair.b} or one.label == _label(pair)
        }
        if not meant:
            raise TopologyError(
                f"measured: {one.label or ' and '.join(sorted(one.pair))}: {host.name} has no such "
                f"pair of GPUs, it has {', '.join(sorted(set(map(_label, pairs))))}"
            )
        found |= dict.fromkeys(meant, one.bandwidth)
    return found


def _label(pair: Pair) -> str:
    return f"NV{pair.count}" if pair.kind in ("NVLINK", "NVSWITCH") else pair.kind


def with_measured(machine: Machine, found: Mapping[Ends, BytesPerSecond]) -> Machine:
    """Give pairs of GPUs the bandwidth that copies between them reached.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.node import machine_of
    >>> node = machine_of(find_hardware("rtx-pro-6000"))
    >>> slow = with_measured(node, {frozenset(("GPU0", "GPU1")): BytesPerSecond(6.5e9)})
    >>> slow.pairs[0].bandwidth, slow.pairs[0].basis, slow.pairs[1].basis
    (6500000000.0, 'measured', 'kind')
    """
    if not found:
        return machine
    return replace(machine, pairs=tuple(_measured(pair, found) for pair in machine.pairs))


def _measured(pair: Pair, found: Mapping[Ends, BytesPerSecond]) -> Pair:
    value = found.get(frozenset((pair.a, pair.b)))
    return pair if value is None else replace(pair, bandwidth=value, basis="measured")


def is_known(pair: Pair) -> bool:
    """Tell whether somebody gave the bandwidth of a pair, so that its kind does not rule it."""
    return pair.basis != "kind"


def link_bandwidth(pair: Pair) -> BytesPerSecond:
    """Bytes a second that the links between two GPUs must be nominally good for."""
    if pair.basis != "measured":
        return pair.bandwidth
    return BytesPerSecond(pair.bandwidth / link_rates().copy.value)


def measured_capacity(
    pairs: Mapping[tuple[str, str], Pair],
    paths: Mapping[tuple[str, str], tuple[Hop, ...]],
    nominal: Mapping[Hop, float],
) -> tuple[dict[tuple[str, str], tuple[Hop, ...]], dict[Hop, float]]:
    """Let what is known of pairs rule the links between them; give ways and capacities then.

    No link on the way of a copy is slower than that copy was. A GPU's own port is as fast as the
    fastest of its copies, where all of them were measured; and a pair that is slower than its
    links are has a bound of its own.
    """
    ways, capacity = dict(paths), dict(nominal)
    rate = {ends: link_bandwidth(pairs[ends]) for ends in paths if is_known(pairs[ends])}
    crossing: dict[Hop, list[float | None]] = {}
    for ends, path in paths.items():
        for hop in path:
            crossing.setdefault(hop, []).append(rate.get(ends))
    gpus = {name for ends in paths for name in ends}
    for hop, known in crossing.items():
        told = [value for value in known if value is not None]
        if len(told) == len(known) and not gpus.isdisjoint(hop):
            capacity[hop] = max(told)
        elif told:
            capacity[hop] = max(capacity[hop], *told)
    for (a, b), value in rate.items():
        own = (a, f"{b} (measured)")
        ways[a, b] = (*paths[a, b], own)
        capacity[own] = value
    return ways, capacity
