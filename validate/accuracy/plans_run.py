"""How far steps are from what `planner validate` measured of them on GPUs."""

from collections.abc import Sequence
from typing import Final

from topology.base.values import dataclass
from validate.plans.compare import compare, rankings
from validate.plans.measured import Measured, read_measured

MODES: Final = {"graph": "CUDA graph", "eager": "eager", "compile": "compiled"}
WITH_PROFILE: Final = "with its profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMachine:
    """A kind of machine that plans were run on.

    profiled : a profile ships for it, fitted to other work.

    >>> one = MeasuredMachine(words="2 x H100", hardware="h100-sxm", gpus=2, date="2026-11-28")
    >>> one.folder, one.profile
    ('2026-11-28-h100-sxm-x2', 'h100-sxm-x2-2026-11-28')
    """

    words: str
    hardware: str
    gpus: int
    date: str
    profiled: bool = True

    @property
    def folder(self) -> str:
        """Folder of `validate/data` that holds its results."""
        return f"{self.date}-{self.hardware}-x{self.gpus}"

    @property
    def profile(self) -> str:
        """Name of its profile, of kernels and collectives alone."""
        return f"{self.hardware}-x{self.gpus}-{self.date}"


MACHINES: Final = (
    MeasuredMachine(words="2 x H100", hardware="h100-sxm", gpus=2, date="2026-11-28"),
    MeasuredMachine(words="2 x H200", hardware="h200-sxm", gpus=2, date="2026-11-28"),
    MeasuredMachine(
        words="1 x H200", hardware="h200-sxm", gpus=1, date="2026-11-29", profiled=False
    ),
    MeasuredMachine(
        words="2 x H200, models in no fit",
        hardware="h200-sxm",
        gpus=2,
        date="2026-11-29",
        profiled=False,
    ),
)


def groups(text: str, machine: MeasuredMachine) -> dict[str, list[float]]:
    """Give the errors of runs on a machine: steps by how they were launched, memory, choices.

    text : lines of results; those that ran out of memory or were wrong do not count.
    """
    rows = [row for row in read_measured(text, machine.folder) if row.status == "done"]
    uncalibrated = compare(rows, machine.hardware)
    errors = {
        f"{_steps_label(machine)}, {words}": [
            c.step_error for c in uncalibrated if c.measured.case.mode == mode
        ]
        for mode, words in MODES.items()
    }
    errors[f"peak memory on {machine.words}"] = [c.memory_error for c in uncalibrated]
    errors[_regret_label(machine)] = [ranking.regret for ranking in rankings(uncalibrated)]
    return errors | (_profile_errors(rows, machine) if machine.profiled else {})


def _profile_errors(rows: Sequence[Measured], machine: MeasuredMachine) -> dict[str, list[float]]:
    calibrated = compare(rows, machine.hardware, machine.profile)
    return {
        f"{_steps_label(machine)}, {WITH_PROFILE}": [c.step_error for c in calibrated],
        f"{_regret_label(machine)}, {WITH_PROFILE}": [r.regret for r in rankings(calibrated)],
    }


def _steps_label(machine: MeasuredMachine) -> str:
    return f"steps run on {machine.words}"


def _regret_label(machine: MeasuredMachine) -> str:
    return f"time lost by the planner's choice on {machine.words}"
