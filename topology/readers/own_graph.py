"""The graph in what this program writes as JSON: the machine as it was, where the rows are too."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

from topology.base import FASTEST_LINK, SLOWEST_LINK, CatalogueError, TopologyError
from topology.catalogue import Hardware
from topology.machine import GRAPH, Gpu, Machine, Nic, Node

_MOST_NUMBER: Final = 10**18
_MOST_CHARACTERS: Final = 1000
Table: TypeAlias = Mapping[str, Any]


def machine_in(table: Table, name: str, catalogue: Mapping[str, Hardware]) -> Machine | None:
    """Give the machine whose graph a document has, None where there is none or rows were changed.

    Raises TopologyError if the graph is none; the message names the place.
    """
    graph = table.get("graph")
    if graph is None:
        return None
    if not isinstance(graph, dict) or not graph.keys() <= set(GRAPH):
        raise TopologyError(f"JSON: graph: wanted a table of {', '.join(GRAPH)}")
    other_fields = {key: table.get(key) for key in ("source", "assumptions", "warnings")}
    machine: Machine = _record(Machine, {"name": name, **other_fields, **graph}, "graph")
    _check_graph(machine, catalogue)
    document = machine.to_dict()
    unchanged = bool(machine.gpus) and all(
        table.get(key) == value for key, value in document.items() if key != "name"
    )
    return machine if unchanged else None


def _check_graph(machine: Machine, catalogue: Mapping[str, Hardware]) -> None:
    """Refuse a graph that could not have been written."""
    parts: tuple[Gpu | Nic | Node, ...] = (*machine.gpus, *machine.nics, *machine.nodes)
    names = {part.name for part in parts}
    if len(names) < len(parts) or any(part.host for part in parts):
        raise TopologyError("JSON: graph: two parts have one name, or are of two hosts")
    links = [(link.a, link.b, link.count, link.bandwidth.value) for link in machine.edges]
    links += [(link.a, link.b, link.count, link.bandwidth) for link in machine.pairs]
    for a, b, count, rate in links:
        joins = {a, b} <= names and a != b and count > 0
        if not joins or not SLOWEST_LINK <= rate <= FASTEST_LINK:
            raise TopologyError(f"JSON: graph: {a[:40]}-{b[:40]} is no link")
    for gpu in machine.gpus:
        if gpu.hardware is not None and gpu.hardware not in catalogue:
            raise TopologyError(
                f"JSON: graph: {gpu.name[:40]}: unknown hardware {gpu.hardware[:100]!r}: wanted a "
                "name of the catalogue, or the file that --hardware names too"
            )


def _value(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401  # of the type that is asked
    """Read a value of the type that a field has."""
    if is_dataclass(hint):
        return _record(hint, value, where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise TopologyError(f"JSON: {where}: wanted a list")
        element_type = get_args(hint)[0]
        return tuple(
            _value(element_type, element, f"{where} {place}") for place, element in enumerate(value)
        )
    kind = getattr(hint, "__supertype__", hint)
    if get_origin(kind) is not Literal and (options := get_args(kind)):
        return _value(next(option for option in options if option is not type(None)), value, where)
    if not _fits(kind, value):
        raise TopologyError(f"JSON: {where}: got {str(value)[:40]!r}")
    return value


def _fits(kind: object, value: object) -> bool:
    if kind is str:
        return isinstance(value, str) and len(value) <= _MOST_CHARACTERS
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_NUMBER
    if kind is float:
        return type(value) in (int, float) and 0 <= cast(float, value) <= _MOST_NUMBER
    return value in get_args(kind)


def _record(kind: Any, row: object, where: str) -> Any:  # noqa: ANN401  # a class of values
    if not isinstance(row, dict):
        raise TopologyError(f"JSON: {where}: wanted a table")
    hints = get_type_hints(kind)
    if not row.keys() <= hints.keys():
        raise TopologyError(f"JSON: {where}: got keys that it does not have")
    values = {name: _value(hints[name], value, f"{where}: {name}") for name, value in row.items()}
    try:
        return kind(**values)
    except (TypeError, CatalogueError) as error:
        raise TopologyError(f"JSON: {where}: {error}") from None
