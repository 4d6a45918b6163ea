"""All-reduce in two synchronisations through a switch that adds and replicates."""

from costmodels.collectives.algorithms.base import Algorithm, multicast, one_node
from costmodels.collectives.operations import Amount


class Multishot(Algorithm):
    r"""Two-shot through a multicasting switch: it adds while reading and replicates on writing.

    .. math:: start = launch, \quad stream = m \beta_{link}

    with m the message: one share is pulled from all ranks, added on the way, and pushed once to
    all of them, so two synchronisations do for any number of ranks.

    References
    ----------
    "3x Faster AllReduce with NVSwitch and TensorRT-LLM MultiShot", NVIDIA developer blog, 2024.
    """

    name = "multishot"
    needs = (multicast, one_node)
    engine = True

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        start = self.curve.start(1, message_bytes / self.fabric.ranks)
        return self.curve.join(start, message_bytes * self.curve.per_byte_on(self.fabric))
