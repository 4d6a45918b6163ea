"""A machine as this program writes it: JSON with `gpus` and `links`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast, get_args

from topology.base import (
    FASTEST_LINK,
    SLOWEST_LINK,
    Bytes,
    BytesPerSecond,
    Sourced,
    TopologyError,
    printable,
    unknown,
)
from topology.catalogue import Hardware, Paced, check_pcie_generation
from topology.machine import Nic, PairKind, PeerState, PeerStatus, Reached
from topology.readers.reading import RANKS, GivenRate, GpuText, Label, Reading

_ASSUMED_PREFIX: Final = "PCIe generation"  # begins the line that says so
_MOST_BYTES: Final = 10**15  # B
_BANDWIDTH_KEY: Final = "bandwidth_bytes_per_s"
Row: TypeAlias = Mapping[str, Any]


def read_own(table: Row, catalogue: Mapping[str, Hardware]) -> Reading:
    """Read the rows that ``to_dict`` gives of a host; `catalogue` knows the hardware it names."""
    gpus = _rows(table, "gpus")
    names = {_text(row, "name") for row in gpus}
    nics = tuple(map(_nic, _rows(table, "nics") if "nics" in table else ()))
    devices = names | {nic.name for nic in nics}
    rows = _rows(table, "links")
    links = [row for row in rows if row.get("kind") != "C2C"]
    coherent = {_text(row, "a"): _rate(row, "C2C") for row in rows if row.get("kind") == "C2C"}
    assumed = any(
        str(line).startswith(_ASSUMED_PREFIX) for line in _optional_rows(table, "assumptions")
    )
    if len(devices) < len(gpus) + len(nics):
        raise TopologyError("JSON: two devices have one name")
    if len(gpus) > 1 and not rows:
        raise TopologyError(
            f"JSON: links: got none beside {len(gpus)} GPUs, wanted those they have"
        )
    return Reading(
        source="JSON",
        gpus=tuple(
            replace(gpu, coherent=coherent.get(gpu.name))
            for gpu in (_gpu(row, catalogue, assumed=assumed) for row in gpus)
        ),
        nics=nics,
        labels=dict(_label(row, devices) for row in links),
        rates={
            (row["a"], row["b"]): GivenRate(
                _rate(row, _link_place(row)), row.get("measured") is True
            )
            for row in links
            if {row["a"], row["b"]} <= names and row.get(_BANDWIDTH_KEY) is not None
        },
        peers=tuple(_peer(row, devices) for row in _optional_rows(table, "peer_access")),
        reached=tuple(_reached(row, len(gpus)) for row in _optional_rows(table, "reached")),
    )


def document_in(text: str) -> Row:
    """Read the JSON of a single host.

    Raises TopologyError if it is none.
    """
    try:
        table = printable(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        raise TopologyError(f"JSON: {str(error)[:100]}") from None
    except ValueError:
        raise TopologyError("JSON: got a number of thousands of digits, wanted bytes") from None
    if not isinstance(table, dict) or not {"gpus", "links"} <= table.keys():
        keys = sorted(map(str, table))[:8] if isinstance(table, dict) else type(table).__name__
        raise TopologyError(f"JSON: expected a table with gpus and links, got {keys}")
    if table.get("nodes", 1) != 1:
        raise TopologyError("JSON: expected one node; describe a cluster in TOML")
    return table


def _rows(table: Row, key: str) -> list[Row]:
    rows = table[key]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TopologyError(f"JSON: {key} is no list of tables")
    return rows


def _optional_rows(table: Row, key: str) -> list[object]:
    rows = table.get(key)
    return rows if isinstance(rows, list) else []


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise TopologyError(f"JSON: {key} is {str(value)[:40]!r}: expected a name")
    return value


def _whole_number(row: Row, key: str) -> int | None:
    value = row.get(key)
    if value is not None and type(value) is not int:
        raise TopologyError(f"JSON: {key}: got {str(value)[:40]!r}, wanted a whole number or null")
    return value


def _nic(row: Row) -> Nic:
    name, speed = _text(row, "name"), None
    if row.get(_BANDWIDTH_KEY) is not None:
        speed = Sourced(value=_rate(row, f"NIC {name}"), kind="datasheet", source="JSON")
    device = str(row.get("device", ""))[:60]
    return Nic(name=name, device=device, numa=_whole_number(row, "numa"), bandwidth=speed)


def _gpu(row: Row, catalogue: Mapping[str, Hardware], *, assumed: bool) -> GpuText:
    """Read a GPU; a PCIe generation that was `assumed` is left to be assumed again."""
    name, generation = _text(row, "name"), row.get("pcie_generation") or None
    where = f"JSON: {name[:40]}"
    check_pcie_generation(generation, f"{where}: pcie_generation")
    lanes = _whole_number(row, "pcie_lanes") or 16
    lanes = lanes if 0 < lanes <= 16 else 16
    return GpuText(
        name=name,
        numa=_whole_number(row, "numa"),
        hardware=_hardware(row.get("hardware"), f"{where}: hardware", catalogue),
        product=str(row.get("product", ""))[:100],
        architecture=str(row.get("architecture", ""))[:20],
        memory=_memory(row.get("memory_bytes"), where),
        mig=row.get("mig") is True,
        slices=tuple(filter(None, [str(row.get("slice", ""))[:20]])),
        generation=0 if assumed else generation or 0,
        lanes=lanes,
        most_lanes=lanes,
    )


def _hardware(name: object, place: str, catalogue: Mapping[str, Hardware]) -> str:
    """Read the catalogue name of a GPU; empty where the file does not know it."""
    if name is None or name == "":
        return ""
    if not isinstance(name, str):
        raise TopologyError(f"{place}: got {str(name)[:40]!r}, wanted a name of the catalogue")
    known = name if name in catalogue else name.lower()
    if known not in catalogue:
        raise unknown(place, name, catalogue)
    return known


def _memory(value: Any, where: str) -> Bytes | None:  # noqa: ANN401  # any JSON
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < _MOST_BYTES:
        raise TopologyError(f"{where}: memory_bytes: got {str(value)[:40]!r}, wanted bytes")
    return Bytes(float(value))


def _rate(row: Row, place: str) -> BytesPerSecond:
    value: Any = row.get(_BANDWIDTH_KEY)
    if type(value) not in (int, float) or not SLOWEST_LINK <= value <= FASTEST_LINK:
        raise TopologyError(
            f"JSON: {place[:90]}: {_BANDWIDTH_KEY} is {str(value)[:40]!r}: expected bytes a second"
        )
    return BytesPerSecond(float(value))


def _link_place(row: Row) -> str:
    return f"link {row['a'][:40]}-{row['b'][:40]}"


def _label(row: Row, devices: set[str]) -> tuple[tuple[str, str], Label]:
    a, b, kind = (_text(row, key) for key in ("a", "b", "kind"))
    where, count = f"JSON: {_link_place(row)}", row.get("count", 1)
    if not {a, b} <= devices or a == b:
        raise TopologyError(f"{where} joins no two known devices")
    if kind not in get_args(PairKind) or not isinstance(count, int) or not 0 < count < 1000:
        raise TopologyError(f"{where}: {kind[:20]} x {str(count)[:10]}")
    kind = "NVLINK" if kind == "NVSWITCH" else kind
    if kind != "NVLINK" and kind not in RANKS:
        raise TopologyError(f"{where}: no {kind} inside one node")
    return (a, b), Label(cast(PairKind, kind), count)


def _reached(row: object, host_gpus: int) -> Reached:
    table: Row = row if isinstance(row, dict) else {}
    op, gpus, bus = (table.get(key) for key in ("op", "gpus", "bus_bandwidth_bytes_per_s"))
    valid_gpus = isinstance(gpus, int) and 2 <= gpus <= host_gpus
    if op not in get_args(Paced) or not valid_gpus or type(bus) not in (int, float):
        raise TopologyError(f"JSON: reached: {str(row)[:80]}: expected op, gpus and a bandwidth")
    rate = _rate({_BANDWIDTH_KEY: bus}, "reached")
    return Reached(op=cast(Paced, op), gpus=int(str(gpus)), bus=rate)


def _peer(row: object, devices: set[str]) -> PeerStatus:
    table: Row = row if isinstance(row, dict) else {}
    a, b, state = (_text(table, key) for key in ("a", "b", "state"))
    if not {a, b} <= devices or state not in get_args(PeerState):
        raise TopologyError(f"JSON: peer access {a[:40]}-{b[:40]} is {state[:20]}")
    capability = str(table.get("capability", ""))[:8]
    return PeerStatus(a=a, b=b, state=cast(PeerState, state), capability=capability)
