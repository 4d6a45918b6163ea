"""What strategies have in common: the share of one rank, and one attention to be split.

A strategy says which degrees are legal and how it divides the work of one rank. Those that split
the sequence also say what the ranks exchange in attention. None knows a bandwidth or a second.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Protocol

from costmodels.program import Part, Size, Span, Tensor
from costmodels.program.emit import Emits
from planner.models import Model
from planner.request.workload import Workload
from topology.base.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank does of a request.

    batch, passes : samples, and forwards a step. tensor : ranks that share every layer.
    sequence : axes that cut the tokens, outermost first. zigzag : causal tokens are cut in an order
    that evens the work. stages : ranks in the pipeline. copies : of attention, each with requests
    of its own, that share the experts. expert_groups : of ranks with experts of their own.
    pieces : of the latents, that follow one another through the stages; 1 where they do not.
    shards : axis over whose ranks weights are spread, and how many parts; of degree 1 for none.
    """

    batch: Size
    passes: int
    tensor: int = 1
    sequence: tuple[tuple[str, int], ...] = ()
    zigzag: bool = False
    stages: int = 1
    guidance: int = 1
    replicas: int = 1
    copies: int = 1
    expert_groups: int = 1
    pieces: int = 1
    shards: tuple[str, int] = ("", 1)

    @property
    def grain(self) -> int:
        """Count the ranks that the tokens are cut over."""
        return prod(degree for _, degree in self.sequence)

    @property
    def token_ranks(self) -> tuple[tuple[str, int], ...]:
        """Axes whose ranks have tokens of their own and share the experts, outermost first.

        Those that a sequence is cut over do where there are more groups of experts than others.
        """
        wide = self.expert_groups > self.copies * self.tensor
        return (("adp", self.copies), *(self.sequence if wide else ()))

    @property
    def expert_ranks(self) -> tuple[tuple[str, int], ...]:
        """Axes over whose ranks the experts are spread, outermost first."""
        return (*self.token_ranks, ("tp", self.tensor))

    @property
    def expert_cut(self) -> int:
        """Count the ranks that an expert is cut over; groups that do not divide are illegal."""
        return max(1, prod(degree for _, degree in self.expert_ranks) // self.expert_groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Rows that take part in an attention: their features are queries, keys, values in order.

    has_queries, has_keys : whether queries, and whether keys and values, are among the features.
    """

    spans: tuple[Span, ...]
    tensor: Tensor
    has_queries: bool = True
    has_keys: bool = True


Answers = Callable[[Tensor], Emits[tuple[Tensor, Tensor]]]
"""Emit keys and values of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One attention as a rank sees it before any exchange: heads here, and the rows here.

    linear : without softmax, by sums over keys (see `costmodels.program.LinearAttention`).
    values, scaled : as `costmodels.program.Attention` has them. answers : makes keys and values
    of rows that are neither, once they are where they are looked at; such rows are all that ranks
    exchange. Without it keys and values lie side by side.
    """

    name: str
    entries: tuple[Entry, ...]
    heads: int
    key_value_heads: int
    size: int
    causal: bool = False
    window: int = 0
    linear: bool = False
    values: int = 0
    scaled: int = 0
    answers: Answers | None = None

    @property
    def value_size(self) -> int:
        """Features of a head of the values."""
        return self.values or self.size

    @property
    def query(self) -> Part:
        return Part(self.heads, self.size)

    @property
    def key_value(self) -> Part:
        return Part(self.key_value_heads, self.size)

    def parts(self, entry: Entry) -> tuple[Part, ...]:
        """List the feature parts of an entry: q, k, v, as far as it has them."""
        query = (self.query,) if entry.has_queries else ()
        return (*query, self.key_value, self.key_value) if entry.has_keys else query


Attend = Callable[[AttentionCall], Emits[list[Tensor]]]
"""Emit an attention; one result tensor for every entry with queries, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a strategy is asked to judge: the request, and the whole plan it is part of."""

    model: Model
    workload: Workload
    share: Share


class Strategy(Protocol):
    """A way to split a request.

    axis : its name in plans. nesting : where the axis stands among others if the links do not
    tell them apart, the outermost lowest. excludes : axes that no plan has beside it. untried :
    axes that the search does not put beside it; a plan that is asked for may have them.
    """

    axis: str
    nesting: int
    excludes: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    def suits(self, model: Model) -> bool:
        """Whether requests for a model can be split so at all."""
        del model
        return True

    def divide(self, share: Share, degree: int) -> Share:
        """Return the share of one of `degree` ranks."""
        ...

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Yield what stands against `degree`, one clause each; nothing where it is legal."""
        ...


class SequenceStrategy(Strategy, Protocol):
    """A way to split the sequence, and to let the ranks exchange in attention."""

    def attend(self, call: AttentionCall, degree: int, inner: Attend) -> Emits[list[Tensor]]:
        """Emit the exchange around `inner`, which sees this axis no more."""
        ...
