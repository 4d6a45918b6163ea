"""Ring Attention: queries stay, keys and values travel once round, merged by online softmax.

Step i of p attends to the chunk of the rank i before this one while that chunk is already being
sent on, so that the transfer runs beside the attention [1]_. Linear attention sums up the chunks.

References
----------
.. [1] Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
   Context", 2023, arXiv:2310.01889
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from costmodels.program import Pointwise, SendReceive, Tensor
from costmodels.program.emit import Emits, concat_rows, pointwise
from planner.strategies.attention import (
    Keys,
    keys_apart,
    partial_attention,
    queries_and_keys,
    read_sums,
    results_of,
    sum_of_keys,
)
from planner.strategies.base import Attend, AttentionCall, Proposal, SequenceStrategy, Share
from planner.strategies.sequence import is_causal, sequence_objections

AXIS = "ring"


class RingAttention(SequenceStrategy):
    """Cut the sequence; pass keys and values round the ring inside attention."""

    axis = AXIS
    nesting = 4
    excludes = ("allgather_kv", "ring_q")

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, sequence=((self.axis, degree), *share.sequence), zigzag=True)

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to uneven tokens, and to windows of causal attention."""
        yield from sequence_objections(proposal, degree, self.axis)
        windows = {tower.window for tower in proposal.model.towers} - {0}
        if is_causal(proposal.model) and windows:
            yield f"a window of {min(windows)} tokens sees few of the keys of {self.axis}{degree}"

    def attend(self, call: AttentionCall, degree: int, inner: Attend) -> Emits[list[Tensor]]:
        """Emit `degree` partial attentions, the transfers between them and the merges."""
        del inner  # a ring is the innermost exchange: its partial attentions are its own
        query, keys = yield from queries_and_keys(call)
        moving, staying = keys_apart(call, keys, AXIS)
        chunk = yield from concat_rows(moving.tensors, f"{call.name}.chunk0")
        if call.linear:
            return (yield from _linear(call, query, chunk, staying.tensors, degree))
        result: tuple[Tensor, Tensor] | None = None
        for step in range(degree):
            next_chunk = yield from passed_on(chunk, f"{call.name}.chunk", step, degree)
            extra_keys = staying if step == 0 else Keys([], ())
            keys_values = yield from concat_rows([chunk, *extra_keys.tensors], f"{chunk.name}.all")
            local_keys = Keys([keys_values], (*moving.spans, *extra_keys.spans))
            partial = yield from partial_attention(call, query, local_keys, (AXIS, step))
            result = partial if result is None else (yield from _merge(call, result, partial, step))
            chunk = next_chunk
        assert result is not None
        out = Tensor(f"{call.name}.out", result[0].shape, query.itemsize)
        yield Pointwise(function="cast", inputs=(result[0],), outputs=(out,))
        return (yield from results_of(call, out))


STRATEGY = RingAttention()


def passed_on(x: Tensor, name: str, step: int, degree: int, axis: str = AXIS) -> Emits[Tensor]:
    """Send what came in a step to the next rank, but in the last one; name what comes then."""
    following = Tensor(f"{name}{step + 1}", x.shape, x.itemsize)
    if step + 1 < degree:
        yield SendReceive(x=x, out=following, axis=axis, degree=degree)
    return following


def _linear(
    call: AttentionCall, query: Tensor, chunk: Tensor, staying: Sequence[Tensor], degree: int
) -> Emits[list[Tensor]]:
    """Add up the states of all chunks as they come by; the queries look once."""
    state: Tensor | None = None
    for step in range(degree):
        next_chunk = yield from passed_on(chunk, f"{call.name}.chunk", step, degree)
        keys_values = yield from concat_rows(
            [chunk, *(staying if step == 0 else [])], f"{chunk.name}.all"
        )
        state_part = yield from sum_of_keys(call, keys_values, f"{call.name}.state{step}")
        if state is not None:
            state_part = yield from pointwise(
                "residual", (state, state_part), f"{call.name}.sum{step}"
            )
        state, chunk = state_part, next_chunk
    assert state is not None
    return (yield from read_sums(call, query, state))


def _merge(
    call: AttentionCall, merged: tuple[Tensor, Tensor], partial: tuple[Tensor, Tensor], step: int
) -> Emits[tuple[Tensor, Tensor]]:
    """Emit an online softmax: weigh two parts by their sums, kept in 32 bits."""
    out = Tensor(f"{call.name}.merged{step}", merged[0].shape, 4)
    total = Tensor(f"{call.name}.total{step}", merged[1].shape, 4)
    yield Pointwise(
        function="merge",
        inputs=(*merged, *partial),
        outputs=(out, total),
        heads=(call.heads, call.heads),
        size=call.value_size,
    )
    return out, total
