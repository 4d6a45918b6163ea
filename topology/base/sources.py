"""A number that knows where it came from, and how tables of such numbers are written.

A table names a default `kind` and `source`; an entry that differs says so itself::

    [h100-sxm]
    kind = "datasheet"
    source = "NVIDIA H100 datasheet"
    memory = "80 GB"
    l2 = { value = "50 MiB", source = "NVIDIA H100 architecture whitepaper" }
"""

from collections.abc import Collection, Mapping
from typing import Literal, cast, get_args

from topology.base.errors import CatalogueError, InputError, shown, unknown
from topology.base.units import parse
from topology.base.values import dataclass

Kind = Literal["datasheet", "measured", "derived", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A number in SI units with its kind and its source."""

    value: float
    kind: Kind
    source: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise CatalogueError(f"{self.kind!r} is not one of {', '.join(get_args(Kind))}")
        if not self.source.strip():
            raise CatalogueError(f"{self.value:g} has no source")


def read_sourced(where: str, entry: object, unit: str, defaults: Mapping[str, object]) -> Sourced:
    """Read one entry of a table: text in `unit`, or a table with `value` and its own provenance.

    Raises CatalogueError if the value is not a quantity in `unit`, or kind or source is missing.
    """
    row = entry if isinstance(entry, Mapping) else {"value": entry}
    unknown_keys = set(row) - {"value", "kind", "source", "note"}
    if "value" not in row or unknown_keys:
        raise CatalogueError(f"{where}: expected value, kind, source, note, got {sorted(row)}")
    kind, source = row.get("kind", defaults.get("kind")), row.get("source", defaults.get("source"))
    try:
        value = parse(str(row["value"]), unit)
        return Sourced(
            value=value,
            kind=cast(Kind, kind),
            source=str(source or ""),
            note=str(row.get("note", "")),
        )
    except InputError as error:
        raise CatalogueError(f"{where}: {error}") from None


def check_keys(
    where: str, row: object, wanted: Collection[str], optional: Collection[str] = ()
) -> Mapping[str, object]:
    """Give a row of a table back that has all keys which are wanted, and none that is unknown.

    >>> check_keys("t4", {"memry": 1}, ["memory"])
    Traceback (most recent call last):
    topology.base.errors.CatalogueError: t4: unknown key 'memry': did you mean memory?
    """
    if not isinstance(row, Mapping):
        raise CatalogueError(f"{where}: got {shown(row)}, wanted a table")
    for key in row:
        if key not in wanted and key not in optional:
            raise CatalogueError(f"{where}: {unknown('key', key, [*wanted, *optional])}")
    for key in wanted:
        if key not in row:
            raise CatalogueError(f"{where}: got no {key}, wanted {', '.join(wanted)}")
    return row


def read_choice(where: str, value: object, choices: Collection[str]) -> str:
    """Give a word of a table back that is one of a few."""
    if not isinstance(value, str) or value not in choices:
        text = value if isinstance(value, str) else shown(value)
        raise CatalogueError(f"{where}: {unknown('word', text, choices)}")
    return value
