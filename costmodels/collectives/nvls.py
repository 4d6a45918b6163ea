"""Collectives that the NVLink switch reduces and replicates."""

from dataclasses import dataclass

from costmodels.collectives.curve import Curve
from costmodels.collectives.operations import Amount, Op
from topology.catalogue import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvls:
    r"""NVLink SHARP: the switch adds what GPUs send and multicasts the sums.

    .. math:: start = launch, \quad stream = m \beta_{link}

    with m the message: in an all-reduce every byte leaves a GPU once and enters it once, so
    neither term knows the number of GPUs. All-gather and reduce-scatter use one of the two
    directions for (n - 1) / n of the full array m.

    References
    ----------
    Graham et al., "Scalable Hierarchical Aggregation and Reduction Protocol (SHARP)", 2020;
    NCCL src/transport/nvls.cc.

    Examples
    --------
    >>> from topology.base import BytesPerSecond, Seconds
    >>> curve = Curve(launch=Seconds(10e-6), efficiency=0.5)
    >>> node = Fabric(
    ...     architecture="hopper", ranks=8, link="nvswitch", bandwidth=BytesPerSecond(400e9),
    ...     multicast=True,
    ... )
    >>> f"{Nvls(op='all_reduce', fabric=node, curve=curve).time(2e6) * 1e6:.0f} us"
    '20 us'
    """

    op: Op
    fabric: Fabric
    curve: Curve

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for a message of `message_bytes`."""
        ranks = self.fabric.ranks
        share = 1.0 if self.op == "all_reduce" else (ranks - 1) / ranks
        start = self.curve.start(1, message_bytes / ranks)
        return self.curve.join(start, message_bytes * (share * self.curve.per_byte_on(self.fabric)))
