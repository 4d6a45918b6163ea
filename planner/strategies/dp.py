"""Data parallelism: samples of a batch, or whole requests, run on replicas that never meet."""

from collections.abc import Iterator
from dataclasses import replace

from costmodels.sizes import any_true
from planner.strategies.base import Proposal, Share, Strategy

AXIS = "dp"


class Data(Strategy):
    """Share out the batch; with a batch of one each replica serves a request of its own."""

    axis = AXIS
    nesting = 0

    def divide(self, share: Share, degree: int) -> Share:
        single = not any_true(share.batch != 1)
        batch = share.batch if single else share.batch // degree
        return replace(share, replicas=degree, batch=batch)

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to a batch above one that does not divide."""
        batch = proposal.workload.batch
        if any_true((batch > 1) & (batch % degree != 0)):
            yield f"a batch of {proposal.workload.batch} does not divide by dp{degree}"


STRATEGY = Data()
