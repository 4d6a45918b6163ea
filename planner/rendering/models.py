"""Models as a person reads them: the catalogue as a list, and one model in units of people."""

from collections.abc import Mapping, Sequence
from typing import Final

from planner.lowering import unsupported
from planner.models.catalogue import names, read_model
from topology.drawing.table import Table

_GIGA: Final = 10**9
_MEGA: Final = 10**6
_EMPTY: Final = (None, "", 0, 0.0, False)
_COUNTS: Final = ("parameters", "active_parameters")
HEADERS: Final = ("name", "kind", "parameters", "")
SHAPE: Final = (
    "name", "family", "kind", "parameters", "active_parameters", "layers", "hidden", "heads",
    "kv_heads", "head_dim", "ffn", "context",
)  # fmt: skip
"""What the list says of a model, as `planner models show` does."""


def roster() -> list[dict[str, object]]:
    """Describe every model as plain data, one entry a name: `SHAPE`, and why it is not planned.

    >>> [str(entry["name"]) for entry in roster() if entry["not_planned"]]
    ['deepseek-v3']
    """
    found = []
    for name in names():
        model = read_model(name)
        described = model.to_dict()
        shape = {key: described[key] for key in SHAPE}
        found.append({**shape, "name": name, "not_planned": "; ".join(unsupported(model))})
    return found


def roster_json(found: Sequence[dict[str, object]]) -> dict[str, object]:
    """Return what ``planner models list --format json`` prints."""
    return {
        "models": [one["name"] for one in found],
        "not_planned": {
            str(one["name"]): one["not_planned"] for one in found if one["not_planned"]
        },
        "details": list(found),
    }


def roster_table(found: Sequence[dict[str, object]], *, headed: bool = True) -> Table:
    """Make a row of each model of the list."""
    rows = [
        [
            str(one["name"]),
            str(one["kind"]),
            counted(int(str(one["parameters"]))),
            f"not planned: {one['not_planned']}" if one["not_planned"] else "",
        ]
        for one in found
    ]
    return Table(head=HEADERS if headed else (), rows=rows, align="<<><", least=(24, 9, 12))


def facts(described: Mapping[str, object]) -> Table:
    """Make a row of each fact about a model."""
    return Table(rows=list(shown(described).items()), align="<")


def shown(described: Mapping[str, object]) -> dict[str, str]:
    """Write what `Model.to_dict` says for a table: a line a fact, empty ones left out.

    >>> shown({"name": "a", "vae": None, "parameters": 46_702_792_704, "assumed": []})
    {'name': 'a', 'parameters': '46.7 billion'}
    """
    kept = {key: value for key, value in described.items() if not _empty(value)}
    if kept.get("active_parameters") == kept.get("parameters"):
        kept.pop("active_parameters", None)
    return {key.replace("_", " "): _line(key, value) for key, value in kept.items()}


def _empty(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_empty, value.values()))
    if isinstance(value, list | tuple):
        return not value
    return value in _EMPTY


def _line(key: str, value: object) -> str:
    if key in _COUNTS and isinstance(value, int):
        return counted(value)
    if isinstance(value, Mapping):
        parts = [
            f"{name.replace('_', ' ')} {_line(name, inner)}"
            for name, inner in value.items()
            if not _empty(inner)
        ]
        return ", ".join(parts)
    if isinstance(value, list | tuple):
        return _listed(value)
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, float):
        return counted(round(value)) if value >= _MEGA else f"{value:,g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _listed(values: Sequence[object]) -> str:
    """Write a list; tables in it lead with their name, and part by semicolons."""
    if not any(isinstance(value, Mapping) for value in values):
        return ", ".join(_line("", value) for value in values)
    return "; ".join(
        _named(value) if isinstance(value, Mapping) else str(value) for value in values
    )


def _named(entry: Mapping[str, object]) -> str:
    rest = {key: value for key, value in entry.items() if key != "name"}
    inside = _line("", rest)
    name = str(entry.get("name", ""))
    return f"{name} ({inside})" if name and inside else name or inside


def counted(number: int) -> str:
    """Write a number of parameters.

    >>> counted(11_901_408_320), counted(83_819_683), counted(1500)
    ('11.9 billion', '83.8 million', '1,500')
    """
    if number >= 100 * _GIGA:
        return f"{number / _GIGA:,.0f} billion"
    if number >= _GIGA:
        return f"{number / _GIGA:.3g} billion"
    return f"{number / _MEGA:.3g} million" if number >= _MEGA else f"{number:,}"
