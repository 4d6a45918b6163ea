"""All-reduce in two synchronisations: reduce a share, then gather the shares."""

from costmodels.collectives.algorithms.base import Algorithm, one_node, peers
from costmodels.collectives.operations import Amount


class Twoshot(Algorithm):
    r"""Every rank reduces its share of the message, then reads the others': two passes.

    .. math::
        start = launch + 2 (n - 1)\,step, \quad
        stream = 2 \frac{n - 1}{n}\,m\,\beta_{link}

    with m the message and n the ranks.
    """

    name = "twoshot"
    needs = (peers, one_node)
    engine = True

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        ranks = self.fabric.ranks
        start = self.curve.start(2 * (ranks - 1), message_bytes / ranks)
        per_byte = 2 * (ranks - 1) / ranks * self.curve.per_byte_on(self.fabric)
        return self.curve.join(start, message_bytes * per_byte)
