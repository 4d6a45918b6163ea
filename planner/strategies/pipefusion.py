"""PipeFusion: pieces of the latents follow one another through the stages of a pipeline.

The keys and values of the other pieces are those that each layer saw last: of this step for the
pieces ahead, of the step before for those behind [1]_. So a stage never waits for another step,
and the result is another one than the model's. The first steps are run with all pieces together,
as a pipeline runs them, and are exact.

The rows of a piece are those of a virtual axis, whose index is the number of the piece.

References
----------
.. [1] Fang et al., "PipeFusion: Patch-level Pipeline Parallelism for Diffusion Transformers
   Inference", 2024, arXiv:2405.14430
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from costmodels.program import Rearrange, Span, Tensor
from costmodels.program.emit import Emits, split_features, total_rows
from costmodels.sizes import any_true
from planner.request.plan import Plan
from planner.strategies.base import Attend, AttentionCall, Entry, Proposal
from planner.strategies.sequence import convolved, is_cut

AXIS: Final = "patch"
"""Which piece of the latents a turn has."""
DONE: Final = "done"
"""Which piece the last stage has in the same turn."""


def piece(span: Span, pieces: int, axis: str = AXIS) -> Span:
    """Return one of so many pieces of a stream; of one piece, the whole."""
    return replace(span, axes=((axis, pieces),), grain=pieces)


def is_piece(span: Span) -> bool:
    """Whether rows are those of a piece, on every rank alike."""
    return not {axis for axis, _ in span.axes}.isdisjoint((AXIS, DONE))


def objections(proposal: Proposal, plan: Plan) -> Iterator[str]:
    """Object to what no pieces can be made of, or would be worth nothing."""
    model, pieces, stages = proposal.model, plan.patch, plan.degree("pp")
    if model.kind != "diffusion":
        yield f"patch{pieces}: {model.name} denoises nothing"
        return
    if pieces < stages or stages == 1:
        yield f"patch{pieces} for pp{stages}: expected stages, and a piece for each at least"
    tokens = proposal.workload.length(model.streams[-1].name)
    if any_true(tokens % pieces):
        yield f"{tokens} {model.streams[-1].name} tokens do not divide by patch{pieces}"
    if plan.sequence_ranks > 1:
        yield "pieces of a sequence that is cut over ranks are not modelled"
    batched = model.named_in(proposal.workload.habits.batched_guidance)
    if proposal.share.passes > 1 and not batched:
        yield f"patch{pieces} keeps the keys of one forward a step: use cfg2 beside it"
    if convolved(model) or any(t.mixer not in ("attention", "none") for t in model.towers):
        yield f"patch{pieces} of a model that does not attend to keys and values is not modelled"


def attend(call: AttentionCall, inner: Attend) -> Emits[list[Tensor]]:
    """Emit `inner` over the keys and values of all pieces, of which this one's are new."""
    entries: list[Entry] = []
    for entry in call.entries:
        if entry.has_keys and is_cut(entry, AXIS):
            entries += yield from _with_cached_pieces(call, entry)
        else:
            entries.append(entry)
    return (yield from inner(replace(call, entries=tuple(entries))))


def _with_cached_pieces(call: AttentionCall, entry: Entry) -> Emits[list[Entry]]:
    """Put the keys and values of a piece among those of the others, and keep them."""
    (span,) = entry.spans
    query, new_rows = None, entry.tensor
    widths = [part.units * part.size for part in call.parts(entry)]
    if entry.has_queries:
        names = (f"{call.name}.piece.q", f"{call.name}.piece.kv")
        query, new_rows = yield from split_features(
            entry.tensor, (widths[0], sum(widths[1:])), names
        )
    whole_span = span.within(AXIS)
    shape = (new_rows.shape[0], total_rows([whole_span]), new_rows.shape[2])
    cache = Tensor(f"cache.{call.name}.pieces", shape, new_rows.itemsize)
    all_rows = new_rows
    if span.parts > 1:
        stale, all_rows = (replace(cache, name=f"{call.name}.{n}") for n in ("stale", "pieces"))
        yield Rearrange(move="recall", inputs=(cache,), outputs=(stale,), view=True)
        yield Rearrange(
            move="place", inputs=(stale, new_rows), outputs=(all_rows,), spans=(span,), view=True
        )
    yield Rearrange(move="keep", inputs=(all_rows,), outputs=(cache,), view=True)
    keys = Entry(spans=(whole_span,), tensor=all_rows, has_queries=False)
    if query is None:
        return [keys]
    return [replace(entry, tensor=query, has_keys=False), keys]
