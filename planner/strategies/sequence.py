"""Which streams are cut over the ranks of a sequence, and which every rank holds whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from costmodels.program import Size, Span
from costmodels.sizes import any_true, largest
from planner.models import Model, Stream
from planner.request.workload import Workload
from planner.strategies.base import Entry, Proposal, Share

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_cut(entry: Entry, axis: str) -> bool:
    """Whether the rows of an entry are cut along `axis`."""
    return any(axis in dict(span.axes) for span in entry.spans)


def is_causal(model: Model) -> bool:
    """Whether the cut streams attend causally, so that a zigzag order evens the work."""
    reused = set(model.reuses)
    return any(tower.causal and not set(tower.streams) <= reused for tower in model.towers)


def span_of(model: Model, stream: Stream, tokens: Size, share: Share, start: Size = 0) -> Span:
    """Say how a rank holds a stream.

    Latent tokens are cut. A text of fixed length is cut where its tokens divide evenly, and is
    whole on every rank otherwise, as engines keep it.
    """
    if share.grain == 1:
        return Span(stream.name, tokens, start=start)
    is_whole = stream.static or stream.name in model.reuses
    is_uneven = any_true(tokens % share.grain)
    if is_whole or (stream.tokens and is_uneven):
        return Span(stream.name, tokens, start=start)
    zigzag = share.zigzag and is_causal(model)
    return Span(stream.name, tokens, share.sequence, share.grain, zigzag=zigzag, start=start)


def whole_notes(model: Model, workload: Workload, grain: int) -> Iterator[str]:
    """Yield the texts of a length that was asked for which every rank holds whole, as uneven."""
    for stream in model.streams if grain > 1 else ():
        is_whole = stream.static or stream.name in model.reuses
        tokens = int(largest(workload.length(stream.name)))
        if stream.tokens and not is_whole and tokens != stream.tokens and tokens % grain:
            yield (
                f"{tokens} {stream.name} tokens do not divide over {grain} ranks, so that each "
                f"holds all of them; {tokens + -tokens % grain} would be cut, which may be faster"
            )


def uneven(
    model: Model, workload: Workload, grain: int, *, padded: bool = False
) -> NDArray[np.bool_]:
    """Tell where tokens do not divide that must over `grain` ranks, or leave some without any.

    padded : tokens need not divide. Returns a flag a request of a sweep.
    """
    divided = [] if padded else _must_divide(model)
    flags = [np.asarray(workload.length(name)) % grain != 0 for name in divided]
    flags += [np.asarray(_lines(workload, stream) % grain != 0) for stream in convolved(model)]
    flags += [np.asarray(workload.length(name)) < grain for name in _must_reach(model, padded)]
    return np.asarray(np.logical_or.reduce(flags)) if flags else np.zeros((), bool)


def _must_divide(model: Model) -> list[str]:
    """Name the streams whose tokens are neither padded nor kept whole where they do not divide."""
    streams = model.streams
    return [s.name for s in streams if not (s.tokens or s.pads or s.static)]


def _must_reach(model: Model, padded: bool) -> list[str]:  # noqa: FBT001  # as `uneven`
    """Name the streams of which every rank has a token; of images those that no engine pads."""
    if model.kind == "decoder":
        return [model.streams[0].name]
    return [s.name for s in model.streams if padded and not (s.tokens or s.static)]


def convolved(model: Model) -> list[str]:
    """Name the streams over whose image a FFN convolves."""
    return sorted({t.streams[0] for t in model.towers if t.ffn is not None and t.ffn.convolved})


def _lines(workload: Workload, stream: str) -> Size:
    """Count the lines of tokens that an image has."""
    return workload.length(stream) // workload.line


def _chunk_objections(proposal: Proposal) -> Iterator[str]:
    """Object to chunks that hold parts of lines, and to padding where keys are added up."""
    grain = proposal.share.grain
    for stream in convolved(proposal.model):
        lines = _lines(proposal.workload, stream)
        if any_true(lines % grain):
            yield f"{lines} lines of {stream} tokens, which a FFN convolves, for {grain} ranks"
    padded = {stream.name for stream in proposal.model.streams if stream.pads or stream.tokens}
    if any(t.mixer == "relu_linear" and padded & set(t.keys) for t in proposal.model.towers):
        yield "linear attention over streams that are padded is not modelled"


def sequence_objections(
    proposal: Proposal, degree: int, axis: str, *, padded: bool = False
) -> Iterator[str]:
    """Object to what holds against every way to cut a sequence; once, for the outermost axis.

    padded : tokens need not divide.
    """
    if proposal.share.sequence[0] != (axis, degree):
        return
    grain = proposal.share.grain
    if proposal.workload.speculation is not None:
        yield "drafted tokens over a cut sequence are not modelled"
    for name in [] if padded else _must_divide(proposal.model):
        tokens = proposal.workload.length(name)
        if any_true(tokens % grain):
            remainder = f"{tokens % grain} left"
            token_kind = "tokens" if name == "tokens" else f"{name} tokens"
            yield f"{tokens} {token_kind} do not divide by {grain} ranks ({remainder})"
    for name in _must_reach(proposal.model, padded):
        tokens = proposal.workload.length(name)
        if any_true(tokens < grain):
            count_text = f"a prompt of {tokens}" if name == "tokens" else f"{tokens} {name}"
            yield f"{count_text} tokens for {grain} ranks: some have none"
    yield from _chunk_objections(proposal)
    if any(tower.recurrence is not None for tower in proposal.model.towers):
        yield "a recurrence over a cut sequence is not modelled"
