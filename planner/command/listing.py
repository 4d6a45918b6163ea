"""The models of the catalogue as a list, with those that cannot be planned yet, and why."""

from collections.abc import Sequence
from typing import Final

from planner.models.catalogue import names, read_model
from planner.models.describe import describe
from planner.models.shown import counted
from planner.search.plans import unsupported

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
        shown = describe(model)
        shape = {key: shown[key] for key in SHAPE}
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
