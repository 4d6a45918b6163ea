"""AllGather-KV: queries stay, every rank gathers all keys and values once a layer.

One collective of the keys and values, packed; with grouped queries it can move fewer bytes than
Ulysses. Llama 3 was trained so [1]_, and TensorRT's own context parallelism works so. Of linear
attention the sums over keys and values are added up instead, by an all-reduce that is the same
size however long the sequence is.

References
----------
.. [1] Grattafiori et al., "The Llama 3 Herd of Models", 2024, arXiv:2407.21783, section 3.3.2
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from costmodels.program.emit import Emits, collective, concat_rows, move, total_rows
from costmodels.program.ops import Span, Tensor
from planner.strategies.base import Attend, Case, Meeting, Share
from planner.strategies.linear import read, summed
from planner.strategies.sequence import is_cut, sequence_objections
from planner.strategies.softmax import ask, attention, query_spans, release

AXIS = "allgather_kv"


@dataclass(frozen=True, slots=True)
class AllGatherKV:
    """Cut the sequence; gather keys and values before attention."""

    name: str = AXIS

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, sequence=((AXIS, degree), *share.sequence))

    def objections(self, case: Case, degree: int) -> Iterator[str]:
        """Object to uneven tokens."""
        yield from sequence_objections(case, degree, AXIS)

    def attend(self, meeting: Meeting, degree: int, inner: Attend) -> Emits[list[Tensor]]:
        """Emit the gather and one attention to all keys."""
        del inner  # what is left after the gather is plain attention of other rows to all keys
        query, answers = yield from ask(meeting)
        if meeting.linear:
            pieces = yield from _linear(meeting, query, answers, degree)
            return pieces
        answering = [entry for entry in meeting.entries if entry.answers]
        mine = [a for e, a in zip(answering, answers, strict=True) if is_cut(e, AXIS)]
        whole = [a for e, a in zip(answering, answers, strict=True) if not is_cut(e, AXIS)]
        here = tuple(s for e in answering if is_cut(e, AXIS) for s in e.spans)
        rest = tuple(s for e in answering if not is_cut(e, AXIS) for s in e.spans)
        gathered, spans = yield from _gather(meeting, mine, here, degree)
        both = yield from concat_rows([gathered, *whole], f"{meeting.name}.kv")
        out = yield from attention(
            meeting, query, both, query_spans(meeting.entries), (*spans, *rest)
        )
        pieces = yield from release(meeting, out)
        return pieces


def _linear(
    meeting: Meeting, query: Tensor, answers: list[Tensor], degree: int
) -> Emits[list[Tensor]]:
    """Add up the states of all ranks; all rows are cut, so that none is counted twice."""
    assert all(is_cut(entry, AXIS) for entry in meeting.entries if entry.answers)
    both = yield from concat_rows(answers, f"{meeting.name}.kv")
    state = yield from summed(meeting, both, f"{meeting.name}.state")
    whole = yield from collective("all_reduce", state, AXIS, degree, f"{meeting.name}.states")
    pieces = yield from read(meeting, query, whole)
    return pieces


def _gather(
    meeting: Meeting, mine: list[Tensor], spans: tuple[Span, ...], degree: int
) -> Emits[tuple[Tensor, tuple[Span, ...]]]:
    name = f"{meeting.name}.gather"
    local = yield from concat_rows(mine, f"{name}.mine")
    stacked = Tensor(f"{name}.stacked", (1, *local.shape), local.itemsize)
    yield from move("stack", [local], stacked, axis=AXIS, degree=degree)
    received = yield from collective("all_gather", stacked, AXIS, degree, f"{name}.received")
    joined = tuple(span.within(AXIS) for span in spans)
    out = Tensor(name, (local.shape[0], total_rows(joined), local.shape[2]), local.itemsize)
    yield from move("unpack_rows", [received], out, axis=AXIS, degree=degree, spans=spans)
    return out, joined
