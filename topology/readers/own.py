"""A machine as this program writes it: JSON with `gpus` and `links`."""

import json
from collections.abc import Mapping
from typing import Final, cast, get_args

from topology.errors import TopologyError
from topology.graph import PairKind
from topology.hardware import Hardware
from topology.readers.reading import RANKS, GpuText, Label, NicText, Reading
from topology.units import Bytes

_NVLINKS: Final = ("NVLINK", "NVSWITCH")


def read_own(text: str) -> tuple[Reading, str | None]:
    """Read what ``to_dict`` gives of a single host, and the hardware name it carries.

    Raises
    ------
    TopologyError
        If the text is not JSON, or not such a machine; the message names the entry.
    """
    try:
        table = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TopologyError(f"JSON: {str(error)[:100]}") from None
    if not isinstance(table, dict) or not {"gpus", "links"} <= table.keys():
        keys = sorted(map(str, table))[:8] if isinstance(table, dict) else type(table).__name__
        raise TopologyError(f"JSON: expected a table with gpus and links, got {keys}")
    if table.get("nodes", 1) != 1:
        raise TopologyError("JSON: expected one node; describe a cluster in TOML")
    gpus = _rows(table, "gpus")
    names = [_text(row, "name") for row in gpus]
    kinds = {row.get("hardware") for row in gpus}
    nics = [
        NicText(name=_text(row, "name"), device=str(row.get("device", ""))[:60], numa=_numa(row))
        for row in (_rows(table, "nics") if "nics" in table else [])
    ]
    known = {*names, *(nic.name for nic in nics)}
    if len(known) < len(names) + len(nics):
        raise TopologyError("JSON: two devices have one name")
    reading = Reading(
        source="JSON",
        gpus=tuple(_gpu(row) for row in gpus),
        nics=tuple(nics),
        labels=dict(_label(row, known) for row in _rows(table, "links")),
    )
    kind = kinds.pop() if len(kinds) == 1 else None
    return reading, kind if isinstance(kind, str) else None


def _rows(table: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    rows = table[key]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TopologyError(f"JSON: {key} is no list of tables")
    return rows


def _text(row: Mapping[str, object], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise TopologyError(f"JSON: {key} is {str(value)[:40]!r}: expected a name")
    return value


def _numa(row: Mapping[str, object]) -> int | None:
    value = row.get("numa")
    return value if isinstance(value, int) else None


def _gpu(row: Mapping[str, object]) -> GpuText:
    memory = row.get("memory_bytes")
    return GpuText(
        name=_text(row, "name"),
        numa=_numa(row),
        product=str(row.get("product", ""))[:100],
        architecture=str(row.get("architecture", ""))[:20],
        memory=Bytes(float(memory)) if isinstance(memory, int | float) else None,
        mig=row.get("mig") is True,
    )


def _label(row: Mapping[str, object], known: set[str]) -> tuple[tuple[str, str], Label]:
    a, b, kind = _text(row, "a"), _text(row, "b"), _text(row, "kind")
    count = row.get("count", 1)
    if not {a, b} <= known or a == b:
        raise TopologyError(f"JSON: link {a[:40]}-{b[:40]} joins no two known devices")
    if kind not in get_args(PairKind) or not isinstance(count, int) or not 0 < count < 1000:
        raise TopologyError(f"JSON: link {a[:40]}-{b[:40]}: {kind[:20]} x {str(count)[:10]}")
    known_kind = "NVLINK" if kind in _NVLINKS else kind
    if known_kind != "NVLINK" and known_kind not in RANKS:
        raise TopologyError(f"JSON: link {a[:40]}-{b[:40]}: no {kind} inside one node")
    return (a, b), Label(cast(PairKind, known_kind), count)


def own_hardware(name: str | None, catalogue: Mapping[str, Hardware]) -> Hardware | None:
    """Look up the hardware name of a machine that was written before."""
    return catalogue.get(name) if name else None
