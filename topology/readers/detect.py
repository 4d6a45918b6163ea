"""The machine this runs on, as NVML sees it: a plain table first, then what it means."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, TypeAlias, cast

from topology.base import Bytes, TopologyError, environment
from topology.catalogue import Hardware, all_hardware, check_pcie_generation
from topology.machine import Machine, PairKind, PeerState, PeerStatus, environment_concerns
from topology.readers.assemble import Choices, assemble, with_concerns
from topology.readers.reading import GpuText, Label, Reading

Snapshot: TypeAlias = Mapping[str, Sequence[Mapping[str, object]]]
_LEVELS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_STATES: Final = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_MOST_LINKS: Final = 36
_SWITCH_TYPE: Final = 2  # NVML's type of what is at the other end of an NVLink


def detect(*, hardware: Hardware | None = None, pcie_generation: int | None = None) -> Machine:
    """Describe the machine this runs on; variables of NCCL that hold it back are warned of.

    hardware, pcie_generation : of GPUs that NVML names and the catalogue does not know.

    Raises InputError if there is no NVML, no driver, no GPU, or they are of another kind; the
    message says so.
    """
    check_pcie_generation(pcie_generation)
    machine = machine_from(snapshot(), hardware=hardware, pcie_generation=pcie_generation)
    return replace(machine, warnings=(*machine.warnings, *environment_concerns(environment())))


def snapshot() -> Snapshot:
    """Ask NVML for GPUs, the levels between them, peer states and NVLinks."""
    try:
        pynvml = importlib.import_module("pynvml")  # an optional extra
    except ImportError:
        raise TopologyError(
            "detection needs NVML: got no module pynvml, wanted the package nvidia-ml-py"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise TopologyError(f"detection needs an NVIDIA driver: NVML says {error}") from None
    try:
        return _query_nvml(pynvml)
    except pynvml.NVMLError as error:
        raise TopologyError(
            f"detection: got the error {str(error)[:100]!r} from NVML, wanted a list of GPUs"
        ) from None
    finally:
        _call_or_none(pynvml, "nvmlShutdown")


def machine_from(
    seen: Snapshot, *, hardware: Hardware | None = None, pcie_generation: int | None = None
) -> Machine:
    """Build the machine that a snapshot describes.

    seen : ``gpus`` with name, memory_bytes, bus, numa, mig, generation, lanes, most_lanes;
        ``pairs`` with a, b (indices), level (NVML's), peer (NVML's); ``nvlinks`` with gpu (index),
        remote (bus), kind (NVML's). Absent or None where NVML does not say.

    >>> gpu = {"name": "NVIDIA L4", "memory_bytes": 24e9}
    >>> pair = {"a": 0, "b": 1, "level": 50, "peer": 1}
    >>> machine = machine_from({"gpus": [gpu, gpu], "pairs": [pair], "nvlinks": []})
    >>> machine.pairs[0].kind, machine.peers[0].state
    ('SYS', 'CNS')
    """
    gpus = tuple(_gpu(index, row) for index, row in enumerate(seen.get("gpus", ())))
    if not gpus:
        raise TopologyError("detection: NVML lists no GPU")
    pairs = [(f"GPU{row['a']}", f"GPU{row['b']}", row) for row in seen.get("pairs", ())]
    under = {
        (a, b): Label(cast(PairKind, level))
        for a, b, row in pairs
        if (level := _code_name(row, "level", _LEVELS))
    }
    labels = {**under, **_nvlinks(seen, gpus)}
    reading = Reading(
        source="NVML",
        gpus=gpus,
        labels=labels,
        under={pair: label for pair, label in under.items() if labels[pair] != label},
        peers=tuple(
            PeerStatus(a=a, b=b, state=cast(PeerState, state), capability="r")
            for a, b, row in pairs
            if (state := _code_name(row, "peer", _STATES))
        ),
        assumptions=("NVML does not list NICs",),
    )
    choices = Choices(
        name="this machine",
        hardware=hardware,
        pcie_generation=pcie_generation,
        catalogue=all_hardware(),
    )
    return with_concerns(assemble(reading, choices), choices)


def _gpu(index: int, row: Mapping[str, object]) -> GpuText:
    memory = row.get("memory_bytes")
    lanes, most_lanes = _whole_number(row, "lanes"), _whole_number(row, "most_lanes")
    return GpuText(
        name=f"GPU{index}",
        product=str(row.get("name") or ""),
        memory=Bytes(float(memory)) if isinstance(memory, int | float) else None,
        bus=str(row.get("bus") or ""),
        numa=_whole_number(row, "numa"),
        mig=bool(row.get("mig")),
        generation=_whole_number(row, "generation") or 0,
        lanes=lanes or most_lanes or 16,
        most_lanes=most_lanes or lanes or 16,
    )


def _whole_number(row: Mapping[str, object], key: str) -> int | None:
    value = row.get(key)
    return value if isinstance(value, int) and value >= 0 else None


def _code_name(row: Mapping[str, object], key: str, names: Mapping[int, str]) -> str | None:
    """Name a number of NVML; None where it says nothing, or one that we do not know."""
    return None if row.get(key) is None else names.get(_whole_number(row, key) or 0)


def _nvlinks(seen: Snapshot, gpus: Sequence[GpuText]) -> dict[tuple[str, str], Label]:
    """Label pairs by their NVLinks: those they share, or those both have to switches."""
    index = {gpu.bus: number for number, gpu in enumerate(gpus) if gpu.bus}
    link_counts: dict[tuple[int, int], int] = {}
    switched = [0] * len(gpus)
    for row in seen.get("nvlinks", ()):
        gpu = _whole_number(row, "gpu")
        peer = index.get(str(row.get("remote") or ""))
        if gpu is None or gpu >= len(gpus):
            continue
        if peer is not None and peer > gpu:  # each link shows at both ends
            link_counts[gpu, peer] = link_counts.get((gpu, peer), 0) + 1
        elif row.get("kind") == _SWITCH_TYPE:
            switched[gpu] += 1
    for a, b in combinations(range(len(gpus)), 2):
        if min(switched[a], switched[b]):
            link_counts[a, b] = min(switched[a], switched[b])
    return {(f"GPU{a}", f"GPU{b}"): Label("NVLINK", count) for (a, b), count in link_counts.items()}


def _query_nvml(nvml: Any) -> Snapshot:  # noqa: ANN401  # the bindings have no types
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    return {
        "gpus": [_row(nvml, handle) for handle in handles],
        "pairs": [
            {
                "a": a,
                "b": b,
                "level": _call_or_none(
                    nvml, "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b]
                ),
                "peer": _call_or_none(nvml, "nvmlDeviceGetP2PStatus", handles[a], handles[b], 0),
            }
            for a, b in combinations(range(len(handles)), 2)
        ],
        "nvlinks": [
            {"gpu": index, **end}
            for index, handle in enumerate(handles)
            for end in _active_nvlinks(nvml, handle)
        ],
    }


def _row(nvml: Any, handle: object) -> dict[str, object]:  # noqa: ANN401
    memory = _call_or_none(nvml, "nvmlDeviceGetMemoryInfo", handle)
    bus = _call_or_none(nvml, "nvmlDeviceGetPciInfo", handle)
    mig = _call_or_none(nvml, "nvmlDeviceGetMigMode", handle)
    return {
        "name": _decoded_text(_call_or_none(nvml, "nvmlDeviceGetName", handle)),
        "memory_bytes": getattr(memory, "total", None),
        "bus": _decoded_text(getattr(bus, "busId", None)),
        "numa": _numa(nvml, handle),
        "mig": bool(mig and mig[0]),
        "generation": _call_or_none(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "lanes": _call_or_none(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        "most_lanes": _call_or_none(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    }


def _numa(nvml: Any, handle: object) -> int | None:  # noqa: ANN401
    """Find the one NUMA node near a GPU; None where NVML names none or several."""
    masks = _call_or_none(nvml, "nvmlDeviceGetMemoryAffinity", handle, 4, 0)
    nodes = [
        64 * word + bit
        for word, mask in enumerate(masks or ())
        for bit in range(64)
        if int(mask) >> bit & 1
    ]
    return nodes[0] if len(nodes) == 1 else None


def _active_nvlinks(nvml: Any, handle: object) -> Iterator[dict[str, object]]:  # noqa: ANN401
    """Yield the far end of every NVLink that is up."""
    for link in range(_MOST_LINKS):
        if _call_or_none(nvml, "nvmlDeviceGetNvLinkState", handle, link) == 1:
            remote = _call_or_none(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            kind = _call_or_none(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            yield {"remote": _decoded_text(getattr(remote, "busId", None)), "kind": kind}


def _call_or_none(nvml: Any, function: str, *arguments: object) -> Any:  # noqa: ANN401
    """Ask NVML; None for what a card, a driver or the bindings do not support."""
    try:
        return getattr(nvml, function)(*arguments)
    except (AttributeError, nvml.NVMLError):
        return None


def _decoded_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
