"""A slower link of the same GPUs never prices lower: NVLink, PCIe, another socket, host memory."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from costmodels.collectives.build import obstacle
from costmodels.collectives.calibration import Calibration
from costmodels.collectives.choice import Fastest, Plan, Priced, nccl_plan
from costmodels.collectives.operations import PROTOCOLS, Op, WireProtocol
from costmodels.collectives.tuning import Numbers
from topology.base import BytesPerSecond
from topology.catalogue import Fabric, pcie_bandwidth

_SIZES: Final = 2.0 ** (np.arange(4 * 40) / 4)  # B, at which two links are compared


def ordered_plan(
    op: Op,
    fabric: Fabric,
    numbers: Numbers,
    algorithm: str = "",
    calibration: Calibration = None,
    *,
    protocols: tuple[WireProtocol, ...] = PROTOCOLS,
) -> Priced:
    """Follow NCCL's choice, but take no longer than over a slower link of the same GPUs.

    NCCL picks a protocol by what it believes of a link, and now and then picks worse on the
    faster one; curves of two links come from different cards, too. Where both links were measured
    on cards of their own (B200 has no PCIe, RTX PRO 6000 no NVLink) they are left as measured; and
    so is an exchange of peers over root complexes that are known to be slower than host memory.

    >>> from costmodels.collectives.tables import tuning
    >>> from topology.catalogue import find_hardware
    >>> bridge = find_hardware("rtx-a6000").fabric(2)
    >>> near = ordered_plan("all_reduce", bridge, tuning().at((2, 29)))
    >>> far = ordered_plan("all_reduce", over_pcie(bridge), tuning().at((2, 29)))
    >>> near.time(65536.0) <= far.time(65536.0)
    True
    """
    own = nccl_plan(op, fabric, numbers, algorithm, calibration, protocols=protocols)
    if fabric.nodes > 1:
        return own
    plain = own.time(_SIZES)
    ways: list[Priced] = [own]
    held = op == "all_to_all" and fabric.exchange > 0 and fabric.peer_to_peer
    for slower in _slower(fabric):
        if held and not slower.peer_to_peer:
            continue  # root complexes may hold peers back more than host memory does
        if algorithm and obstacle(algorithm, op, slower):
            continue
        other = nccl_plan(op, slower, numbers, algorithm, calibration, protocols=protocols)
        if _comparable(own, other) and np.any(other.time(_SIZES) < plain):
            ways.append(other)
    return own if len(ways) == 1 else Fastest(ways=tuple(ways), limits=(np.inf,) * len(ways))


def over_pcie(fabric: Fabric) -> Fabric:
    """Put the GPUs of a node on its PCIe slots instead of NVLink."""
    slot = BytesPerSecond(pcie_bandwidth(fabric.pcie_generation))
    return fabric.over_pcie(min(slot, fabric.bandwidth))


def _slower(fabric: Fabric) -> Iterator[Fabric]:
    """Yield what the same GPUs would talk over without their best link, and without the next."""
    if fabric.link != "pcie":
        if not fabric.pcie_generation:
            return
        fabric = over_pcie(fabric).across_sockets(on=False)
        yield fabric
    across = fabric.across_sockets(on=True)
    if not fabric.crosses_sockets:
        yield across
    if fabric.peer_to_peer:
        yield fabric.with_peers(on=False)
        if across != fabric:
            yield across.with_peers(on=False)


def _comparable(own: Plan, other: Plan) -> bool:
    """Whether one of the two is carried over from other GPUs, or both rest on the same curves."""
    first, second = own.choices[0].fitted, other.choices[0].fitted
    return first.carried or second.carried or first == second
