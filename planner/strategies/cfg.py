"""CFG parallelism: the conditional and the unconditional forward of a step run side by side.

Each rank does its own forward; once a step the predictions are exchanged and combined.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.models import Model
from planner.strategies.base import Proposal, Share, Strategy

AXIS = "cfg"


class Guidance(Strategy):
    """Share out the forwards of a step."""

    axis = AXIS
    nesting = 2

    def suits(self, model: Model) -> bool:
        """Whether the model is denoised: others have no guidance."""
        return model.kind == "diffusion"

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, guidance=degree, passes=max(1, share.passes // degree))

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object unless the forwards of a step divide."""
        passes = proposal.workload.passes
        if passes % degree:
            forwards = f"{passes} forwards" if passes > 1 else "one forward (no guidance)"
            yield f"a step has {forwards}, which cfg{degree} does not divide"


STRATEGY = Guidance()
