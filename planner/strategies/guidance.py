"""CFG parallelism: the conditional and the unconditional forward of a step run side by side.

Each rank does its own forward; once a step the predictions are exchanged and combined.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.strategies.base import Case, Share

AXIS = "cfg"


@dataclass(frozen=True, slots=True)
class Guidance:
    """Share out the forwards of a step."""

    name: str = AXIS

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, guidance=degree, passes=max(1, share.passes // degree))

    def objections(self, case: Case, degree: int) -> Iterator[str]:
        """Object unless the forwards of a step divide."""
        passes = case.workload.passes
        if passes % degree:
            forwards = f"{passes} forwards" if passes > 1 else "one forward (no guidance)"
            yield f"a step has {forwards}, which cfg{degree} does not divide"
