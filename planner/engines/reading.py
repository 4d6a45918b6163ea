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
_PART: Final = re.compile(r"[0-9]{1,9}")


def read_fields(kind: Callable[..., Value], where: str, table: Table) -> Value:
    """Read a dataclass from a table; a field of a quantity says its unit in its metadata.

    Raises `CatalogueError` if a key is no field, or a field that has no default is missing.
    """
    if not isinstance(table, Mapping):
        raise CatalogueError(f"{where}: expected a table, got {str(table)[:40]!r}")
    types, units = _fields(kind)
    unknown = sorted(table.keys() - types.keys())
    if unknown:
        raise CatalogueError(f"{where}: expected {sorted(types)}, got {', '.join(unknown)} too")
    values = {
        name: _value(types[name], f"{where}.{name}", value, units[name])
        for name, value in table.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise CatalogueError(f"{where}: {str(error).partition(') ')[2]}") from None


@cache
def _fields(kind: Callable[..., object]) -> tuple[dict[str, object], dict[str, str]]:
    """Look up the types of a dataclass, which takes a while, and the units of its quantities."""
    units = {field.name: field.metadata.get("unit", "") for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    return get_type_hints(kind), units


def _value(kind: object, where: str, value: object, unit: str = "") -> object:
    """Read a value of a type: a quantity, a version as text, or what TOML has itself."""
    if get_origin(kind) is Mapping:
        of = get_args(kind)[1]
        rows = cast(Table, value).items()
        return {name: _value(of, f"{where}.{name}", entry, unit) for name, entry in rows}
    if Sourced in (kind, *get_args(kind)):
        return read_sourced(where, value, unit, {})
    if is_dataclass(kind):
        return read_fields(cast("Callable[..., object]", kind), where, cast(Table, value))
    if get_origin(kind) is UnionType:
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            return read_version(value)
        return tuple(_value(get_args(kind)[0], where, each) for each in cast("list[object]", value))
    return value


def read_version(text: str) -> Version:
    """Read a version; compare as tuples.

    >>> read_version("11.2.1.2") > read_version("11.2")
    True
    """
    parts = text.strip().split(".")
    if not all(_PART.fullmatch(part) for part in parts):
        raise InputError(f"version: got {text[:40]!r}, wanted numbers such as 11.4.1")
    return tuple(int(part) for part in parts)
