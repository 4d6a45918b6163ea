"""What ranks are told to do: cases, on what, and how long."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from topology.base.values import dataclass
from validate.plans.cases import Case, digest_of, read_case
from validate.plans.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Cases to run, and how.

    hardware : a catalogue name. device : ``cuda``, or ``cpu`` with gloo. backend : of
    torch.compile. budget_s : seconds to repeat a case; seconds : for all of them. machine : that
    rows name. attempts : that each case has had by its key, this one included.
    """

    cases: Sequence[Case]
    hardware: str = "h100-sxm"
    device: str = "cuda"
    backend: str = "inductor"
    budget_s: float = 2.0
    seconds: float = 10.0**6
    machine: str = ""
    attempts: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the file that ranks read."""
        return {**asdict(self), "cases": [case.to_dict() for case in self.cases]}

    def named(self, row: Measured) -> Measured:
        """Say of a row what it was measured on, and at which attempt."""
        return replace(
            row,
            machine=self.machine,
            digest=digest_of(row.case, self.hardware),
            attempts=self.attempts.get(row.key, 1),
        )


def read_job(document: Mapping[str, Any]) -> Job:
    """Read a job; all but its cases may be left out."""
    return Job(**{**document, "cases": tuple(map(read_case, document["cases"]))})
