"""Which models there are, what they need, and how one is made for a fabric."""

from dataclasses import dataclass
from typing import Final

from costmodels.collectives.calibration import Calibration, library_of
from costmodels.collectives.collnet import Collnet
from costmodels.collectives.multishot import Multishot
from costmodels.collectives.network import Hop, hop, transport_of
from costmodels.collectives.nvls import Nvls
from costmodels.collectives.nvls_tree import NvlsTree
from costmodels.collectives.oneshot import Oneshot
from costmodels.collectives.operations import PAIRWISE_OPS, RING_OPS, Collective, Op, WireProtocol
from costmodels.collectives.pairwise import Pairwise
from costmodels.collectives.parameters import Fitted
from costmodels.collectives.pat import Pat
from costmodels.collectives.ring import Ring
from costmodels.collectives.symmetric import Symmetric
from costmodels.collectives.tables import transports
from costmodels.collectives.tree import Tree
from costmodels.collectives.twoshot import Twoshot
from topology.catalogue import Fabric

_REDUCE: Final = ("all_reduce",)
_THREE: Final = ("all_reduce", "all_gather", "reduce_scatter")
_SERVED: Final[dict[str, tuple[str, ...]]] = {
    "ring": RING_OPS,
    "tree": _REDUCE,
    "nvls": _THREE,
    "nvls_tree": _REDUCE,
    "collnet": _REDUCE,
    "pat": ("all_gather", "reduce_scatter"),
    "multishot": _REDUCE,
    "oneshot": _REDUCE,
    "twoshot": _REDUCE,
    "symmetric": _THREE,
    "pairwise": PAIRWISE_OPS,
}
_KERNELS: Final[dict[str, type[Oneshot | Twoshot | Multishot]]] = {
    "oneshot": Oneshot,
    "twoshot": Twoshot,
    "multishot": Multishot,
}
_SPANNING: Final[dict[str, type[Tree | NvlsTree | Collnet | Pat]]] = {
    "tree": Tree,
    "nvls_tree": NvlsTree,
    "collnet": Collnet,
    "pat": Pat,
}
_MULTICAST: Final = ("nvls", "nvls_tree", "multishot")
_ONE_NODE: Final = ("nvls", "multishot", "oneshot", "twoshot", "symmetric")
_NETWORKED: Final = ("nvls_tree", "collnet", "pat")
_PEERS: Final = ("oneshot", "twoshot", "symmetric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A model with its names and the curve it rests on."""

    algorithm: str
    protocol: str
    model: Collective
    fitted: Fitted


def obstacle(algorithm: str, op: Op, fabric: Fabric) -> str:
    """Say why `algorithm` cannot run `op` on `fabric`; empty if it can.

    >>> from topology.catalogue import find_hardware
    >>> obstacle("nvls", "all_reduce", find_hardware("a100-sxm-80gb").fabric(8))
    'it needs more than two GPUs on a multicasting NVLink switch'
    >>> obstacle("ring", "all_reduce", find_hardware("a100-sxm-80gb").fabric(8))
    ''
    """
    served = _SERVED[algorithm]
    if op not in served:
        return f"it serves {', '.join(served)} only"
    return _link_obstacle(algorithm, fabric) or _node_obstacle(algorithm, fabric)


def _link_obstacle(algorithm: str, fabric: Fabric) -> str:
    if algorithm in _MULTICAST and not fabric.multicast:
        return "it needs more than two GPUs on a multicasting NVLink switch"
    if algorithm in _PEERS and not fabric.peer_to_peer:
        return "it needs GPUs that read each other's memory"
    if algorithm == "symmetric" and fabric.link == "pcie":
        return "it needs NVLink between all GPUs"
    return ""


def _node_obstacle(algorithm: str, fabric: Fabric) -> str:
    if algorithm in _ONE_NODE and fabric.nodes > 1:
        return f"it stays inside one node, got {fabric.nodes}"
    if algorithm in _NETWORKED and fabric.nodes == 1:
        return "it needs several nodes, got 1"
    if algorithm == "collnet" and not _reducing(fabric):
        return "it needs InfiniBand switches that reduce"
    if algorithm == "pat" and fabric.nodes != fabric.ranks:
        return f"it needs one GPU a node, got {fabric.ranks} on {fabric.nodes}"
    return ""


def _reducing(fabric: Fabric) -> bool:
    network = fabric.network
    return network is not None and transport_of(network, transports()).offload > 0


def build(
    algorithm: str,
    protocol: WireProtocol,
    op: Op,
    fabric: Fabric,
    calibration: Calibration = None,
) -> Choice:
    """Make the model of `algorithm` in `protocol` for `op` on `fabric`."""
    fitted = library_of(calibration).get(fabric, _curve_name(algorithm, protocol, fabric))
    way = hop(fabric, transports(), protocol)
    return Choice(
        algorithm=algorithm,
        protocol=protocol,
        model=_model(algorithm, op, fabric, fitted, way),
        fitted=fitted,
    )


def symmetric_kernels(op: Op, fabric: Fabric, calibration: Calibration = None) -> list[Choice]:
    """Make both symmetric kernels: flags in the data, and bulk."""
    library = library_of(calibration)
    names = (("LL", "symmetric_ll"), ("Simple", "symmetric"))
    return [
        Choice(
            algorithm="symmetric",
            protocol=protocol,
            model=Symmetric(
                op=op,
                fabric=fabric,
                curve=library.get(fabric, name).curve,
                low_latency=protocol == "LL",
            ),
            fitted=library.get(fabric, name),
        )
        for protocol, name in names
    ]


def _curve_name(algorithm: str, protocol: WireProtocol, fabric: Fabric) -> str:
    match algorithm:
        case "ring" | "tree":
            return f"ring_{protocol.lower()}"
        case "pairwise":
            return f"pairwise_{protocol.lower()}"
        case "nvls" | "nvls_tree":
            return "nvls"
        case "collnet":
            return "nvls" if fabric.multicast else "ring_simple"
        case "pat":
            return "ring_simple"
        case _:
            return algorithm


def _model(algorithm: str, op: Op, fabric: Fabric, fitted: Fitted, way: Hop) -> Collective:
    curve = fitted.curve
    match algorithm:
        case "ring":
            return Ring(op=op, fabric=fabric, curve=curve, hop=way)
        case "nvls":
            return Nvls(op=op, fabric=fabric, curve=curve)
        case "pairwise":
            return Pairwise(op=op, fabric=fabric, curve=curve, hop=way)
    if algorithm in _KERNELS:
        return _KERNELS[algorithm](fabric=fabric, curve=curve)
    return _SPANNING[algorithm](fabric=fabric, curve=curve, hop=way)
