"""All-reduce in one synchronisation: everybody reads everything."""

from dataclasses import dataclass

from costmodels.collectives.curve import Curve
from costmodels.collectives.operations import Amount
from topology.catalogue import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Oneshot:
    r"""Every rank reads the whole message of every other one and adds: one synchronisation.

    .. math:: start = launch + (n - 1)\,step, \quad stream = (n - 1)\,m\,\beta_{link}

    with m the message and n the ranks.

    Examples
    --------
    Three GPUs at 1 GB/s read 1 MB from each of two peers:

    >>> from topology.base import BytesPerSecond, Seconds
    >>> curve = Curve(launch=Seconds(1e-6), efficiency=1.0)
    >>> node = Fabric(
    ...     architecture="ampere", ranks=3, link="nvlink", bandwidth=BytesPerSecond(1e9)
    ... )
    >>> f"{Oneshot(fabric=node, curve=curve).time(1e6):.6f} s"
    '0.002001 s'
    """

    fabric: Fabric
    curve: Curve

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        peers = self.fabric.ranks - 1
        start = self.curve.start(peers, message_bytes)
        return self.curve.join(start, message_bytes * (peers * self.curve.per_byte_on(self.fabric)))
