r"""Messages of expert parallelism: tokens to the ranks of their experts, and results back.

A rank that has n tokens sends each to the ranks that hold its experts (dispatch) and gets as many
results back (combine). How depends on the way:

* ``allgather_reducescatter``   everybody gets all tokens; results are added on the way back
* ``all_to_all``   a copy for every expert, by the library's all-to-all
* ``deepep_normal``   a copy for every rank, by channels of two multiprocessors each; between
  nodes one for every node, which passes it on over NVLink
* ``deepep_low_latency``   a copy for every expert, straight into the memory of its rank, by the
  whole GPU
* ``nvlink_one_sided``   a copy for every rank, written (dispatch) or read (combine) in its place,
  by the whole GPU
* ``nvlink_two_sided``   likewise, through a queue that the receiver drains

A kernel's time is

.. math::
    start = launch + e\,expert + r\,rank, \quad
    work = \frac{n}{channels} (token + \frac{c}{r} copy + \frac{b}{home} + \frac{c\,b}{rate}),
    \quad near = \frac{n\,b\,c_{near}}{\beta\,efficiency}

with e experts on r ranks, b bytes a token, c copies of it, of which :math:`c_{near}` cross links
inside a node and :math:`c_{far}` leave it. The slowest of the three streams counts (a power mean
of 4, as each delays the others a little), joined with the start as `Curve` does it. The rank whose
experts are asked most often receives more than others, and all wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import numpy as np

from costmodels.basis import Basis
from costmodels.collectives.algorithms.base import Need, nvlink, one_node
from costmodels.collectives.calls import basis as collective_basis
from costmodels.collectives.calls import collective_time
from costmodels.collectives.operations import Op
from costmodels.collectives.settings import Launch, read_launch
from costmodels.collectives.tables import transports
from costmodels.collectives.transports import hop
from costmodels.expert_routing import Routing
from costmodels.formats import token_bytes
from costmodels.kernels.parameters import DispatchParameters
from costmodels.kernels.tables import engine_record
from costmodels.sizes import Real, largest, real, smaller
from topology.base import InputError, unknown
from topology.base.values import dataclass
from topology.catalogue import Device, Fabric, Moves

if TYPE_CHECKING:
    pass

Phase = Literal["dispatch", "combine"]
_CHANNEL_SIZE: Final = 2  # multiprocessors: one sends, one receives
_STREAM_SHARPNESS: Final = 4.0
_NEWEST_UNSUPPORTED: Final = (8, 9)
"""Compute capability of the last GPUs that these kernels were not written for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to move tokens.

    once : a token goes once to a rank, however many of its experts are there. ops : collectives of
    dispatch and combine where the way is made of them; it has kernels of its own otherwise.
    workers : what shares the tokens: ``channels`` of two multiprocessors, as many as one asks for,
    all multiprocessors, or as many of them as take equal numbers of ``experts``.
    replayed : whether a CUDA graph can; else the host has to learn first how much comes.
    needs : of a fabric.
    """

    once: bool
    replayed: bool = True
    workers: Literal["channels", "experts", "all"] = "all"
    ops: Mapping[Phase, Op] | None = None
    needs: tuple[Need, ...] = ()


def _driven_network(fabric: Fabric) -> str:
    """Need NICs that GPUs drive, where there are several nodes."""
    if fabric.nodes == 1 or (fabric.network and fabric.network.kind in _RDMA_NETWORKS):
        return ""
    return f"it needs RDMA between nodes, got {fabric.network and fabric.network.kind}"


def _few_peers(fabric: Fabric) -> str:
    """Need no more GPUs on NVLink than these kernels have room for."""
    fits = fabric.local <= _MOST_PEERS
    return "" if fits else f"it joins {_MOST_PEERS} GPUs by NVLink at most, got {fabric.local}"


_MOST_PEERS: Final = 8
"""NVLink peers that normal kernels are compiled for (NUM_MAX_NVL_PEERS of DeepEP)."""
_RDMA_NETWORKS: Final = ("infiniband", "roce", "gib")
WAYS: Final[Mapping[str, Way]] = {
    "allgather_reducescatter": Way(
        once=True, ops={"dispatch": "all_gather", "combine": "reduce_scatter"}
    ),
    "all_to_all": Way(once=False, ops={"dispatch": "all_to_all", "combine": "all_to_all"}),
    "deepep_normal": Way(
        once=True, replayed=False, workers="channels", needs=(nvlink, _few_peers, _driven_network)
    ),
    "deepep_low_latency": Way(once=False, workers="experts", needs=(nvlink, _driven_network)),
    "nvlink_one_sided": Way(once=True, needs=(one_node, nvlink)),
    "nvlink_two_sided": Way(once=True, needs=(one_node, nvlink)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A way that an engine takes, for at most so many tokens of a rank.

    sent : formats in which it sends tokens on, where experts take these; others go in 16 bits.
    """

    way: str
    most: float = inf
    sent: tuple[str, ...] = ()

    def token_bytes(self, phase: Phase, features: int, precision: str) -> float:
        """Bytes of a token; results come back in 16 bits."""
        keeps_format = phase == "dispatch" and precision in self.sent
        return token_bytes(float(features), precision if keeps_format else "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A dispatch or a combine of one layer, all but its tokens.

    fabric, device : the ranks that share the experts, and one of them. engine : that calls kernels,
    in its own way where that was measured; empty for the kernel alone. launch : ``graph`` is
    replayed, as far as the way can be; ``stream`` is called by the host.
    multiprocessors : that a kernel may use; 0 for as usual.
    """

    phase: Phase
    way: str
    routing: Routing
    fabric: Fabric
    device: Device
    engine: str = ""
    launch: Launch = "stream"
    multiprocessors: int = 0

    def __post_init__(self) -> None:
        if self.phase not in get_args(Phase):
            raise unknown("exchange", self.phase, get_args(Phase))
        read_launch(self.launch)
        reason = obstacle(self.way, self.fabric, self.device)
        if reason:
            raise InputError(f"{self.phase} by {self.way}: {reason}")

    def time(self, tokens: Real, token_bytes: Real) -> Real:
        """Seconds until the busiest rank has what is meant for it.

        tokens : of each rank. token_bytes : of a token with its scales, as it travels.

        128 tokens of DeepSeek-V3 a rank, on eight H100:

        >>> from topology.catalogue import find_hardware
        >>> node = find_hardware("h100-sxm")
        >>> exchange = Exchange(
        ...     phase="dispatch", way="deepep_low_latency", routing=Routing(experts=256, top_k=8),
        ...     fabric=node.fabric(8), device=node.device,
        ... )
        >>> f"{exchange.time(128.0, 7392.0) * 1e6:.0f} us"
        '38 us'
        """
        if self.fabric.ranks == 1:
            return np.zeros(np.broadcast(tokens, token_bytes).shape)[()]
        ops = WAYS[self.way].ops
        if ops is not None:
            size = real(self._message(tokens, token_bytes))
            return cast(Real, collective_time(ops[self.phase], cast(Any, size), self.fabric))
        kernel = self.parameters
        notify_time = kernel.notify if self.engine else 0.0
        return exchange_seconds(self, kernel, tokens, token_bytes) + notify_time

    @property
    def parameters(self) -> DispatchParameters:
        """The kernel of this way, phase and engine on this device."""
        kernel_only = self.launch == "graph" and WAYS[self.way].replayed
        name, engine = f"{self.way}-{self.phase}", "" if kernel_only else self.engine
        return engine_record(DispatchParameters, self.device, name, engine)

    def basis(self, tokens: Real, token_bytes: Real) -> Basis:
        """How well the time is known: see `costmodels.collectives.basis`."""
        ops = WAYS[self.way].ops
        if self.fabric.ranks == 1:
            return Basis.MEASURED
        if ops is not None:
            largest_size = largest(self._message(tokens, token_bytes))
            return collective_basis(ops[self.phase], largest_size, self.fabric)
        sizes = {"tokens": tokens, "bytes": token_bytes, "experts": float(self.routing.experts)}
        provenance = self.parameters.provenance
        same_ranks = self.fabric.nodes == 1 and provenance.saw({"ranks": float(self.fabric.ranks)})
        return provenance.basis(self.device.name, sizes, alike=same_ranks)

    def moves(self, sent: float) -> Moves:
        """Say what `sent` bytes of tokens of each rank bring to links: copies of them.

        Where a token goes once to a rank it goes once to a host, and from there on.
        """
        _, near, far = self.copies()
        return Moves(route="stages", sent=sent * near, far=sent * far)

    def _message(self, tokens: Real, token_bytes: Real) -> Real:
        """Bytes of the collective, as nccl-tests counts them."""
        if WAYS[self.way].once:
            return tokens * token_bytes * self.fabric.ranks
        return tokens * token_bytes * self.routing.top_k * self.excess(tokens, self.fabric.ranks)

    def excess(self, tokens: Real, parts: int) -> Real:
        """Expect what the busiest of `parts` receives over a mean one."""
        once = WAYS[self.way].once
        return self.routing.excess(cast(Any, tokens) * self.fabric.ranks, parts, once=once)

    def copies(self) -> tuple[float, float, float]:
        """Count the copies of a token: all, over links inside a node, and to other nodes."""
        ranks, nodes, local = self.fabric.ranks, self.fabric.nodes, self.fabric.local
        if not WAYS[self.way].once:
            all_copies = float(self.routing.top_k)
            return (
                all_copies,
                all_copies * (local - 1) / ranks,
                all_copies * (ranks - local) / ranks,
            )
        all_copies = self.routing.reached(ranks)
        far_copies = self.routing.reached(nodes) * (nodes - 1) / nodes
        return all_copies, all_copies * (local - 1) / local, far_copies


def standing(way: str, routing: Routing, tokens: Real, ranks: int) -> Real:
    """Give the share of all rows, a token's for each of its experts, that stand on a rank.

    Those of every token that came, whichever experts they are of; of the busiest rank.

    >>> routing = Routing(experts=256, top_k=8)
    >>> standing("allgather_reducescatter", routing, 4096.0, 64)
    1.0
    >>> f"{standing('nvlink_one_sided', routing, 4096.0, 64):.3f}"
    '0.120'
    >>> standing("deepep_low_latency", routing, 4096.0, 64) == 1 / 64
    True
    """
    taken = WAYS[way]
    if taken.ops is not None and taken.once:
        return 1.0
    mean = routing.reached(ranks) / ranks if taken.once else 1 / ranks
    return smaller(1.0, mean * routing.excess(cast(Any, tokens), ranks, once=taken.once))


def ways_on(fabric: Fabric, device: Device) -> list[str]:
    """List the ways that can be taken.

    >>> from topology.catalogue import find_hardware
    >>> card = find_hardware("l40s")
    >>> ways_on(card.fabric(8), card.device)
    ['allgather_reducescatter', 'all_to_all']
    """
    return [way for way in WAYS if not obstacle(way, fabric, device)]


def exchange_seconds(
    exchange: Exchange, kernel: DispatchParameters, tokens: Real, token_bytes: Real
) -> Real:
    """Seconds that `kernel` takes for an exchange; see the formula above."""
    fabric = exchange.fabric
    all_copies, near_copies, far_copies = exchange.copies()
    token_work = kernel.token + all_copies / fabric.ranks * kernel.copy
    per_byte_work = all_copies / kernel.rate if kernel.rate else 0.0
    per_byte_work += 1 / kernel.home if kernel.home else 0.0
    network_hop = hop(fabric, transports(), "Simple")
    streams = (
        tokens / _workers(exchange, kernel) * (token_work + per_byte_work * token_bytes),
        tokens * token_bytes * (near_copies / (fabric.bandwidth * kernel.efficiency))
        * exchange.excess(tokens, fabric.ranks),
        tokens * token_bytes * (far_copies * fabric.local * network_hop.exchange)
        * exchange.excess(tokens, fabric.nodes),
    )  # fmt: skip
    stream = sum(part**_STREAM_SHARPNESS for part in streams) ** (1 / _STREAM_SHARPNESS)
    fixed_start = (
        kernel.launch + exchange.routing.experts * kernel.expert + fabric.ranks * kernel.rank
    )
    start = fixed_start + (token_bytes / kernel.alone if kernel.alone else 0.0)
    sharpness = kernel.sharpness
    joined = (start**sharpness + stream**sharpness) ** (1 / sharpness)
    return cast(Real, joined + network_hop.step)


def _workers(exchange: Exchange, kernel: DispatchParameters) -> float:
    """Count what works side by side on the tokens of a rank."""
    workers, available = WAYS[exchange.way].workers, exchange.device.multiprocessors.value
    if workers == "channels":
        return (exchange.multiprocessors or kernel.multiprocessors) / _CHANNEL_SIZE
    if workers == "experts":
        experts = exchange.routing.experts
        return ceil(experts / ceil(experts / available))
    return available


def obstacle(way: str, fabric: Fabric, device: Device) -> str:
    """Say why a way cannot be taken; empty where it can.

    >>> from topology.catalogue import find_hardware
    >>> card = find_hardware("rtx-pro-6000")
    >>> obstacle("deepep_normal", card.fabric(8), card.device)
    'it needs NVLink between all GPUs'
    """
    if way not in WAYS:
        raise unknown("way of tokens", way, WAYS)
    if WAYS[way].ops is None and device.compute_capability <= _NEWEST_UNSUPPORTED:
        return "its kernels are for Hopper and newer GPUs"
    return next(filter(None, (need(fabric) for need in WAYS[way].needs)), "")
