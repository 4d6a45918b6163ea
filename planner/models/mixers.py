"""What a layer mixes tokens with, and what it keeps of a sequence for the tokens that follow.

Softmax attention keeps keys and values of every token (`Heads`), or one compressed row of them
(`LatentAttention`), beside which an `Indexer` may keep a key to choose by. A recurrence
(`DeltaRule`, `Mamba`) keeps a state of one size, however long the sequence is.
"""

from math import inf

from costmodels.sizes import Real, Size
from topology.base.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one layer keeps of one sequence.

    row : numbers of each token: keys and values, or their compressed row. window : the most tokens
    that are kept, the last ones; 0 for all. indexed : bytes of each token for an indexer.
    state : bytes whatever the length of the sequence.
    """

    row: int = 0
    window: int = 0
    indexed: int = 0
    state: int = 0

    def tokens(self, length: Size) -> Real:
        """Count the tokens that are kept of a sequence of `length` tokens.

        >>> Kept(row=8, window=128).tokens(1000), Kept(row=8).tokens(1000), Kept(state=4).tokens(9)
        (128.0, 1000.0, 0.0)
        """
        if not self.row:
            return 0.0
        limit = self.window or inf
        if isinstance(length, int | float):
            return float(min(length, limit))
        import numpy as np  # noqa: PLC0415  # what describes a model needs no arrays

        kept_tokens = np.minimum(np.asarray(length, float), limit)
        return float(kept_tokens) if kept_tokens.ndim == 0 else kept_tokens

    def bytes(self, length: Size, itemsize: int = 2) -> Real:
        """Count the bytes that are kept of a sequence of `length` tokens.

        itemsize : bytes of a number of a row, as the cache has them.
        """
        return self.tokens(length) * (self.row * itemsize + self.indexed) + self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads: `query` and `key_value` counts of `size` features each."""

    query: int
    key_value: int
    size: int

    @property
    def query_width(self) -> int:
        return self.query * self.size

    @property
    def key_value_width(self) -> int:
        return self.key_value * self.size

    def row(self, degree: int = 1) -> int:
        """Count the keys and values of a token on one of `degree` ranks; each has a head at least.

        >>> heads = Heads(query=64, key_value=8, size=128)
        >>> heads.row(), heads.row(4), heads.row(16)
        (2048, 512, 256)
        """
        return 2 * max(1, self.key_value // degree) * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: low-rank queries and one shared compressed key-value row.

    query_rank : features that queries come through, 0 where they come straight from the token.
    key_value_rank : features that keys and values come through. content_size, rotary_size :
    features of a query or key of a head without and with position; the latter are one key for all
    heads. value_size : features of a value of a head.
    """

    query_rank: int
    key_value_rank: int
    content_size: int
    rotary_size: int
    value_size: int

    @property
    def score_size(self) -> int:
        """Count the features of a head of queries and keys."""
        return self.content_size + self.rotary_size

    @property
    def row_size(self) -> int:
        """Count what is kept of a token, whole on every rank: the low-rank row and its position.

        >>> LatentAttention(query_rank=1536, key_value_rank=512, content_size=128,
        ...                 rotary_size=64, value_size=128).row_size
        576
        """
        return self.key_value_rank + self.rotary_size

    def parameters(self, hidden: int, heads: int) -> int:
        """Count the weights of an attention of `heads` over `hidden` features a token."""
        score, rank = heads * self.score_size, self.query_rank
        queries = hidden * rank + rank * score if rank else hidden * score
        down = hidden * self.row_size
        up = self.key_value_rank * heads * (self.content_size + self.value_size)
        return queries + down + up + heads * self.value_size * hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Choice of the keys that a query sees (DeepSeek's sparse attention), by small attention.

    heads : of a query, of `size` features, from the query's low-rank row; one key of `size` a
    token is kept in 8 bits beside a 32-bit scale, whole on every rank. chosen : the most keys that
    a query sees. reused : the layer looks at what an earlier one chose, and has no indexer itself.
    """

    heads: int
    size: int
    chosen: int
    reused: bool = False

    @property
    def kept(self) -> int:
        """Count the bytes that are kept of a token."""
        return 0 if self.reused else self.size + 4

    def parameters(self, hidden: int, query_rank: int) -> int:
        """Count the weights: queries, keys and their norm, and a weight for each head."""
        if self.reused:
            return 0
        queries = (query_rank or hidden) * self.heads * self.size
        return queries + hidden * self.size + 2 * self.size + hidden * self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """Gated delta rule: each value head has a state, a matrix from its key to its value.

    Keys and queries have `key_heads` of `key_size` features and are shared by as many value heads
    each; values have `value_heads` of `value_size`. A causal convolution over `kernel` tokens runs
    over each feature of queries, keys and values first; the result is normed and gated by a
    projection as wide as the values, and each value head has a decay and a step size a token.
    itemsize : bytes of a number of the state.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int
    itemsize: int = 4

    @property
    def heads(self) -> Heads:
        """Give the heads that tensor parallelism cuts."""
        return Heads(query=self.value_heads, key_value=self.key_heads, size=self.value_size)

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_size

    @property
    def convolved(self) -> int:
        """Count the features that the convolution runs over: queries, keys and values."""
        return 2 * self.key_heads * self.key_size + self.value_width

    @property
    def state(self) -> int:
        """Count the numbers of a sequence's state."""
        return self.value_heads * self.key_size * self.value_size

    def parameters(self, hidden: int) -> int:
        """Count all weights of a layer's mixer over `hidden` features a token."""
        projections = self.convolved + self.value_width + 2 * self.value_heads
        small = self.kernel * self.convolved + 2 * self.value_heads + self.value_size
        return hidden * projections + small + self.value_width * hidden

    def kept(self, degree: int = 1) -> int:
        """Count bytes of state and of the convolution's last inputs on one of `degree` ranks."""
        return _recurrence_bytes(self.state, self.convolved, self.kernel, self.itemsize, degree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """Mamba-2: each of `count` heads of `size` features has a state of `size` x `state_size`.

    Inputs and outputs of the state (B and C) have `state_size` features, and `groups` of heads
    share them. A causal convolution over `kernel` tokens, with a bias, runs over each feature of
    the heads, B and C first; the result is gated by a projection as wide as the heads, and normed.
    chunk : tokens that are run at once where there are many. itemsize : bytes of a number of the
    state.
    """

    count: int
    size: int
    groups: int
    state_size: int
    kernel: int
    chunk: int
    itemsize: int = 4

    @property
    def heads(self) -> Heads:
        """Give the heads that tensor parallelism cuts."""
        return Heads(query=self.count, key_value=self.groups, size=self.size)

    @property
    def inner(self) -> int:
        """Count the features of all heads."""
        return self.count * self.size

    @property
    def convolved(self) -> int:
        """Count the features that the convolution runs over: the heads, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def state(self) -> int:
        """Count the numbers of a sequence's state."""
        return self.inner * self.state_size

    def parameters(self, hidden: int) -> int:
        """Count all weights of a layer's mixer over `hidden` features a token."""
        projections = self.convolved + self.inner + self.count
        small = (self.kernel + 1) * self.convolved + 3 * self.count + self.inner
        return hidden * projections + small + self.inner * hidden

    def kept(self, degree: int = 1) -> int:
        """Count bytes of state and of the convolution's last inputs on one of `degree` ranks."""
        return _recurrence_bytes(self.state, self.convolved, self.kernel, self.itemsize, degree)


def _recurrence_bytes(state: int, convolved: int, kernel: int, itemsize: int, degree: int) -> int:
    """Count bytes of a recurrence; its convolution keeps inputs in 16 bits."""
    return (state * itemsize + (kernel - 1) * convolved * 2) // degree
