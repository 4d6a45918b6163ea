"""Frozen values from TOML tables, read by the names and types of their fields."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Final, TypeVar, cast, get_args, get_origin, get_type_hints

from topology.base import CatalogueError, InputError, Sourced, read_sourced

Table = Mapping[str, object]
Version = tuple[int, ...]
Value = TypeVar("Value")
Reader = Callable[[str, object, str], object]
"""Reads a value, of which it is told where it stands and in which unit it is."""
_PART: Final = re.compile(r"[0-9]{1,9}")


def read_fields(kind: Callable[..., Value], where: str, table: Table) -> Value:
    """Read a dataclass from a table; a field of a quantity says its unit in its metadata.

    Raises `CatalogueError` if a key is no field, or a field that has no default is missing.
    """
    if not isinstance(table, Mapping):
        raise CatalogueError(f"{where}: expected a table, got {str(table)[:40]!r}")
    readers, units = _fields(kind)
    unknown = sorted(table.keys() - readers.keys())
    if unknown:
        raise CatalogueError(f"{where}: expected {sorted(readers)}, got {', '.join(unknown)} too")
    values = {
        name: readers[name](f"{where}.{name}", value, units[name]) for name, value in table.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise CatalogueError(f"{where}: {str(error).partition(') ')[2]}") from None


@cache
def _fields(kind: Callable[..., object]) -> tuple[dict[str, Reader], dict[str, str]]:
    """Look up how fields of a dataclass are read, which takes a while, and units of quantities."""
    units = {field.name: field.metadata.get("unit", "") for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    return {name: _reader(hint) for name, hint in get_type_hints(kind).items()}, units


@cache
def _reader(kind: object) -> Reader:
    """Say how a value of a type is read: a quantity, a version as text, or what TOML has itself."""
    if get_origin(kind) is Mapping:
        read_entry = _reader(get_args(kind)[1])
        return lambda where, rows, unit: {
            name: read_entry(f"{where}.{name}", entry, unit)
            for name, entry in cast(Table, rows).items()
        }
    if Sourced in (kind, *get_args(kind)):
        return lambda where, value, unit: read_sourced(where, value, unit, {})
    if is_dataclass(kind):
        record = cast("Callable[..., object]", kind)
        return lambda where, value, _: read_fields(record, where, cast(Table, value))
    if get_origin(kind) is UnionType:
        return _reader(next(member for member in get_args(kind) if member is not NoneType))
    if get_origin(kind) is not tuple:
        return lambda _, value, __: value
    read_part = _reader(get_args(kind)[0])
    return lambda where, value, _: (
        read_version(value)
        if isinstance(value, str)
        else tuple(read_part(where, member, "") for member in cast("list[object]", value))
    )


def read_version(text: str) -> Version:
    """Read a version; compare as tuples.

    >>> read_version("11.2.1.2") > read_version("11.2")
    True
    """
    parts = text.strip().split(".")
    if not all(_PART.fullmatch(part) for part in parts):
        raise InputError(f"version: got {text[:40]!r}, wanted numbers such as 11.4.1")
    return tuple(int(part) for part in parts)
