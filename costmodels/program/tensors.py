"""What an operation is about: tensors, the rows and features of one rank, and weights.

Sizes may be numpy arrays (a sweep over requests that share one plan).
"""

import math
from collections.abc import Mapping
from typing import Literal, cast

from costmodels.formats import FORMATS
from costmodels.sizes import Real, Size, ceil_div
from topology.base.values import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value on one rank: its name, its shape there and bytes an element.

    Activations are ``[batch, rows, features]``; rows are tokens. `filled`: share of the rows that
    are there on average, where experts elsewhere have the rest; others are zeros, and cost nothing.
    """

    name: str
    shape: tuple[Size, ...]
    itemsize: float = 2
    filled: float = 1.0

    @property
    def elements(self) -> Real:
        full_size = cast(Real, math.prod(self.shape, start=1.0))
        return full_size if self.filled == 1.0 else full_size * self.filled

    @property
    def bytes(self) -> Real:
        return self.elements * self.itemsize


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one stream that a rank holds: its chunk of `tokens`, cut over the sequence `axes`.

    The stream is padded at its end to `grain` equal chunks, the finest cut of the plan; a rank
    holds `grain` / `parts` neighbouring ones, in the order of its indices along `axes`, outermost
    first. With `zigzag` the outermost axis, of degree p, cuts the padded stream into 2 p pieces
    and index i holds pieces i and 2 p - 1 - i, so that causal work is even; inner axes cut what
    it holds. No axes: the whole stream, without padding. `start` is its first token's position.
    `copies`: so many sequences stand end to end, each with these rows; those are not cut.

    >>> Span("text", 10, (("ring", 2), ("ulysses", 2)), 4).rows
    3
    >>> Span("text", 10, (("ring", 2),), 4).rows  # two chunks of three
    6
    >>> Span("text", 10).rows, Span("text", 10, copies=3).rows
    (10, 30)
    """

    stream: str
    tokens: Size
    axes: tuple[tuple[str, int], ...] = ()
    grain: int = 1
    zigzag: bool = False
    start: Size = 0
    copies: Size = 1

    @property
    def parts(self) -> int:
        return math.prod(degree for _, degree in self.axes)

    @property
    def rows(self) -> Size:
        """Rows on one rank, padding included."""
        if not self.axes:
            return self.tokens * self.copies
        return self.padded // self.parts

    @property
    def padded(self) -> Size:
        """Rows of the whole stream with its padding."""
        return ceil_div(self.tokens, self._pieces) * self._pieces

    @property
    def divided(self) -> Size:
        """Rows of the longest stream that is no longer and needs no padding."""
        return self.tokens // self._pieces * self._pieces if self.axes else self.tokens

    @property
    def _pieces(self) -> int:
        return 2 * self.grain if self.zigzag else self.grain

    def within(self, axis: str) -> "Span":
        """Return the span left when the ranks along `axis` have put their rows together."""
        remaining_axes = tuple(pair for pair in self.axes if pair[0] != axis)
        zigzag = self.zigzag and bool(remaining_axes)
        return Span(self.stream, self.tokens, remaining_axes, self.grain, zigzag, self.start)


@dataclass(frozen=True, slots=True)
class Part:
    """Features of a weight that are cut in whole units: `units` heads of `size`, or FFN columns.

    Cut over `degree` ranks, each holds `units` / `degree` of them, rounded up: what the last ranks
    hold beyond the end is zeros. When there are fewer units than ranks (grouped keys and values) a
    unit is repeated on neighbouring ranks.
    """

    units: int
    size: int = 1

    def local(self, degree: int) -> int:
        """Features on one of `degree` ranks.

        >>> Part(8, 128).local(4), Part(2, 128).local(8), Part(10).local(4)
        (256, 128, 3)
        """
        return -(-self.units // degree) * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A matrix ``[rows, columns]``, of which one rank holds the share that `split` says.

    `experts` such matrices stand in a stack when there is more than one; each of `groups` groups of
    ranks has as many of its own, and each matrix is cut over the `degree` ranks of a group. axes :
    of all these ranks, outermost first; left out for ``tp`` alone. `layered`: the matrix is a
    different one at every turn of the enclosing loop over layers. precision : one of
    `costmodels.formats.FORMATS`; empty for the 16-bit one of the device. group : inputs that share
    a scale, 0 for as many as is usual. copies : of experts, which are among their number.
    """

    name: str
    rows: tuple[Part, ...]
    columns: tuple[Part, ...]
    split: Literal["none", "rows", "columns"] = "none"
    degree: int = 1
    experts: int = 1
    copies: int = 0
    groups: int = 1
    axes: tuple[tuple[str, int], ...] = ()
    layered: bool = True
    precision: str = ""
    group: int = 0

    def place(self, index: Mapping[str, int]) -> tuple[int, int]:
        """Group of experts that a rank has, and which piece of each of them.

        >>> weight = Weight(name="up", rows=(), columns=(), degree=2, experts=8, groups=4,
        ...                 axes=(("adp", 4), ("tp", 2)))
        >>> weight.place({"adp": 2, "tp": 1}), weight.local_experts
        ((2, 1), 2)
        """
        if not self.axes:
            return 0, index.get("tp", 0)
        number = 0
        for axis, degree in self.axes:
            number = number * degree + index.get(axis, 0)
        return divmod(number, self.degree)

    @property
    def local_experts(self) -> int:
        """Matrices of the stack that one rank has a share of."""
        return self.experts // self.groups

    @property
    def itemsize(self) -> float:
        """Bytes of an element, scales included."""
        return FORMATS[self.precision].grouped(self.group) if self.precision else 2.0

    @property
    def local_rows(self) -> int:
        degree = self.degree if self.split == "rows" else 1
        return sum(part.local(degree) for part in self.rows)

    @property
    def local_columns(self) -> int:
        degree = self.degree if self.split == "columns" else 1
        return sum(part.local(degree) for part in self.columns)

    @property
    def bytes(self) -> float:
        return self.itemsize * self.local_experts * self.local_rows * self.local_columns
