"""What about a machine should worry somebody who wants to split a model over it."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final

from topology.base.rows import gathered
from topology.catalogue import CROWD, all_hardware
from topology.machine.graph import Machine, is_nvlink
from topology.machine.paths import PathType, path_types, processor_of, refused_pairs
from topology.machine.rings import nvlink_islands

_MOST_SHOWN: Final = 4
_DISABLING_VARIABLES: Final = {
    "NCCL_P2P_DISABLE": "all copies go through the host, NVLink is idle",
    "NCCL_SHM_DISABLE": "GPUs without peers talk over the network, even in a host",
}


def concerns(machine: Machine) -> tuple[str, ...]:
    """List, one line each: peers that may not talk, sockets to cross, far NICs, MIG.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> concerns(machine_of(find_hardware("rtx-4090")))[0]
    'no peer access for 28 of 28 GPU pairs (the driver refuses it on consumer cards): copies go through the host'
    """  # noqa: E501  # one line is what is promised
    return (
        *_peers(machine),
        *_sockets(machine),
        *_bridges(machine),
        *_exchanges(machine),
        *_nics(machine),
        *_mig(machine),
    )


def _peers(machine: Machine) -> Iterator[str]:
    refused = refused_pairs(machine)
    for reason in dict.fromkeys(why for _, _, why in refused):
        count = sum(why == reason for _, _, why in refused)
        total = len(machine.gpus) * (len(machine.gpus) - 1) // 2
        yield (
            f"no peer access for {count} of {total} GPU pairs ({reason}): "
            f"copies go through the host"
        )


def _sockets(machine: Machine) -> Iterator[str]:
    names = [gpu.name for gpu in machine.gpus]
    pairs = machine.pairs_by_ends
    if len(nvlink_islands(pairs, names)) < 2:
        return
    far_pairs = [
        pair for pair in machine.pairs if pair.kind == "SYS" and {pair.a, pair.b} <= set(names)
    ]
    if far_pairs:
        total = len(names) * (len(names) - 1) // 2
        yield (
            f"{len(far_pairs)} of {total} GPU pairs meet only across processors (SYS): "
            f"{_gpus_by_place(machine)}"
        )


def _gpus_by_place(machine: Machine) -> str:
    """Show which GPUs are together: on a NUMA node if all are known, else on a processor."""
    cpus = processor_of(machine)
    numbered = all(gpu.numa is not None for gpu in machine.gpus)
    places = ((gpu.numa if numbered else cpus[gpu.name], gpu.name) for gpu in machine.gpus)
    groups = list(gathered(places).values())
    more = f" | {len(groups) - _MOST_SHOWN} more" if len(groups) > _MOST_SHOWN else ""
    return " | ".join(map(_shortened_list, groups[:_MOST_SHOWN])) + more


def _bridges(machine: Machine) -> Iterator[str]:
    pairs = machine.pairs_by_ends
    names = [gpu.name for gpu in machine.gpus]
    islands = [sorted(i) for i in nvlink_islands(pairs, names) if len(i) > 1]
    joined = {name for island in islands for name in island}
    if islands and (len(islands) > 1 or len(joined) < len(names)):
        island_names = " | ".join(_shortened_list(island) for island in islands[:_MOST_SHOWN])
        yield f"NVLink joins only {island_names}; between others traffic takes PCIe"
    island_pairs = (ends for island in islands for ends in combinations(island, 2))
    unlinked_pairs = [ends for ends in island_pairs if not is_nvlink(pairs.get(ends))]
    if unlinked_pairs:
        yield (
            f"no direct NVLink for {len(unlinked_pairs)} pairs, such as "
            f"{'-'.join(unlinked_pairs[0])}"
        )


def _exchanges(machine: Machine) -> Iterator[str]:
    """Say where, beside NVLink bridges, peers exchange no faster than through the host."""
    kinds = {gpu.hardware for gpu in machine.gpus}
    catalogue = all_hardware()
    exchange_known = all(
        kind in catalogue and catalogue[kind].exchange is not None for kind in kinds
    )
    if len(machine.gpus) < CROWD or not exchange_known or machine.described_hosts > 1:
        return
    pairs, refused = machine.pairs_by_ends, {pair[:2] for pair in refused_pairs(machine)}
    gpu_pairs = set(combinations([gpu.name for gpu in machine.gpus], 2))
    bridged = {pair for pair in gpu_pairs if is_nvlink(pairs.get(pair))}
    if bridged and not refused >= gpu_pairs - bridged:
        yield (
            "all-to-all over PCIe peers is no faster than through the host on such servers: "
            "NCCL_P2P_LEVEL=NVL is worth a try"
        )


def environment_concerns(environment: Mapping[str, str]) -> tuple[str, ...]:
    """List the variables that keep NCCL from using what a machine has.

    >>> environment_concerns({"NCCL_P2P_LEVEL": "LOC", "HOME": "/root"})
    ('NCCL_P2P_LEVEL=LOC is set: peers are not used at all, NVLink neither; unset it',)
    """
    lines = []
    level = environment.get("NCCL_P2P_LEVEL", "").upper()
    if level in ("0", "LOC"):
        lines.append(
            f"NCCL_P2P_LEVEL={environment['NCCL_P2P_LEVEL']} is set: peers are not used at all, "
            f"NVLink neither; unset it"
        )
    elif level in ("1", "NVL"):
        lines.append("NCCL_P2P_LEVEL=NVL is set: peers are used over NVLink only, not over PCIe")
    for name, effect in _DISABLING_VARIABLES.items():
        if environment.get(name, "0") not in ("", "0"):
            lines.append(f"{name} is set: {effect}")
    return tuple(lines)


def _nics(machine: Machine) -> Iterator[str]:
    types = path_types(machine)
    near_names = {b for (_, b), kind in types.items() if kind <= PathType.PXN}
    real_nics = [nic for nic in machine.nics if not nic.virtual]
    far_nics = [nic.device or nic.name for nic in real_nics if nic.name not in near_names]
    if far_nics and machine.gpus:
        yield (
            f"{len(far_nics)} of {len(machine.nics)} NICs share no switch with a GPU: "
            f"{_shortened_list(far_nics)}"
        )


def _mig(machine: Machine) -> Iterator[str]:
    sliced = [gpu.name for gpu in machine.gpus if gpu.mig]
    if sliced:
        yield (
            f"{_shortened_list(sliced)} split into MIG slices: no peer access and no NVLink "
            "between slices"
        )


def _shortened_list(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
