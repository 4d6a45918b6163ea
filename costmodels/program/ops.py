"""The vocabulary between strategies, which emit operations, and whoever prices or runs them.

Operations are what *one rank* does, in issue order. They name tensors; an operation depends on the
last one that wrote each tensor it reads, and runs on a stream: ``compute`` or ``comm``.

Sizes may be numpy arrays (a sweep over requests that share one plan): every property here is
arithmetic that broadcasts.
"""

import math
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, cast

from costmodels.expert_routing import Routing
from costmodels.program.tensors import Part, Span, Tensor, Weight
from costmodels.sizes import Real, Size, ceil, larger, largest, where
from topology.base.values import dataclass

StreamName = Literal["compute", "comm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one rank does at a time: it reads tensors and writes others, on a stream."""

    stream: StreamName = "compute"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Tensors that must be there."""
        return ()

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Tensors that are there when it is done."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneToOne(Operation):
    """An operation that makes `out` of `x`."""

    x: Tensor
    out: Tensor

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ManyToMany(Operation):
    """An operation that makes `outputs` of `inputs`."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def traffic(self) -> Real:
        """Bytes read and written once."""
        return sum((tensor.bytes for tensor in (*self.inputs, *self.outputs)), start=0.0)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul(_OneToOne):
    """``out[batch, rows, n] = x[batch, rows, k] weight[k, n]``.

    With `route` each row goes to the experts it names: out is ``[batch, rows, active, n]``, and
    zero where other ranks have the expert. beside : engines may run it while others run, such as
    an expert that all rows pass while they pass those of their choice.
    """

    weight: Weight
    route: Tensor | None = None
    beside: bool = False

    @property
    def m(self) -> Real:
        """Rows of the product, over all experts that are here."""
        return self.out.elements / self.weight.local_columns

    @property
    def flop(self) -> Real:
        return 2.0 * self.out.elements * self.weight.local_rows

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,) if self.route is None else (self.x, self.route)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadProduct(_OneToOne):
    """Each head's features by a matrix of its own, a column part of a weight they share.

    `weight` is ``[rank, part | part ..]``, and `part` the number of the one in use: `heads` of
    `Part.size` features. x ``[batch, rows, heads * (rank + carried)]`` gives out ``[batch, rows,
    heads * (size + carried)]``; with `turned` it is the way back, from size to rank. `carried`
    features at the end of each head stay as they are.
    """

    weight: Weight
    heads: int
    part: int
    turned: bool = False
    carried: int = 0

    @property
    def n(self) -> int:
        """Features of a head that are made."""
        return self.weight.local_rows if self.turned else self.weight.columns[self.part].size

    @property
    def k(self) -> int:
        """Features of a head that are multiplied."""
        return self.weight.columns[self.part].size if self.turned else self.weight.local_rows

    @property
    def m(self) -> Real:
        """Rows of each head's product."""
        return self.x.elements / (self.heads * (self.k + self.carried))

    @property
    def flop(self) -> Real:
        return 2.0 * self.heads * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Operation):
    """Fused attention of q over k and v: ``[batch, rows, heads * size]`` each.

    values : features of a head of v and out, where they are not `size`.
    scaled : features by whose root scores are divided, where they are not `size`.

    spans : where the rows stand in their streams; keys that are padding are masked, and a causal
    query sees keys at its own position and before. `turn` names a ring axis and how many steps
    the keys have travelled: they are those of the rank `turn[1]` before this one; `asks` where the
    queries have, and the keys stayed.
    pairs : share of query-key pairs that is computed (1/2 where causal work is even).
    log_sum_exp : present when the result is to be merged with another part.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    heads: int
    key_value_heads: int
    size: int
    query_spans: tuple[Span, ...]
    key_spans: tuple[Span, ...]
    causal: bool = False
    turn: tuple[str, int] | None = None
    asks: bool = False
    window: int = 0
    pairs: float = 1.0
    log_sum_exp: Tensor | None = None
    values: int = 0
    scaled: int = 0

    @property
    def value_size(self) -> int:
        """Features of a head of the values."""
        return self.values or self.size

    @property
    def queries(self) -> Size:
        return self.q.shape[1]

    @property
    def keys(self) -> Size:
        return self.k.shape[1]

    @property
    def flop(self) -> Real:
        """Scores, then values: 2 batch heads queries keys (size + values), times the share."""
        work = 2.0 * self.heads * (self.size + self.value_size) * self.pairs
        return work * self.q.shape[0] * self.queries * self.keys

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.q, self.k, self.v)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,) if self.log_sum_exp is None else (self.out, self.log_sum_exp)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention(Operation):
    r"""Attention without softmax, through one small state a head in place of all its keys [1]_.

    .. math:: S = relu(K)^T [V | 1], \qquad O = relu(Q) S_V / relu(Q) S_1

    With `part` ``sum`` the inputs are keys and values ``[batch, rows, heads * size]`` and the
    result is S, ``[batch, heads, size, size + 1]``: sums over rows, so that those of ranks with
    different rows add up. ``read`` has queries and S, and gives O ``[batch, rows, heads * size]``.

    References
    ----------
    .. [1] Xie et al., "SANA: Efficient High-Resolution Image Synthesis with Linear Diffusion
       Transformers", 2024, arXiv:2410.10629, section 2.2
    """

    part: Literal["sum", "read"]
    inputs: tuple[Tensor, ...]
    out: Tensor
    heads: int
    size: int

    @property
    def flop(self) -> Real:
        """A product of ``size`` by ``size + 1`` numbers for every row and head."""
        batch, rows, _ = self.inputs[0].shape
        return 2.0 * self.heads * self.size * (self.size + 1) * batch * rows

    @property
    def traffic(self) -> Real:
        """Bytes read and written once."""
        return sum((tensor.bytes for tensor in self.inputs), start=self.out.bytes)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depthwise(_OneToOne):
    """A 3 x 3 convolution of every feature by itself; rows are the points of a grid, line by line.

    x ``[batch, halo + rows + halo, features]``, `weight` ``[9, features]``, out ``[batch, rows,
    features]``. line : points of a line. halo : neighbours' rows before and after those of
    `span`, whole lines that are one at least where the grid is cut. What lies outside the grid
    counts as zero.
    """

    weight: Weight
    span: Span
    line: Size
    halo: Size = 0

    @property
    def flop(self) -> Real:
        return 2.0 * self.weight.local_rows * self.out.elements

    @property
    def traffic(self) -> Real:
        """Bytes read and written once."""
        return self.x.bytes + self.out.bytes + self.weight.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConvolution(Operation):
    """A convolution of every feature by itself over its last tokens, and an activation (SiLU).

    x ``[batch, rows, features]``, kept ``[batch, taps - 1, features]`` the rows before them,
    `weight` ``[taps, features]``, out as x; after: the rows that are kept next.
    """

    x: Tensor
    kept: Tensor
    weight: Weight
    out: Tensor
    after: Tensor

    @property
    def flop(self) -> Real:
        return 2.0 * self.weight.local_rows * self.out.elements

    @property
    def traffic(self) -> Real:
        """Bytes read and written once."""
        state_bytes = self.kept.bytes + self.after.bytes
        return self.x.bytes + self.out.bytes + self.weight.bytes + state_bytes

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x, self.kept)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(Operation):
    r"""One state a head that every token changes and reads, ``[batch, heads, key, value]``.

    Inputs are features and gates of each token, `weight` ``[2, heads]`` a rate and a bias of each
    head; `groups` of heads share keys. The state decays by d = exp(-exp(rate) softplus(gate +
    bias)). ``delta`` has queries, keys and values, and two gates a head: the step size s, through
    a sigmoid, and the decay's; keys and queries of a head have length 1:

    .. math:: S = d S + k (s (v - d S^T k))^T, \qquad o = S^T q / \sqrt{key}

    ``mamba`` has values, what goes into the state and what goes out, and one gate, whose softplus
    is the step size too:

    .. math:: S = d S + s\, b\, x^T, \qquad o = S^T c

    Where there are many tokens kernels take `chunk` of them at once, whose scores and products are
    matrices; the state is written at the end of each.
    """

    kind: Literal["delta", "mamba"]
    inputs: tuple[Tensor, Tensor]
    state: Tensor
    weight: Weight
    out: Tensor
    after: Tensor
    heads: int
    groups: int
    key: int
    value: int
    chunk: int

    @property
    def rows(self) -> Size:
        return self.out.shape[1]

    @property
    def flop(self) -> Real:
        """Products a token and head: with the state one by one, with each other in chunks."""
        products, pairs = (3, 2 * self.key + self.value) if self.kind == "delta" else (2, self.key)
        product = 2.0 * products * self.key * self.value
        chunk_work = product + 2.0 * self.chunk * (pairs + self.value)
        return (
            self.heads * self.out.shape[0] * self.rows * where(self.rows > 1, chunk_work, product)
        )

    @property
    def traffic(self) -> Real:
        """Bytes read and written once; in chunks the states between them too."""
        tensor_bytes = sum((tensor.bytes for tensor in (*self.inputs, self.out)), start=0.0)
        inner_states = larger(ceil(self.rows / self.chunk) - 1.0, 0.0)
        return tensor_bytes + (1 + inner_states) * (self.state.bytes + self.after.bytes)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (*self.inputs, self.state)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out, self.after)


Function = Literal[
    "norm",  # rms norm of x
    "modulated_norm",  # norm of x, scaled and shifted by a conditioning row
    "head_norm",  # rms norm of every head
    "squares",  # sums of squares over all heads of q, and of k, in 32 bits
    "across_norm",  # rms norm of all heads of q together, and of k, by such sums; v as it is
    "rotary",  # per-head norm of q and k, rotary embedding by position; v as it is
    "rotary_tail",  # rotary embedding of the last `place` features of every head
    "latent",  # rms norm of all but the last `place` features, rotary embedding of those
    "gelu",
    "gelu_erf",  # by the error function itself
    "silu",
    "relu2",
    "silu_gated",  # silu(first half) * second half
    "residual",  # x + y
    "difference",  # x - y
    "gated_residual",  # x + gate * y
    "gated",  # x * sigmoid(gate)
    "gated_norm",  # rms norm of every `size` features of x, times silu(gate)
    "merge",  # online-softmax merge of two attention parts
    "merge_all",  # the same of [parts, b, r, heads * size | heads], with log-sum-exps at the end
    "route",  # top experts and their weights
    "combine",  # weighted sum over experts
    "guidance",  # unconditional + scale * (conditional - unconditional)
    "step",  # one step of the sampler
    "count",  # x + 1
    "cast",
    "offset",  # x and a row of numbers that a checkpoint has, in 32 bits
    "waves",  # cosines, then sines of a number by `factor` and falling frequencies
    "scale",  # divided by `place`
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(_ManyToMany):
    """Work a row at a time, bound by memory traffic: `function` of `inputs` gives `outputs`.

    spans : positions of the rows, for rotary embedding. heads, size : of q and k, likewise.
    place : which of a conditioning row's vectors are used; or features that are turned; or ranks
    whose heads are normed together. factor : that numbers are multiplied by. epsilon : added to a
    norm's mean square, where it is not the model's usual one.
    """

    function: Function
    spans: tuple[Span, ...] = ()
    heads: tuple[int, int] = (0, 0)
    size: int = 0
    place: int = 0
    factor: float = 1.0
    epsilon: float = 0.0

    @property
    def turned(self) -> int:
        """Features of a head that rotary embedding turns."""
        return self.place if self.function in ("rotary_tail", "latent") else self.size


Move = Literal[
    "split_features",  # [b, r, f0 + f1 + ..] -> views
    "concat_features",
    "concat_heads",  # [b, r, heads * f], and [b, r, g] for all -> [b, r, heads * (f + g)]
    "concat_rows",
    "split_rows",  # views
    "regroup",  # [b, r, f] -> [c, b * r / c, f], in the same order; a view
    "interleave",  # features of `degree` points one after the other -> all points of each feature
    "shard",  # whole streams -> this rank's rows, padded
    "heads",  # [b, r, f] -> the features of this rank's heads
    "pack_heads",  # row blocks -> [parts, b, r, f / parts]: heads cut over ranks
    "unpack_rows",  # [parts, b, r, f] -> [b, rows of whole streams, f], padding dropped
    "pack_rows",  # the way back
    "unpack_heads",  # [parts, b, r, f] -> [b, r, parts * f], by part
    "stack",  # [b, r, f] -> [1, b, r, f]
    "unstack",  # the way back
    "store",  # keep a tensor of this layer and forward for later
    "load",  # what was stored
    "keep",  # tensors of this layer and forward in place of those kept before
    "recall",  # what was kept; zeros where nothing is yet
    "append",  # what was stored with new rows behind it; keeps the result
    "place",  # [b, r, f] and some of its rows -> the same with these in their places
    "turn",  # [b, turns, f] and the number of one -> [b, 1, f]
    "collect",  # the forwards' predictions of one step, [forwards, ..]
    "last",  # the row here that stands last in the stream
    "latest",  # [parts, b, 1, f] -> the one of them that stands last
    "hop",  # [parts, b, r, f] -> the one of the rank that stands `turn` before this one; a view
    "homeward",  # [b, r, f] of each step of a ring -> [parts, b, r, f]: by rank that asked
    "borders",  # [b, r, f] -> [1, b, 2 * halo, f]: the rows at both ends
    "surround",  # rows, and the borders of all ranks in order -> neighbours' rows at both ends
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearrange(_ManyToMany):
    """Move data without computing. A `view` costs nothing; anything else is read and written.

    axis, degree : the ranks among which rows or heads are cut. parts : features that are cut
    separately (q, k, v). spans : the rows, before and after. turn : ranks back, of a hop.
    """

    move: Move
    axis: str = ""
    degree: int = 1
    parts: tuple[Part, ...] = ()
    spans: tuple[Span, ...] = ()
    turn: int = 0
    view: bool = False

    @property
    def traffic(self) -> Real:
        # A class with slots is made anew, which `super()` alone does not know.
        return 0.0 if self.view else super(Rearrange, self).traffic  # noqa: UP008


CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
    "scatter",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTokens:
    """What a collective carries for a layer of experts that are spread over all of its ranks.

    Each rank's tokens go to the ranks of their experts (all_gather), or results come back
    (reduce_scatter). What carries no more than a token's own experts need does as well.
    features : of a token. precision : of the inputs of experts.
    """

    routing: Routing
    features: int
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(_OneToOne):
    """A collective among the `degree` ranks along `axis`, on dimension 0, as NCCL has it.

    weights : of a layer, where it gathers the parts of these that ranks hold.

    all_reduce keeps the shape; all_gather ``[1, ..] -> [degree, ..]``; reduce_scatter the way
    back; all_to_all ``[degree, ..]`` both before and after.
    """

    kind: CollectiveKind
    axis: str
    degree: int
    root: int = 0
    tokens: ExpertTokens | None = None
    weights: tuple[Weight, ...] = ()

    @property
    def message_bytes(self) -> Real:
        """What nccl-tests prints as size: the larger of the two buffers of one rank."""
        return larger(self.x.bytes, self.out.bytes)

    @property
    def rows(self) -> Real:
        """Count the rows of one rank."""
        local = self.x if self.kind == "all_gather" else self.out
        return cast(Real, math.prod(local.shape[:-1], start=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceive(_OneToOne):
    """Send x to the rank `offset` further along `axis` while its like arrives in out.

    In a pipeline (`ends`) nothing leaves the last rank and nothing reaches the first.
    """

    kind: ClassVar[Literal["send_recv"]] = "send_recv"
    axis: str
    degree: int
    offset: int = 1
    ends: bool = False
    stream: StreamName = "comm"

    @property
    def message_bytes(self) -> Real:
        return self.x.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolve(Operation):
    """Convolutions of a VAE, known by their total work and traffic alone; priced, never run.

    planes : two-dimensional, as images have them; video decoders also run along time.
    eager : FLOP for which eager code keeps a multiprocessor a cycle with other work, such as norms
    and copies, after the products; 0 where none is known.
    passes : bytes that eager code moves after the products, where those are known.
    """

    name: str
    flop: Real
    traffic: Real
    planes: bool = False
    eager: float = 0.0
    passes: Real = 0.0


Communication = Collective | SendReceive
Op = (
    Matmul
    | CausalConvolution
    | Recurrence
    | HeadProduct
    | Attention
    | LinearAttention
    | Depthwise
    | Pointwise
    | Rearrange
    | Collective
    | SendReceive
    | Convolve
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`count` turns of `body`; a body may hold loops.

    layers : each turn has its own weights. first : number of the first turn. keeps : turns that
    keep tensors of their own for later, where these are not layers.
    """

    name: str
    count: Size
    body: tuple["Op | Loop", ...]
    layers: bool = False
    first: int = 0
    keeps: int = 1

    def walk(self) -> Iterator[Op]:
        """Yield every operation once, inner loops entered once."""
        for item in self.body:
            if isinstance(item, Loop):
                yield from item.walk()
            else:
                yield item

    def nested(self, around: tuple["Loop", ...] = ()) -> Iterator[tuple[Op, tuple["Loop", ...]]]:
        """Yield every operation once, with the loops that it stands in, outermost first."""
        loops = (*around, self)
        for item in self.body:
            if isinstance(item, Loop):
                yield from item.nested(loops)
            else:
                yield item, loops


def turns(loops: Iterable[Loop]) -> int:
    """Count how often something in these loops is run, in the longest of a sweep's requests.

    >>> turns([Loop(name="steps", count=3, body=()), Loop(name="layers", count=4, body=())])
    12
    """
    counts = (loop.count for loop in loops)
    return math.prod(int(largest(count)) for count in counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one rank does for one request: stages in order.

    axes : the plan's, outermost first; rank = mixed-radix number of the indices along them.
    inputs : whole tensors that every rank is given. output : what every rank ends with.
    """

    axes: tuple[tuple[str, int], ...]
    stages: tuple[Loop, ...]
    inputs: tuple[Tensor, ...]
    output: Tensor

    @property
    def transformer(self) -> tuple[Loop, ...]:
        """The stages without text encoders and VAE, which other code runs."""
        return tuple(s for s in self.stages if s.name not in ("text_encode", "vae_decode"))

    @property
    def ranks(self) -> int:
        return math.prod(degree for _, degree in self.axes)
