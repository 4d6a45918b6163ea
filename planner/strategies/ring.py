"""Ring Attention: queries stay, keys and values travel once round, merged by online softmax.

Step i of p attends to the chunk of the rank i before this one while that chunk is already being
sent on, so that the transfer runs beside the attention [1]_. Linear attention sums up the chunks.

References
----------
.. [1] Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
   Context", 2023, arXiv:2310.01889
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from costmodels.program.emit import Emits, concat_rows, pointwise, split_features
from costmodels.program.ops import Attention, Pointwise, SendReceive, Span, Tensor
from planner.strategies.base import Attend, Case, Meeting, Share
from planner.strategies.linear import read, summed
from planner.strategies.sequence import is_cut, sequence_objections
from planner.strategies.softmax import ask, query_spans, release

AXIS = "ring"


@dataclass(frozen=True, slots=True)
class Ring:
    """Cut the sequence; pass keys and values round the ring inside attention."""

    name: str = AXIS

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, sequence=((AXIS, degree), *share.sequence))

    def objections(self, case: Case, degree: int) -> Iterator[str]:
        """Object to uneven tokens, and to AllGather-KV beside Ring."""
        yield from sequence_objections(case, degree, AXIS)
        if "allgather_kv" in dict(case.share.sequence):
            yield "ring and allgather_kv both gather keys and values: choose one"

    def attend(self, meeting: Meeting, degree: int, inner: Attend) -> Emits[list[Tensor]]:
        """Emit `degree` partial attentions, the transfers between them and the merges."""
        del inner  # a ring is the innermost exchange: its partial attentions are its own
        query, answers = yield from ask(meeting)
        answering = [entry for entry in meeting.entries if entry.answers]
        own = [a for e, a in zip(answering, answers, strict=True) if is_cut(e, AXIS)]
        stay = [a for e, a in zip(answering, answers, strict=True) if not is_cut(e, AXIS)]
        moving = tuple(s for e in answering if is_cut(e, AXIS) for s in e.spans)
        staying = tuple(s for e in answering if not is_cut(e, AXIS) for s in e.spans)
        chunk = yield from concat_rows(own, f"{meeting.name}.chunk0")
        if meeting.linear:
            pieces = yield from _linear(meeting, query, chunk, stay, degree)
            return pieces
        asking = query_spans(meeting.entries)
        result: tuple[Tensor, Tensor] | None = None
        for step in range(degree):
            following = Tensor(f"{meeting.name}.chunk{step + 1}", chunk.shape, chunk.itemsize)
            if step + 1 < degree:
                yield SendReceive(x=chunk, out=following, axis=AXIS, degree=degree)
            both = yield from concat_rows(
                [chunk, *(stay if step == 0 else [])], f"{chunk.name}.all"
            )
            spans = (*moving, *(staying if step == 0 else ()))
            part = yield from _partial(meeting, query, both, (asking, spans), step)
            result = part if result is None else (yield from _merge(meeting, result, part, step))
            chunk = following
        assert result is not None
        out = Tensor(f"{meeting.name}.out", query.shape, query.itemsize)
        yield Pointwise(function="cast", inputs=(result[0],), outputs=(out,))
        pieces = yield from release(meeting, out)
        return pieces


def _linear(
    meeting: Meeting, query: Tensor, chunk: Tensor, stay: Sequence[Tensor], degree: int
) -> Emits[list[Tensor]]:
    """Add up the states of all chunks as they come by; the queries look once."""
    state: Tensor | None = None
    for step in range(degree):
        following = Tensor(f"{meeting.name}.chunk{step + 1}", chunk.shape, chunk.itemsize)
        if step + 1 < degree:
            yield SendReceive(x=chunk, out=following, axis=AXIS, degree=degree)
        both = yield from concat_rows([chunk, *(stay if step == 0 else [])], f"{chunk.name}.all")
        part = yield from summed(meeting, both, f"{meeting.name}.state{step}")
        if state is not None:
            part = yield from pointwise("residual", (state, part), f"{meeting.name}.sum{step}")
        state, chunk = part, following
    assert state is not None
    pieces = yield from read(meeting, query, state)
    return pieces


def _partial(
    meeting: Meeting,
    query: Tensor,
    both: Tensor,
    spans: tuple[Sequence[Span], Sequence[Span]],
    step: int,
) -> Emits[tuple[Tensor, Tensor]]:
    """Attention to one chunk, with the log-sum-exp that the merge needs."""
    width = meeting.key_value.units * meeting.key_value.size
    key, value = yield from split_features(
        both, (width, width), (f"{both.name}.k", f"{both.name}.v")
    )
    out = Tensor(f"{meeting.name}.part{step}", query.shape, query.itemsize)
    total = Tensor(f"{meeting.name}.lse{step}", (*query.shape[:2], meeting.heads), 4)
    yield Attention(
        q=query,
        k=key,
        v=value,
        out=out,
        heads=meeting.heads,
        key_value_heads=meeting.key_value_heads,
        size=meeting.size,
        query_spans=tuple(spans[0]),
        key_spans=tuple(spans[1]),
        causal=meeting.causal,
        turn=(AXIS, step),
        window=meeting.window,
        pairs=0.5 if meeting.causal else 1.0,
        log_sum_exp=total,
    )
    return out, total


def _merge(
    meeting: Meeting, so_far: tuple[Tensor, Tensor], part: tuple[Tensor, Tensor], step: int
) -> Emits[tuple[Tensor, Tensor]]:
    """Online softmax: weigh two parts by their sums; kept in 32 bits."""
    out = Tensor(f"{meeting.name}.merged{step}", so_far[0].shape, 4)
    total = Tensor(f"{meeting.name}.total{step}", so_far[1].shape, 4)
    yield Pointwise(
        function="merge",
        inputs=(*so_far, *part),
        outputs=(out, total),
        heads=(meeting.heads, meeting.heads),
        size=meeting.size,
    )
    return out, total
