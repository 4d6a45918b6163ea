"""All-reduce in one synchronisation: everybody reads everything."""

from costmodels.collectives.algorithms.base import Algorithm, one_node, peers
from costmodels.collectives.operations import Amount


class Oneshot(Algorithm):
    r"""Every rank reads the whole message of every other one and adds: one synchronisation.

    .. math:: start = launch + (n - 1)\,step, \quad stream = (n - 1)\,m\,\beta_{link}

    with m the message and n the ranks.

    Examples
    --------
    Three GPUs at 1 GB/s read 1 MB from each of two peers:

    >>> from costmodels.collectives.curve import Curve
    >>> from topology.base import BytesPerSecond, Seconds
    >>> from topology.catalogue import Fabric
    >>> curve = Curve(launch=Seconds(1e-6), efficiency=1.0)
    >>> node = Fabric(
    ...     architecture="ampere", ranks=3, link="nvlink", bandwidth=BytesPerSecond(1e9)
    ... )
    >>> f"{Oneshot(fabric=node, curve=curve).time(1e6):.6f} s"
    '0.002001 s'
    """

    name = "oneshot"
    needs = (peers, one_node)
    engine = True

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        peers = self.fabric.ranks - 1
        start = self.curve.start(peers, message_bytes)
        return self.curve.join(start, message_bytes * (peers * self.curve.per_byte_on(self.fabric)))
