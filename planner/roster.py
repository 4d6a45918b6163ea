"""The models of the catalogue as a list, with those that cannot be planned yet, and why."""

from collections.abc import Sequence
from typing import Final

from planner.compose import unsupported
from planner.models.catalogue import names, read_model
from planner.models.count import parameters
from planner.models.shown import counted

HEADERS: Final = ("name", "kind", "parameters", "")


def roster() -> list[dict[str, object]]:
    """Describe every model as plain data, one entry a name.

    >>> [str(entry["name"]) for entry in roster() if entry["not_planned"]]
    ['deepseek-v3']
    """
    found = []
    for name in names():
        model = read_model(name)
        found.append(
            {
                "name": name,
                "kind": model.kind,
                "parameters": parameters(model),
                "not_planned": "; ".join(unsupported(model)),
            }
        )
    return found


def roster_rows(found: Sequence[dict[str, object]]) -> list[list[str]]:
    """Write the cells of the list, under `HEADERS`."""
    return [
        [
            str(one["name"]),
            str(one["kind"]),
            counted(int(str(one["parameters"]))),
            f"not planned: {one['not_planned']}" if one["not_planned"] else "",
        ]
        for one in found
    ]
