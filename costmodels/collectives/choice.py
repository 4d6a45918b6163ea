"""Which algorithm and protocol a message gets: NCCL's choice by size, in order over the links."""

from collections.abc import Iterator
from functools import partial
from math import inf, nextafter

from costmodels.collectives.algorithms import BY_NAME, Algorithm, Pairwise
from costmodels.collectives.measured import Calibration, library_of
from costmodels.collectives.nccl_tuning import Candidate, NcclView, Numbers, cheapest
from costmodels.collectives.operations import PAIRWISE_OPS, PROTOCOLS, Op, WireProtocol
from costmodels.collectives.pricing import Choice, Pricing, by_size, fastest, single_choice
from costmodels.collectives.tables import losses, transports
from costmodels.collectives.transports import hop
from topology.base import BytesPerSecond, UncalibratedError
from topology.catalogue import Fabric, pcie_bandwidth


def build(
    algorithm: type[Algorithm],
    protocol: WireProtocol,
    op: Op,
    fabric: Fabric,
    calibration: Calibration = None,
    channels: int = 1,
) -> Choice:
    """Make `algorithm` in `protocol` for `op` on `fabric`.

    channels : that NCCL gives a pair of ranks on two nodes.
    """
    fitted = library_of(calibration).get(fabric, algorithm.curve_name(protocol, fabric))
    model = algorithm(
        op=op,
        fabric=fabric,
        curve=fitted.curve,
        hop=hop(fabric, transports(), protocol, channels, losses().pace),
        protocol=protocol,
    )
    return Choice(model=model, fitted=fitted)


def candidates(
    op: Op, fabric: Fabric, numbers: Numbers, algorithm: type[Algorithm] | None = None
) -> list[tuple[type[Algorithm], Candidate]]:
    """Everything that NCCL would consider for `op` on `fabric`, of one algorithm or of all."""
    view = NcclView(fabric=fabric, numbers=numbers)
    return [
        (kind, candidate)
        for kind in (BY_NAME.values() if algorithm is None else (algorithm,))
        if not kind.obstacle(op, fabric)
        for candidate in kind.candidates(op, view)
    ]


def nccl_pricing(
    op: Op,
    fabric: Fabric,
    numbers: Numbers,
    algorithm: type[Algorithm] | None = None,
    calibration: Calibration = None,
    *,
    protocols: tuple[WireProtocol, ...] = PROTOCOLS,
) -> Pricing:
    """Follow NCCL's choice, but take no longer than over a slower link of the same GPUs.

    NCCL picks a protocol by what it believes of a link, and now and then picks worse on the
    faster one; curves of two links come from different cards, too. Where both links were measured
    on cards of their own (B200 has no PCIe, RTX PRO 6000 no NVLink) they are left as measured; and
    so is an exchange of peers over root complexes that are known to be slower than host memory.

    algorithm : leaves NCCL the protocol only. protocols : those that it may take; any where none
        of them can run.

    >>> from costmodels.collectives.tables import tuning
    >>> from topology.catalogue import find_hardware
    >>> bridge = find_hardware("rtx-a6000").fabric(2)
    >>> near = nccl_pricing("all_reduce", bridge, tuning().at((2, 29)))
    >>> far = nccl_pricing("all_reduce", over_pcie(bridge), tuning().at((2, 29)))
    >>> near.time(65536.0) <= far.time(65536.0)
    True
    """

    def over(links: Fabric) -> Pricing:
        return _single_link_pricing(op, links, numbers, algorithm, calibration, protocols)

    own_pricing = over(fabric)
    if fabric.nodes > 1:
        return own_pricing
    pricings = [own_pricing]
    held_back = op == "all_to_all" and fabric.exchange > 0 and fabric.peer_to_peer
    for slower_fabric in _slower_fabrics(fabric):
        if held_back and not slower_fabric.peer_to_peer:
            continue  # root complexes may hold peers back more than host memory does
        if algorithm is not None and algorithm.obstacle(op, slower_fabric):
            continue
        slower_pricing = over(slower_fabric)
        if _are_comparable(own_pricing, slower_pricing):
            pricings.append(slower_pricing)
    return fastest(pricings)


def _single_link_pricing(
    op: Op,
    fabric: Fabric,
    numbers: Numbers,
    algorithm: type[Algorithm] | None,
    calibration: Calibration,
    protocols: tuple[WireProtocol, ...],
) -> Pricing:
    """Follow NCCL's choice of algorithm and protocol.

    Pairs send small parts with flags in the data, up to a fixed size a peer.
    """
    channels = NcclView(fabric=fabric, numbers=numbers).pair_channels
    build_choice = partial(build, op=op, fabric=fabric, calibration=calibration, channels=channels)
    if algorithm is Pairwise or (algorithm is None and op in PAIRWISE_OPS):
        unflagged = build_choice(Pairwise, "Simple")
        if "LL" not in protocols:
            return single_choice(unflagged)
        flagged_limit = nextafter(Pairwise.flagged_bytes(op, fabric, numbers), inf)
        return by_size([(0.0, build_choice(Pairwise, "LL")), (flagged_limit, unflagged)])
    all_candidates = candidates(op, fabric, numbers, algorithm)
    usable_candidates = [
        pair for pair in all_candidates if pair[1].protocol in protocols
    ] or all_candidates
    if algorithm is not None and not usable_candidates:
        return fastest(
            [single_choice(build_choice(algorithm, protocol)) for protocol in algorithm.protocols]
        )
    steps = []
    for start, best_index in cheapest([candidate for _, candidate in usable_candidates]):
        kind, candidate = usable_candidates[best_index]
        try:
            choice = build_choice(kind, candidate.protocol)
        except UncalibratedError:
            choice = build_choice(kind, "Simple")
        steps.append((start, choice))
    return by_size(steps)


def over_pcie(fabric: Fabric) -> Fabric:
    """Put the GPUs of a node on its PCIe slots instead of NVLink."""
    slot = BytesPerSecond(pcie_bandwidth(fabric.pcie_generation))
    return fabric.over_pcie(min(slot, fabric.bandwidth))


def _slower_fabrics(fabric: Fabric) -> Iterator[Fabric]:
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


def _are_comparable(own: Pricing, other: Pricing) -> bool:
    """Whether one of the two is carried over from other GPUs, or both rest on the same curves."""
    own_curve, other_curve = own.at(0.0).fitted, other.at(0.0).fitted
    return own_curve.carried or other_curve.carried or own_curve == other_curve
