"""How long bytes take that move in dependent steps: one form for every protocol and kernel."""

from collections.abc import Callable
from dataclasses import replace

from costmodels.collectives.operations import Amount, Op
from topology.base import Bytes, BytesPerSecond, Seconds
from topology.base.values import dataclass
from topology.catalogue import Fabric, Siblings, link_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    r"""A start-up time and a stream of bytes, joined by a power mean.

    .. math::
        t = (start^s + stream^s)^{1/s}, \quad
        start = launch + steps (step + rise\, c / (c + rise\_bytes)), \quad
        stream = wire / (bandwidth\, efficiency)

    where c is the chunk that one step carries, wire the bytes one GPU sends, and s the
    `sharpness`. s = 1 adds the two (Hockney); s > 1 is a pipeline that hides its start behind
    the stream, so that time stays flat and then turns; s < 1 is a slow ramp of the bandwidth,
    close to a term with the square root of the size.

    launch : s, one kernel, whatever it does.
    step : s, one dependent step with one warp of data.
    rise : s, what a step costs more once all threads and channels are in use.
    rise_bytes : B, the chunk at which half of `rise` is reached.
    efficiency : share of the nominal bandwidth of the link that large messages reach.
    share, cross : what is left of it when more than two GPUs use the host's PCIe tree at
        once, and when they sit on two sockets.
    tree : B/s, the nominal bandwidth of the links on which `share` and `cross` were measured:
        the host's tree is no slower where its slots are; 0 takes both as shares of any link.
    pool : B/s of host memory that all ranks share where copies go through it; 0 where none do.
    copy_gather, copy_reduce : copies inside a GPU, as a number of chunks on its link.

    R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, for
    s = 1; the power mean is our own, chosen on measured tables (see `source` of each curve).

    1 us to start, two steps of 1 us, 8 MB at half of 16 GB/s: 3 us + 1 ms.

    >>> curve = Curve(launch=Seconds(1e-6), step=Seconds(1e-6), efficiency=0.5)
    >>> start, stream = curve.start(2, 4e6), 8e6 * curve.per_byte(BytesPerSecond(16e9))
    >>> f"{curve.join(start, stream) * 1e6:.0f} us"
    '1003 us'
    """

    launch: Seconds
    step: Seconds = Seconds(0.0)
    rise: Seconds = Seconds(0.0)
    rise_bytes: Bytes = Bytes(1.0)
    efficiency: float
    share: float = 1.0
    cross: float = 1.0
    tree: BytesPerSecond = BytesPerSecond(0.0)
    pool: BytesPerSecond = BytesPerSecond(0.0)
    copy_gather: float = 0.0
    copy_reduce: float = 0.0
    sharpness: float = 1.0

    def start(self, steps: float, chunk: Amount, rises: float = -1.0) -> Amount:
        """Seconds before the stream counts: launch and `steps` steps of `chunk` bytes.

        `rises` is how often `rise` comes in, where that is not once a step.
        """
        rise_count = steps if rises < 0 else rises
        rise = rise_count * self.rise * (chunk / (chunk + self.rise_bytes))
        return self.launch + steps * self.step + rise

    def starting(self, pick: Callable[[float, float], float], other: "Curve") -> "Curve":
        """Start as this curve or as `other`, whichever `pick` takes: ``min`` or ``max``."""
        return replace(
            self,
            launch=Seconds(pick(self.launch, other.launch)),
            step=Seconds(pick(self.step, other.step)),
        )

    def copies(self, op: Op) -> float:
        """Chunks that one GPU copies at home during `op`, as a length on its link."""
        return self.copy_reduce if "reduce" in op else self.copy_gather

    def per_byte(self, bandwidth: BytesPerSecond) -> float:
        """Seconds a byte at the efficiency of an undisturbed link of `bandwidth`."""
        return 1 / (bandwidth * self.efficiency)

    def per_byte_on(self, fabric: Fabric, idle: int = 0) -> float:
        """Seconds a byte of one GPU when all but `idle` GPUs of a node of `fabric` send."""
        return self.chunks_on(fabric, 1.0, 0.0, idle)

    def chunks_on(self, fabric: Fabric, sent: float, copied: float, idle: int = 0) -> float:
        """Seconds that chunks of a byte take of which a GPU passes some on and copies others.

        Links that groups beside this one load as much are a bound on what it passes on.
        """
        siblings = fabric.siblings
        shared_time = sent * self._shared_per_byte(siblings, siblings.passed) if siblings else 0.0
        return max((sent + copied) * self._lone_per_byte(fabric, idle), shared_time)

    def _lone_per_byte(self, fabric: Fabric, idle: int = 0) -> float:
        local = max(2, fabric.ranks // fabric.nodes)
        pool_time = (local - idle) / self.pool if self.pool else 0.0
        link = fabric.chain if idle and fabric.chain else fabric.bandwidth
        return self.per_byte(self._through_tree(fabric, local, link)) + pool_time

    def _shared_per_byte(self, siblings: Siblings, rate: BytesPerSecond) -> float:
        """Seconds a byte that links need which other groups load as much, at what copies reach."""
        staged_time = siblings.staging / self.pool if self.pool else 0.0
        return max(1 / (rate * link_rates().copy.value), staged_time)

    def _through_tree(self, fabric: Fabric, local: int, link: BytesPerSecond) -> BytesPerSecond:
        """Nominal bandwidth of a `link` that `local` GPUs of a node use at once."""
        if fabric.link != "pcie":
            return link
        share = self.share if local > 2 else 1.0
        share *= self.cross if fabric.crosses_sockets else 1.0
        return BytesPerSecond(min(link, share * (self.tree or link)))

    def per_byte_sent(self, fabric: Fabric) -> float:
        """Seconds a byte from one GPU of a node of `fabric` to the next, while all send."""
        return self.per_byte(fabric.direct) if fabric.direct else self.per_byte_on(fabric)

    def chunks_exchanged(self, fabric: Fabric, sent: float, copied: float) -> float:
        """Seconds that chunks of a byte take when all GPUs of a node send to all others.

        What links are known to share is a bound beside what such machines usually lose.
        """
        siblings = fabric.siblings
        shared_time = (
            sent * self._shared_per_byte(siblings, siblings.exchanged) if siblings else 0.0
        )
        exchange_time = self.per_byte(fabric.exchange) if fabric.exchange else 0.0
        return max((sent + copied) * max(self._lone_per_byte(fabric), exchange_time), shared_time)

    def join(self, start: Amount, stream: Amount, sharpness: float = 0.0) -> Amount:
        """Power mean of the start-up time and the stream, in seconds.

        A `sharpness` other than 0 replaces the curve's own, where something else is slower.
        """
        s = sharpness or self.sharpness
        joined: Amount = (start**s + stream**s) ** (1 / s)
        return joined
