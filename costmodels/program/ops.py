"""The vocabulary between strategies, which emit operations, and whoever prices or runs them.

Operations are what *one rank* does, in issue order. They name tensors; an operation depends on the
last one that wrote each tensor it reads, and runs on a stream: ``compute`` or ``comm``.

Sizes may be numpy arrays (a sweep over requests that share one plan): every property here is
arithmetic that broadcasts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from costmodels.program.linear import Depthwise, LinearAttention
from costmodels.program.tensors import Part, Real, Size, Span, Tensor, Weight, ceil_div

__all__ = [
    "Attention", "Collective", "CollectiveKind", "Convolve", "Depthwise", "Function",
    "LinearAttention", "Loop", "Matmul", "Move", "Op", "Part", "Pointwise", "Program", "Real",
    "Rearrange", "SendReceive", "Size", "Span", "StreamName", "Tensor", "Weight", "ceil_div",
]  # fmt: skip

StreamName = Literal["compute", "comm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """``out[batch, rows, n] = x[batch, rows, k] weight[k, n]``.

    With `route` each row goes to the experts it names: out is ``[batch, rows, active, n]``.
    """

    x: Tensor
    weight: Weight
    out: Tensor
    route: Tensor | None = None
    stream: StreamName = "compute"

    @property
    def m(self) -> Real:
        """Rows of the product, over all experts."""
        return self.out.elements / self.weight.local_columns

    @property
    def flop(self) -> Real:
        return 2.0 * self.out.elements * self.weight.local_rows

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,) if self.route is None else (self.x, self.route)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Fused attention of q over k and v: ``[batch, rows, heads * size]`` each.

    spans : where the rows stand in their streams; keys that are padding are masked, and a causal
    query sees keys at its own position and before. `turn` names a ring axis and how many steps
    the keys have travelled: they are those of the rank `turn[1]` before this one.
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
    window: int = 0
    pairs: float = 1.0
    log_sum_exp: Tensor | None = None
    stream: StreamName = "compute"

    @property
    def queries(self) -> Size:
        return self.q.shape[1]

    @property
    def keys(self) -> Size:
        return self.k.shape[1]

    @property
    def flop(self) -> Real:
        """Scores, then values: 4 batch heads queries keys size, times the share computed."""
        work = 4.0 * self.heads * self.size * self.pairs
        return work * self.q.shape[0] * self.queries * self.keys

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.q, self.k, self.v)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,) if self.log_sum_exp is None else (self.out, self.log_sum_exp)


Function = Literal[
    "norm",  # rms norm of x
    "modulated_norm",  # norm of x, scaled and shifted by a conditioning row
    "head_norm",  # rms norm of every head
    "rotary",  # per-head norm of q and k, rotary embedding by position; v as it is
    "gelu",
    "silu",
    "relu2",
    "silu_gated",  # silu(first half) * second half
    "residual",  # x + y
    "gated_residual",  # x + gate * y
    "merge",  # online-softmax merge of two attention parts
    "route",  # top experts and their weights
    "combine",  # weighted sum over experts
    "guidance",  # unconditional + scale * (conditional - unconditional)
    "step",  # one step of the sampler
    "cast",
    "scale",  # divided by `place`
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise:
    """Work a row at a time, bound by memory traffic: `function` of `inputs` gives `outputs`.

    spans : positions of the rows, for rotary embedding. heads, size : of q and k, likewise.
    place : which of a conditioning row's vectors are used.
    """

    function: Function
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    spans: tuple[Span, ...] = ()
    heads: tuple[int, int] = (0, 0)
    size: int = 0
    place: int = 0
    stream: StreamName = "compute"

    @property
    def traffic(self) -> Real:
        """Bytes read and written once."""
        total: Real = 0.0
        for tensor in (*self.inputs, *self.outputs):
            total = total + tensor.bytes
        return total

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return self.outputs


Move = Literal[
    "split_features",  # [b, r, f0 + f1 + ..] -> views
    "concat_features",
    "concat_rows",
    "split_rows",  # views
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
    "append",  # what was stored with new rows behind it; keeps the result
    "collect",  # the forwards' predictions of one step, [forwards, ..]
    "last",  # the row here that stands last in the stream
    "latest",  # [parts, b, 1, f] -> the one of them that stands last
    "hop",  # [parts, b, r, f] -> the one of the rank that stands `turn` before this one; a view
    "borders",  # [b, r, f] -> [1, b, 2 * halo, f]: the rows at both ends
    "surround",  # rows, and the borders of all ranks in order -> neighbours' rows at both ends
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearrange:
    """Move data without computing. A `view` costs nothing; anything else is read and written.

    axis, degree : the ranks among which rows or heads are cut. parts : features that are cut
    separately (q, k, v). spans : the rows, before and after. turn : ranks back, of a hop.
    """

    move: Move
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    axis: str = ""
    degree: int = 1
    parts: tuple[Part, ...] = ()
    spans: tuple[Span, ...] = ()
    turn: int = 0
    view: bool = False
    stream: StreamName = "compute"

    @property
    def traffic(self) -> Real:
        total: Real = 0.0
        if not self.view:
            for tensor in (*self.inputs, *self.outputs):
                total = total + tensor.bytes
        return total

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return self.outputs


CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
    "scatter",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective among the `degree` ranks along `axis`, on dimension 0, as NCCL has it.

    all_reduce keeps the shape; all_gather ``[1, ..] -> [degree, ..]``; reduce_scatter the way
    back; all_to_all ``[degree, ..]`` both before and after.
    """

    kind: CollectiveKind
    x: Tensor
    out: Tensor
    axis: str
    degree: int
    root: int = 0
    stream: StreamName = "compute"

    @property
    def message_bytes(self) -> Real:
        """What nccl-tests prints as size: the larger of the two buffers of one rank."""
        return np.maximum(self.x.bytes, self.out.bytes)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceive:
    """Send x to the rank `offset` further along `axis` while its like arrives in out.

    In a pipeline (`ends`) nothing leaves the last rank and nothing reaches the first.
    """

    x: Tensor
    out: Tensor
    axis: str
    degree: int
    offset: int = 1
    ends: bool = False
    stream: StreamName = "comm"

    @property
    def message_bytes(self) -> Real:
        return self.x.bytes

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolve:
    """Convolutions of a VAE, known by their total work and traffic alone; priced, never run.

    planes : two-dimensional, as images have them; video decoders also run along time.
    """

    name: str
    flop: Real
    traffic: Real
    planes: bool = False
    stream: StreamName = "compute"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return ()

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return ()


Op = (
    Matmul
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

    layers : each turn has its own weights. first : number of the first turn.
    """

    name: str
    count: Size
    body: tuple["Op | Loop", ...]
    layers: bool = False
    first: int = 0

    def walk(self) -> Iterator[Op]:
        """Every operation once, inner loops entered once."""
        for item in self.body:
            if isinstance(item, Loop):
                yield from item.walk()
            else:
                yield item


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
    def ranks(self) -> int:
        ranks = 1
        for _, degree in self.axes:
            ranks *= degree
        return ranks
