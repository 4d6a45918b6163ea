"""Where a router sends tokens: how many ranks or nodes each reaches, and how busy the busiest is.

A layer has `experts`, of which every token takes `top_k` different ones. They lie in equal parts on
ranks (or nodes), in order. All of this is counting; what the tokens then cost is told elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from math import comb, log2
from typing import TYPE_CHECKING, Final

import numpy as np

from topology.base import InputError, shown
from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Loads = NDArray[np.float64]
Distribution = str | tuple[float, ...]
"""How tokens choose their experts: by a law of this name, or as each was seen to be taken."""
USUAL_EXPONENT: Final = 1.2
"""Exponent of a power law where none is named."""
_MOST_TOKENS: Final = 2**53  # tokens of an expert, as far as whole numbers are exact
_MOST_EXPONENT: Final = 10.0  # power law; tables of engines have 1.01 and 1.2
_DEALS: Final = 33  # orders of the experts that are tried; their middle is taken
_MOST_SHARE: Final = (
    0.8  # share of all tokens that the most popular expert could get, before scaling
)
_SMALL_BATCH: Final = (0.01, 2.0)  # the same of a batch too small to reach every expert, in tokens


def exponent_of(distribution: str) -> float:
    """Read ``balanced`` (0), ``power_law`` or ``power_law_1.01``.

    >>> exponent_of("balanced"), exponent_of("power_law"), exponent_of("power_law_1.01")
    (0.0, 1.2, 1.01)
    """
    match = re.fullmatch(r"balanced|power_law(?:_(\d+(?:\.\d+)?))?", distribution, re.ASCII)
    if not match:
        raise InputError(
            f"distribution: got {distribution!r}, wanted balanced, uniform, power_law or "
            "power_law_1.01"
        )
    if distribution == "balanced":
        return 0.0
    exponent = float(match[1]) if match[1] else USUAL_EXPONENT
    if exponent > _MOST_EXPONENT:
        raise InputError(
            f"distribution: got {distribution[:40]!r}, wanted an exponent of at most "
            f"{_MOST_EXPONENT:g}"
        )
    return exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The experts of a layer, and how tokens choose among them.

    groups, top_groups : the router first takes `top_groups` of `groups` equal groups of experts,
    and experts only of those (DeepSeek-V3: 4 of 8). exponent : of the power law that the
    popularity of experts follows; 0 where all are alike. spread : a token's experts lie on as many
    ranks as they can, as benchmarks arrange it. seen : tokens that each expert took, in order.
    chance : experts draw their tokens by it, as those that were seen always do; otherwise each gets
    what it expects, as benchmarks of kernels arrange it. copies : of popular experts, kept beside
    them; experts are then placed so that ranks are as busy as they can. part : whose load is asked
    for; the busiest where left out. Where no expert was seen by its place, the first part is the
    busiest, and the others follow.
    """

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    exponent: float = 0.0
    spread: bool = False
    seen: tuple[float, ...] = ()
    chance: bool = False
    copies: int = 0
    part: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= self.experts * self.top_groups // self.groups:
            raise InputError(
                f"experts of a token: got {self.top_k} of {self.experts}, in {self.top_groups} of "
                f"{self.groups} groups, wanted at least one and no more than there are"
            )
        if self.seen:
            self._check_seen()

    def drawn(self, distribution: Distribution) -> Routing:
        """Let tokens choose as `exponent_of` has it, by ``uniform`` chance alone, or as seen.

        >>> Routing(experts=4, top_k=2).drawn("uniform").seen
        (1.0, 1.0, 1.0, 1.0)
        """
        if not isinstance(distribution, str):
            return replace(self, exponent=0.0, seen=distribution)
        if distribution == "uniform":
            return replace(self, exponent=0.0, seen=(1.0,) * self.experts)
        return replace(self, exponent=exponent_of(distribution), seen=())

    def _check_seen(self) -> None:
        """Refuse tokens by expert that are not one count for each, or too few to choose among."""
        if len(self.seen) != self.experts:
            raise InputError(
                f"distribution: got {len(self.seen)} numbers, wanted one for each of {self.experts}"
            )
        wrong = next((count for count in self.seen if not 0 <= count <= _MOST_TOKENS), None)
        if wrong is not None:
            raise InputError(f"distribution: got {shown(wrong)}, wanted tokens from 0 to 2**53")
        taken_experts = sum(count > 0 for count in self.seen)
        if taken_experts < self.top_k:
            raise InputError(
                f"distribution: got tokens of {taken_experts} experts, wanted at least {self.top_k}"
            )

    @property
    def alike(self) -> bool:
        """Whether all experts get as many tokens."""
        return not self.exponent and len(set(self.seen)) < 2

    def reached(self, parts: int) -> float:
        r"""Expect how many of `parts` a token goes to, one copy for all its experts there.

        .. math:: p\,(1 - \binom{e - e/p}{k} / \binom{e}{k})

        with e experts in p parts; groups are drawn first where the router limits them.

        Eight of 256 experts on eight ranks: not all eight ranks, as experts share some.

        >>> f"{Routing(experts=256, top_k=8).reached(8):.2f}"
        '5.29'
        >>> Routing(experts=256, top_k=8).reached(1)
        1.0
        """
        if self.spread:
            return float(min(parts, self.top_k))
        group_experts = self.experts // self.groups  # experts of a group
        open_experts = group_experts * self.top_groups
        if parts <= self.groups:  # a part holds whole groups
            part_groups = self.groups // parts
            missed_share = sum(
                comb(part_groups, j)
                * comb(self.groups - part_groups, self.top_groups - j)
                * comb(open_experts - j * group_experts, self.top_k)
                for j in range(min(part_groups, self.top_groups) + 1)
                if self.top_groups - j <= self.groups - part_groups
            ) / (comb(self.groups, self.top_groups) * comb(open_experts, self.top_k))
        else:  # a group lies on several parts
            part_experts = -(-self.experts // parts)
            share = comb(open_experts - part_experts, self.top_k) / comb(open_experts, self.top_k)
            missed_share = 1 - self.top_groups / self.groups * (1 - share)
        return parts * (1 - missed_share)

    def held(self, tokens: float, parts: int) -> Loads:
        """Expect the tokens of each expert that was seen, by the parts that hold them in order.

        >>> Routing(experts=4, top_k=1, seen=(3.0, 1.0, 2.0, 2.0)).held(8.0, 2).tolist()
        [[3.0, 1.0], [2.0, 2.0]]
        """
        return expert_loads(tokens, self).reshape(parts, -1)

    def beside_busiest(self, tokens: float, parts: int) -> Loads | None:
        """Expect the tokens of each expert on `part`, unless that is the busiest of `parts`.

        >>> Routing(experts=4, top_k=1, seen=(3.0, 1.0, 2.0, 1.0), part=1).beside_busiest(7.0, 2)
        array([2., 1.])
        """
        if self.part is None or self.alike or parts == 1:
            return None
        if self.seen and not self.copies:
            busiest_part = int(np.sum(np.reshape(self.seen, (parts, -1)), axis=1).argmax())
            return None if self.part == busiest_part else self.held(tokens, parts)[self.part]
        part_loads = self._part_loads(tokens, parts)
        place = np.argsort(-part_loads.sum(axis=1), kind="stable")[self.part]
        return part_loads[place] if self.part else None

    def busiest(self, tokens: float, parts: int) -> Loads:
        """Expect the tokens of each expert on the busiest of `parts`, the most popular first.

        tokens : of all ranks together.

        >>> Routing(experts=4, top_k=2).busiest(100.0, 2)
        array([50., 50.])
        >>> skewed = Routing(experts=64, top_k=2, exponent=1.2).busiest(4096.0, 8)
        >>> bool(skewed.sum() > 2 * 4096 / 8)
        True
        """
        if parts == 1 or (self.alike and not self.copies):
            return expert_loads(tokens, self)[: -(-self.experts // parts)]
        part_loads = self._part_loads(tokens, parts)
        return np.sort(part_loads[part_loads.sum(axis=1).argmax()])[::-1]

    def _part_loads(self, tokens: float, parts: int) -> Loads:
        """Expect the tokens of each expert of all parts, where these are not all alike."""
        loads = expert_loads(tokens, self)
        if self.copies:
            return _balanced_loads(loads, self.copies, parts)
        if self.seen:
            return self.held(tokens, parts)
        size = self.experts // parts
        deals = loads[_orders(self.experts)[:, : size * parts]].reshape(_DEALS, parts, size)
        middle = np.argsort(deals.sum(axis=2).max(axis=1))[_DEALS // 2]
        typical_deal: Loads = deals[middle]
        return typical_deal

    def excess(self, tokens: float | Loads, parts: int, *, once: bool) -> float | Loads:
        """Tokens of the busiest part over those of a mean one; `tokens` of all ranks together.

        once : a token counts once for a part, however many of its experts are there.
        """
        if self.alike or parts == 1:
            return 1.0
        largest = float(np.max(tokens, initial=1.0))
        sizes = relevant_sizes(tokens, 2.0 ** np.arange(int(log2(max(largest, 1.0))) + 2))
        excesses = [_excess(self, size, parts, once) for size in sizes]
        return np.interp(tokens, sizes, excesses)


def relevant_sizes(tokens: float | Loads, sizes: NDArray[np.floating]) -> NDArray[np.floating]:
    """Leave out sizes below the last that is no larger than any of the tokens.

    >>> relevant_sizes(5.0, np.array([0.0, 1.0, 4.0, 8.0])).tolist()
    [4.0, 8.0]
    """
    smallest = np.min(tokens, initial=np.inf)
    return sizes[max(0, int(np.searchsorted(sizes, smallest, side="right")) - 1) :]


def _balanced_loads(loads: Loads, copies: int, parts: int) -> Loads:
    """Copy the busiest experts, which share their tokens, and place all on parts.

    Each copy goes to the expert whose pieces are largest, and the largest piece to the part with
    the fewest tokens that has room, as load balancers of engines do [1]_.

    References
    ----------
    .. [1] github.com/deepseek-ai/EPLB

    >>> _balanced_loads(np.array([6.0, 2.0, 2.0]), copies=1, parts=2).tolist()
    [[3.0, 2.0], [3.0, 2.0]]
    """
    counts = np.ones(loads.size)
    for _ in range(copies):
        counts[np.argmax(loads / counts)] += 1
    pieces = np.sort(np.repeat(loads / counts, counts.astype(int)))[::-1]
    placed_loads: list[list[float]] = [[] for _ in range(parts)]
    for piece in pieces:
        open_parts = [part for part in placed_loads if len(part) < pieces.size // parts]
        min(open_parts, key=sum).append(float(piece))
    return np.array(placed_loads)


@lru_cache(maxsize=64)
def _orders(experts: int) -> NDArray[np.intp]:
    """Draw orders of experts, the same ones whenever they are asked for."""
    generator = np.random.default_rng(experts)
    return np.stack([generator.permutation(experts) for _ in range(_DEALS)])


@lru_cache(maxsize=4096)
def _excess(routing: Routing, tokens: float, parts: int, once: bool) -> float:  # noqa: FBT001
    """Find `Routing.excess` at one size."""
    chances = routing.busiest(tokens, parts) / tokens
    mean_chances = np.full(chances.size, routing.top_k / (routing.experts + routing.copies))
    if not once:
        return float(chances.sum() / mean_chances.sum())
    return float((1 - np.prod(1 - chances)) / (1 - np.prod(1 - mean_chances)))


def parts_apart(
    distribution: Distribution, parts: int, *, copied: bool = False
) -> list[int | None]:
    """Give every part of the experts the first one with as many tokens, None where all are alike.

    copied : popular experts have copies, so that no part has those that follow one another.

    >>> parts_apart((1.0, 1.0, 4.0, 1.0), 4), parts_apart("power_law", 2)
    ([0, 0, 2, 0], [0, 1])
    >>> parts_apart("uniform", 2)
    [None, None]
    """
    if isinstance(distribution, str):
        alike = routing_of(distribution, 1, 1).alike
        return [None] * parts if alike else list(range(parts))
    if len(set(distribution)) < 2:
        return [None] * parts
    if copied:
        return list(range(parts))
    part_loads = [tuple(row) for row in np.reshape(distribution, (parts, -1)).tolist()]
    return [part_loads.index(row) for row in part_loads]


def routing_of(distribution: Distribution, experts: int, top_k: int) -> Routing:
    """Describe a layer whose tokens choose as `Routing.drawn` has it."""
    return Routing(experts=experts, top_k=top_k).drawn(distribution)


def expert_loads(tokens: float, routing: Routing) -> Loads:
    """Expect the tokens that go to each expert, the most popular first, or in the order seen.

    Their popularity follows a power law between one token and most of them, as evenly spaced
    quantiles; no expert gets a token twice, and what it cannot take goes to the others.

    >>> loads = expert_loads(1000.0, Routing(experts=64, top_k=4, exponent=1.2))
    >>> bool(loads.max() <= 1000.0), round(float(loads.sum()))
    (True, 4000)
    """
    experts, total_tokens = routing.experts, tokens * routing.top_k
    if routing.alike:
        return np.full(experts, total_tokens / experts)
    if routing.seen:
        order = np.argsort(routing.seen)[::-1]
        loads = np.empty(experts)
        loads[order] = _capped_shares(np.array(routing.seen, float)[order], total_tokens, tokens)
        return loads
    low, high = (1.0, tokens * _MOST_SHARE) if total_tokens > experts else _SMALL_BATCH
    power = 1 - routing.exponent
    places = (np.arange(experts) + 0.5) / experts
    if not power:
        raw = low * (max(high, low) / low) ** places
    else:
        raw = (low**power + (max(high, low) ** power - low**power) * places) ** (1 / power)
    return _capped_shares(np.sort(raw)[::-1], total_tokens, tokens)


def _capped_shares(weights: Loads, total: float, cap: float) -> Loads:
    """Share `total` out by `weights`, at most `cap` each."""
    capped = 0
    while True:
        open_shares = weights[capped:] * ((total - capped * cap) / weights[capped:].sum())
        overfull = int(np.count_nonzero(open_shares > cap))
        if not overfull:
            return np.concatenate([np.full(capped, cap), open_shares])
        capped += overfull
