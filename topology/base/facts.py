"""What is known of a thing, such as a model, as a person reads it: a row a fact."""

from collections.abc import Mapping, Sequence
from typing import Final

from topology.base.table import Table

_GIGA: Final = 10**9
_MEGA: Final = 10**6
_EMPTY: Final = (None, "", 0, 0.0, False)
_COUNTS: Final = (
    "parameters", "active_parameters", "draft_parameters", "vision_parameters",
)  # fmt: skip


def facts(described: Mapping[str, object]) -> Table:
    """Make a row of each fact."""
    return Table(rows=list(shown(described).items()), align="<")


def shown(described: Mapping[str, object]) -> dict[str, str]:
    """Write described facts for a table: a line a fact, empty ones left out.

    >>> shown({"name": "a", "vae": None, "parameters": 46_702_792_704, "assumed": []})
    {'name': 'a', 'parameters': '46.7 billion'}
    """
    filled_facts = {key: value for key, value in described.items() if not _empty(value)}
    if filled_facts.get("active_parameters") == filled_facts.get("parameters"):
        filled_facts.pop("active_parameters", None)
    return {key.replace("_", " "): _value_text(key, value) for key, value in filled_facts.items()}


def _empty(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_empty, value.values()))
    if isinstance(value, list | tuple):
        return not value
    return value in _EMPTY


def _value_text(key: str, value: object) -> str:
    if key in _COUNTS and isinstance(value, int):
        return in_words(value)
    if isinstance(value, Mapping):
        parts = [
            f"{name.replace('_', ' ')} {_value_text(name, inner)}"
            for name, inner in value.items()
            if not _empty(inner)
        ]
        return ", ".join(parts)
    if isinstance(value, list | tuple):
        return _list_text(value)
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, float):
        return in_words(round(value)) if value >= _MEGA else f"{value:,g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _list_text(values: Sequence[object]) -> str:
    """Write a list; tables in it lead with their name, and part by semicolons."""
    if not any(isinstance(value, Mapping) for value in values):
        return ", ".join(_value_text("", value) for value in values)
    return "; ".join(
        _entry_text(value) if isinstance(value, Mapping) else str(value) for value in values
    )


def _entry_text(entry: Mapping[str, object]) -> str:
    details = {key: value for key, value in entry.items() if key != "name"}
    detail_text = _value_text("", details)
    name = str(entry.get("name", ""))
    return f"{name} ({detail_text})" if name and detail_text else name or detail_text


def in_words(number: int) -> str:
    """Write a number of parameters.

    >>> in_words(11_901_408_320), in_words(83_819_683), in_words(1500)
    ('11.9 billion', '83.8 million', '1,500')
    """
    if number >= 100 * _GIGA:
        return f"{number / _GIGA:,.0f} billion"
    if number >= _GIGA:
        return f"{number / _GIGA:.3g} billion"
    return f"{number / _MEGA:.3g} million" if number >= _MEGA else f"{number:,}"
