"""A machine as this program writes it: JSON with `gpus` and `links`."""

import json
from collections.abc import Mapping
from typing import Final, cast, get_args

from topology.base import (
    FASTEST_LINK,
    SLOWEST_LINK,
    Bytes,
    BytesPerSecond,
    Sourced,
    TopologyError,
    unknown,
)
from topology.catalogue import NEWEST_PCIE, Hardware, check_pcie_generation
from topology.machine import PairKind, PeerState, PeerStatus
from topology.readers.reading import RANKS, GivenRate, GpuText, Label, NicText, Reading

_NVLINKS: Final = ("NVLINK", "NVSWITCH")
_ASSUMED: Final = "PCIe generation"  # begins the line that says so
_MOST: Final = 10**15  # B


def read_own(text: str, catalogue: Mapping[str, Hardware]) -> Reading:
    """Read what ``to_dict`` gives of a single host; `catalogue` knows the hardware it names.

    Raises
    ------
    TopologyError
        If the text is not JSON, or not such a machine; the message names the entry.
    """
    try:
        table = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TopologyError(f"JSON: {str(error)[:100]}") from None
    except ValueError:
        raise TopologyError("JSON: got a number of thousands of digits, wanted bytes") from None
    if not isinstance(table, dict) or not {"gpus", "links"} <= table.keys():
        keys = sorted(map(str, table))[:8] if isinstance(table, dict) else type(table).__name__
        raise TopologyError(f"JSON: expected a table with gpus and links, got {keys}")
    if table.get("nodes", 1) != 1:
        raise TopologyError("JSON: expected one node; describe a cluster in TOML")
    gpus = _rows(table, "gpus")
    names = [_text(row, "name") for row in gpus]
    nics = [
        NicText(
            name=_text(row, "name"),
            device=str(row.get("device", ""))[:60],
            numa=_numa(row),
            bandwidth=_speed(row),
        )
        for row in (_rows(table, "nics") if "nics" in table else [])
    ]
    devices = {*names, *(nic.name for nic in nics)}
    links = _rows(table, "links")
    assumed = any(str(line).startswith(_ASSUMED) for line in _lines(table, "assumptions"))
    if len(devices) < len(names) + len(nics):
        raise TopologyError("JSON: two devices have one name")
    return Reading(
        source="JSON",
        gpus=tuple(_gpu(row, catalogue, assumed=assumed) for row in gpus),
        nics=tuple(nics),
        labels=dict(_label(row, devices) for row in links),
        rates=dict(_given_rate(row) for row in _spoken(links, names)),
        peers=tuple(_peer(row, devices) for row in _lines(table, "peer_access")),
    )


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


def _lines(table: Mapping[str, object], key: str) -> list[object]:
    rows = table.get(key, [])
    return rows if isinstance(rows, list) else []


def _whole(row: Mapping[str, object], key: str, most: int) -> int:
    value = row.get(key)
    return value if isinstance(value, int) and 0 < value <= most else 0


def _spoken(links: list[Mapping[str, object]], names: list[str]) -> list[Mapping[str, object]]:
    """Keep the links between GPUs whose bandwidth is given."""
    gpus = set(names)
    ends = [row for row in links if {str(row.get("a")), str(row.get("b"))} <= gpus]
    return [row for row in ends if row.get("bandwidth_bytes_per_s") is not None]


def _speed(row: Mapping[str, object]) -> Sourced | None:
    value = row.get("bandwidth_bytes_per_s")
    if value is None:
        return None
    return Sourced(value=_rate(value, f"NIC {_text(row, 'name')}"), kind="datasheet", source="JSON")


def _rate(value: object, place: str) -> BytesPerSecond:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not SLOWEST_LINK <= cast(float, value) <= FASTEST_LINK:
        raise TopologyError(
            f"JSON: {place[:90]}: bandwidth_bytes_per_s is {str(value)[:40]!r}: "
            f"expected bytes a second"
        )
    return BytesPerSecond(float(cast(float, value)))


def _given_rate(row: Mapping[str, object]) -> tuple[tuple[str, str], GivenRate]:
    """Read what a link carries; where that is not what its kind means, somebody measured it."""
    a, b, value = str(row["a"]), str(row["b"]), row.get("bandwidth_bytes_per_s")
    bandwidth = _rate(value, f"link {a[:40]}-{b[:40]}")
    return (a, b), GivenRate(bandwidth, row.get("measured") is True)


def _peer(row: object, devices: set[str]) -> PeerStatus:
    table = row if isinstance(row, dict) else {}
    a, b, state = (_text(table, key) for key in ("a", "b", "state"))
    if not {a, b} <= devices or state not in get_args(PeerState):
        raise TopologyError(f"JSON: peer access {a[:40]}-{b[:40]} is {state[:20]}")
    capability = str(table.get("capability", ""))[:8]
    return PeerStatus(a=a, b=b, state=cast(PeerState, state), capability=capability)


def _gpu(row: Mapping[str, object], catalogue: Mapping[str, Hardware], *, assumed: bool) -> GpuText:
    """Read a GPU; a PCIe generation that was `assumed` is left to be assumed again."""
    name = _text(row, "name")
    check_pcie_generation(row.get("pcie_generation") or None, f"JSON: {name[:40]}: pcie_generation")
    lanes = _whole(row, "pcie_lanes", 16) or 16
    return GpuText(
        name=name,
        numa=_numa(row),
        hardware=_hardware(row, catalogue),
        product=str(row.get("product", ""))[:100],
        architecture=str(row.get("architecture", ""))[:20],
        memory=_memory(row),
        mig=row.get("mig") is True,
        slices=tuple(filter(None, [str(row.get("slice", ""))[:20]])),
        generation=0 if assumed else _whole(row, "pcie_generation", NEWEST_PCIE),
        lanes=lanes,
        most_lanes=lanes,
    )


def _hardware(row: Mapping[str, object], catalogue: Mapping[str, Hardware]) -> str:
    """Read the catalogue name of a GPU; empty where the file does not know it."""
    name = row.get("hardware")
    if name is None or name == "":
        return ""
    what = f"JSON: {_text(row, 'name')[:40]}: hardware"
    if not isinstance(name, str):
        raise TopologyError(f"{what}: got {str(name)[:40]!r}, wanted a name of the catalogue")
    if name.lower() not in catalogue:
        raise unknown(what, name, catalogue)
    return name.lower()


def _memory(row: Mapping[str, object]) -> Bytes | None:
    value = row.get("memory_bytes")
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < cast(float, value) < _MOST:
        raise TopologyError(
            f"JSON: {_text(row, 'name')[:40]}: memory_bytes: got {str(value)[:40]!r}, wanted bytes"
        )
    return Bytes(float(cast(float, value)))


def _label(row: Mapping[str, object], devices: set[str]) -> tuple[tuple[str, str], Label]:
    a, b, kind = _text(row, "a"), _text(row, "b"), _text(row, "kind")
    count = row.get("count", 1)
    if not {a, b} <= devices or a == b:
        raise TopologyError(f"JSON: link {a[:40]}-{b[:40]} joins no two known devices")
    if kind not in get_args(PairKind) or not isinstance(count, int) or not 0 < count < 1000:
        raise TopologyError(f"JSON: link {a[:40]}-{b[:40]}: {kind[:20]} x {str(count)[:10]}")
    known_kind = "NVLINK" if kind in _NVLINKS else kind
    if known_kind != "NVLINK" and known_kind not in RANKS:
        raise TopologyError(f"JSON: link {a[:40]}-{b[:40]}: no {kind} inside one node")
    return (a, b), Label(cast(PairKind, known_kind), count)
