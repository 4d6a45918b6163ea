"""The models of the catalogue as a list."""

from collections.abc import Sequence
from typing import Final

from planner.models import names, read_model, unsupported
from topology.base.facts import in_words
from topology.base.table import Table

HEADERS: Final = ("name", "kind", "parameters", "")
SHAPE: Final = (
    "name", "family", "kind", "parameters", "active_parameters", "layers", "hidden", "heads",
    "kv_heads", "head_dim", "ffn", "context",
)  # fmt: skip
"""What the list says of a model, as `planner models show` does."""


def catalogue_entries() -> list[dict[str, object]]:
    """Describe every model as plain data, one entry a name: `SHAPE`, and why it is not planned.

    >>> [str(entry["name"]) for entry in catalogue_entries() if entry["family"] == "mochi"]
    ['mochi-1']
    """
    entries = []
    for name in names():
        model = read_model(name)
        model_facts = {**model.to_dict(), "name": name}
        shape = {key: model_facts[key] for key in SHAPE}
        entries.append({**shape, "not_planned": "; ".join(unsupported(model))})
    return entries


def entries_json(entries: Sequence[dict[str, object]]) -> dict[str, object]:
    """Return what ``planner models list --format json`` prints."""
    reasons = {str(entry["name"]): entry["not_planned"] for entry in entries}
    return {
        "models": list(reasons),
        "not_planned": {name: reason for name, reason in reasons.items() if reason},
        "details": list(entries),
    }


def entries_table(entries: Sequence[dict[str, object]], *, headed: bool = True) -> Table:
    """Make a row of each model of the list."""
    rows = [
        [
            str(entry["name"]),
            str(entry["kind"]),
            in_words(int(str(entry["parameters"]))),
            f"not planned: {entry['not_planned']}" if entry["not_planned"] else "",
        ]
        for entry in entries
    ]
    return Table(head=HEADERS if headed else (), rows=rows, align="<<><", least=(24, 9, 12))
