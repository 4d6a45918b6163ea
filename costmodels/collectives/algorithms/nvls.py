"""Collectives that the NVLink switch reduces and replicates."""

from collections.abc import Iterator

from costmodels.collectives.algorithms.base import Algorithm, multicast, one_node
from costmodels.collectives.nccl_tuning import Candidate, View
from costmodels.collectives.operations import Amount, Op, ring_steps


class Nvls(Algorithm):
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
    >>> from costmodels.collectives.curve import Curve
    >>> from topology.base import BytesPerSecond, Seconds
    >>> from topology.catalogue import Fabric
    >>> curve = Curve(launch=Seconds(10e-6), efficiency=0.5)
    >>> node = Fabric(
    ...     architecture="hopper", ranks=8, link="nvswitch", bandwidth=BytesPerSecond(400e9),
    ...     multicast=True,
    ... )
    >>> f"{Nvls(op='all_reduce', fabric=node, curve=curve).time(2e6) * 1e6:.0f} us"
    '20 us'
    """

    name = "nvls"
    ops = ("all_reduce", "all_gather", "reduce_scatter")
    needs = (multicast, one_node)

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for a message of `message_bytes`."""
        ranks = self.fabric.ranks
        share = 1.0 if self.op == "all_reduce" else (ranks - 1) / ranks
        start = self.curve.start(1, message_bytes / ranks)
        return self.curve.join(start, message_bytes * (share * self.curve.per_byte_on(self.fabric)))

    @classmethod
    def candidates(cls, op: Op, view: View) -> Iterator[Candidate]:
        """Yield what NCCL believes that the switch takes."""
        ranks = view.fabric.ranks
        speed = switch_speed(view)
        if speed:
            channel = speed * (2 if op == "all_reduce" else (ranks - 1) / ranks)
            yield Candidate(
                protocol="Simple",
                latency=view.first("nvlink_nvls"),
                per_byte=ring_steps(op, ranks) / ranks / (channel * ranks),
            )


def switch_speed(view: View) -> float:
    """Bytes a second that NCCL believes a GPU has through the switch; 0 where it uses none."""
    fabric, key = view.fabric, f"{view.generation}_nvls"
    local = fabric.ranks // fabric.nodes
    if key not in view.numbers or local < 3:
        return 0.0
    total = fabric.bandwidth * view.first("nvls_bus") * local / (local - 1)
    speeds = view.numbers[f"{key}_channel"]
    speed = next((s for s in speeds if s * local <= total), speeds[-1])
    return speed * view.first(key) * (local - 1) / local
