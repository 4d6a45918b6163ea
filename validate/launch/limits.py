"""How long a run may take, and what became of it."""

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that the parts of a run may take.

    start_s : until every rank has begun. phase_s : of a phase that states no limit of its own.
    total_s : of everything. grace_s : between asking a rank to end and killing it.
    """

    start_s: float = 90.0
    phase_s: float = 300.0
    total_s: float = math.inf
    grace_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """What became of a run.

    message : one line that names the rank, the operation and the likely cause; empty where all
    ranks ended well. rank : whose fault it is, -1 where none is known. exit_codes : one a rank,
    None for those that had to be ended.
    """

    ok: bool
    seconds: float
    exit_codes: tuple[int | None, ...]
    message: str = ""
    rank: int = -1
    phase: str = ""
    op: str = ""
    cause: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        return {**asdict(self), "exit_codes": list(self.exit_codes)}
