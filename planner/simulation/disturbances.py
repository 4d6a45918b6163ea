"""What keeps the ranks of a plan from being alike: slow GPUs, hosts that pause, chance."""

from collections.abc import Iterable, Mapping
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
MOST_TRAFFIC: Final = 0.99
USUAL_ORDER: Final = "zigzag"
ORDERS: Final = (USUAL_ORDER, "plain", "striped")
"""How causal tokens lie on ranks: the i-th piece from either end, neighbours, or in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """What keeps ranks from being alike.

    even : all GPUs are equally fast, not as far apart as those of one kind are. slow : how many
    times as long as usual some ranks compute. paused : seconds that the hosts of some ranks issue
    nothing for at the start of a turn. jitter : deviation of the logarithm of every task's time.
    runs : with other draws of the jitter. order : of the tokens of causal attention that a plan
    cuts, one of `ORDERS`. mixed : kinds of the GPUs of some ranks. traffic : parts of links that
    others take, by the names of `topology.machine.altered`.
    """

    even: bool = False
    slow: Mapping[int, float] = field(default_factory=dict)
    paused: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    runs: int = 1
    order: str = USUAL_ORDER
    mixed: Mapping[int, str] = field(default_factory=dict)
    traffic: Mapping[str, float] = field(default_factory=dict)

    def checked(self, plan: Plan) -> "Disturbances":
        """Raise InputError unless these are numbers that can be, of ranks of a plan."""
        if not isinstance(self.even, bool | np.bool_):
            raise InputError(f"even: got {shown(self.even)}, wanted True or False")
        slow = "how many times as long as usual it computes"
        pause = "seconds that its host issues nothing for"
        bounds = (1 / LARGEST_PACE, LARGEST_PACE), (0.0, LONGEST_PAUSE)
        _check_numbers("slow", self.slow, plan, bounds[0], slow)
        _check_numbers("pause", self.paused, plan, bounds[1], pause)
        _check_number("jitter", self.jitter, (0.0, MOST_JITTER))
        if type(self.runs) is not int or not 1 <= self.runs <= MOST_RUNS:
            raise InputError(
                f"runs: got {shown(self.runs)}, wanted a whole number from 1 to {MOST_RUNS}"
            )
        if self.runs > 1 and not self.jitter:
            raise InputError(f"runs: got {self.runs} without jitter, which makes them differ")
        _check_order(self.order)
        _check_ranks("mixed", self.mixed, plan, "kinds of GPUs by rank, such as {3: 'l40s'}")
        for kind in self.mixed.values():
            _check_name("mixed", kind)
        _check_traffic(self.traffic)
        return self


UNDISTURBED: Final = Disturbances()
"""Nothing but that GPUs of a kind are apart."""


def ranks_named(said: Iterable[int]) -> str:
    """Name ranks.

    >>> ranks_named([3]), ranks_named([2, 0])
    ('rank 3', 'ranks 0 and 2')
    """
    ranks = [str(rank) for rank in sorted(said)]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {' and '.join(ranks)}"


def _check_order(order: object) -> None:
    """Raise unless this is one of `ORDERS`."""
    if not isinstance(order, str) or order not in ORDERS:
        raise InputError(f"order: got {shown(order)}, wanted {', '.join(ORDERS)}")


def _check_ranks(name: str, ranks: object, plan: Plan, expected: str) -> None:
    """Refuse what is not said of ranks of the plan."""
    if not isinstance(ranks, Mapping):
        raise InputError(f"{name}: got {shown(ranks)}, wanted {expected}")
    for rank in ranks:
        if not isinstance(rank, int | np.integer) or isinstance(rank, bool):
            raise InputError(f"{name}: got rank {shown(rank)}, wanted a whole number")
        size = plan.without("dp").gpus
        if not 0 <= rank < size:
            replica_hint = f": all are alike, and that is rank {rank % size} of its own"
            raise InputError(
                f"{name}: got rank {rank}, wanted one from 0 to {size - 1} of a replica"
                f"{replica_hint if 0 <= rank < plan.gpus else ''}"
            )


def _check_numbers(
    name: str, numbers: Mapping[int, float], plan: Plan, bounds: tuple[float, float], meaning: str
) -> None:
    """Refuse what is no number of a rank of the plan."""
    _check_ranks(name, numbers, plan, "numbers by rank, such as {3: 1.1}")
    for rank, value in numbers.items():
        _check_number(name, value, bounds, f" for rank {rank}", meaning)


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name}: got {shown(value)}, wanted the name of a kind of GPU")


def _check_traffic(traffic: object) -> None:
    """Refuse what is no part of a link by its name."""
    if not isinstance(traffic, Mapping) or not all(isinstance(name, str) for name in traffic):
        expected = "parts of links by their names, such as {'NIC0-network': 0.5}"
        raise InputError(f"traffic: got {shown(traffic)}, wanted {expected}")
    for name, value in traffic.items():
        _check_number(
            "traffic", value, (0.0, MOST_TRAFFIC), f" on {shown(name)}", "the part that it takes"
        )


def _check_number(
    name: str, value: object, bounds: tuple[float, float], where: str = "", what: str = "a number"
) -> None:
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise InputError(f"{name}: got {shown(value)}{where}, wanted a number")
    lowest, highest = bounds
    if not lowest <= value <= highest:
        text = shown(value) if isinstance(value, int) else f"{value:g}"  # some pass a float
        raise InputError(
            f"{name}: got {text}{where}, wanted {what}, from {lowest:g} to {highest:g}"
        )
