"""What keeps the ranks of a plan from being alike: slow GPUs, hosts that pause, chance."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np

from planner.request.plan import Plan
from topology.base import InputError, shown
from topology.base.values import dataclass

LARGEST_PACE: Final = 100.0
LONGEST_PAUSE: Final = 600.0
MOST_JITTER: Final = 2.0
MOST_RUNS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """What keeps ranks from being alike.

    even : all GPUs are equally fast, not as far apart as those of one kind are. slow : how many
    times as long as usual some ranks compute. paused : seconds that the hosts of some ranks issue
    nothing for at the start of a turn. jitter : deviation of the logarithm of every task's time.
    runs : with other draws of the jitter.
    """

    even: bool = False
    slow: Mapping[int, float] = field(default_factory=dict)
    paused: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    runs: int = 1

    def checked(self, plan: Plan) -> "Disturbances":
        """Raise InputError unless these are numbers that can be, of ranks of a plan."""
        if not isinstance(self.even, bool | np.bool_):
            raise InputError(f"even: got {shown(self.even)}, wanted True or False")
        slow = "how many times as long as usual it computes"
        _check_ranks("slow", self.slow, plan, (1 / LARGEST_PACE, LARGEST_PACE), slow)
        pause = "seconds that its host issues nothing for"
        _check_ranks("pause", self.paused, plan, (0.0, LONGEST_PAUSE), pause)
        _check_number("jitter", self.jitter, (0.0, MOST_JITTER))
        if type(self.runs) is not int or not 1 <= self.runs <= MOST_RUNS:
            raise InputError(
                f"runs: got {shown(self.runs)}, wanted a whole number from 1 to {MOST_RUNS}"
            )
        if self.runs > 1 and not self.jitter:
            raise InputError(f"runs: got {self.runs} without jitter, which makes them differ")
        return self


ALIKE: Final = Disturbances()
"""Nothing but that GPUs of a kind are apart."""


def _check_ranks(
    name: str, given: object, plan: Plan, bounds: tuple[float, float], what: str
) -> None:
    """Refuse what is no number of a rank of the plan."""
    if not isinstance(given, Mapping):
        raise InputError(f"{name}: got {shown(given)}, wanted numbers by rank, such as {{3: 1.1}}")
    for rank, value in given.items():
        if not isinstance(rank, int | np.integer) or isinstance(rank, bool):
            raise InputError(f"{name}: got rank {shown(rank)}, wanted a whole number")
        _check_number(name, value, bounds, f" for rank {rank}", what)
        if not 0 <= rank < plan.gpus:
            last = plan.gpus - 1
            raise InputError(f"{name}: got rank {rank}, wanted one from 0 to {last} of a replica")


def _check_number(
    name: str, value: object, bounds: tuple[float, float], where: str = "", what: str = "a number"
) -> None:
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise InputError(f"{name}: got {shown(value)}{where}, wanted a number")
    least, most = bounds
    if not least <= value <= most:
        text = shown(value) if isinstance(value, int) else f"{value:g}"  # some pass a float
        raise InputError(f"{name}: got {text}{where}, wanted {what}, from {least:g} to {most:g}")
