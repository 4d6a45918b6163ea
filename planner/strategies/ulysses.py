"""DeepSpeed Ulysses: tokens are cut outside attention, heads inside; two all-to-alls change over.

Each rank sends (p - 1) / p of its queries, keys and values, and the same share of the result
back [1]_. The message carries q, k and v of all cut streams packed.

References
----------
.. [1] Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme
   Long Sequence Transformer Models", 2023, arXiv:2309.14509
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from costmodels.program import Tensor
from costmodels.program.emit import Emits, collective, move, split_rows, total_rows
from planner.strategies.base import Attend, AttentionCall, Entry, Proposal, SequenceStrategy, Share
from planner.strategies.sequence import is_cut, sequence_objections

AXIS = "ulysses"


AxisDegree = tuple[str, int]
"""An axis and its degree."""


class Ulysses(SequenceStrategy):
    """Cut the sequence; exchange for a cut of the heads around attention."""

    axis = AXIS
    nesting = 3

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, sequence=(*share.sequence, (self.axis, degree)))

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to uneven tokens, heads or key-value heads."""
        yield from sequence_objections(proposal, degree, self.axis)
        if any(tower.latent is not None for tower in proposal.model.towers):
            yield f"latent attention has one row for all heads, which ulysses{degree} cannot cut"
            return
        tensor = proposal.share.tensor
        for query, key_value in sorted(set(head_counts(proposal))):
            if query % (degree * tensor):
                yield f"{query} heads do not divide by ulysses{degree}" + _times(tensor)
            elif key_value % (degree * tensor):
                yield (
                    f"{key_value} key-value heads do not divide by ulysses{degree}"
                    f"{_times(tensor)} and Ulysses does not repeat them"
                )

    def attend(self, call: AttentionCall, degree: int, inner: Attend) -> Emits[list[Tensor]]:
        """Emit the change to heads, `inner`, and the change back."""
        cut = [entry for entry in call.entries if is_cut(entry, self.axis)]
        uncut = [entry for entry in call.entries if not is_cut(entry, self.axis)]
        axis_degree = self.axis, degree
        gathered = yield from _to_heads(call, cut, axis_degree)
        local = yield from _own_heads(call, uncut, axis_degree)
        results = yield from inner(
            replace(
                call,
                entries=(*gathered, *local),
                heads=-(-call.heads // degree),
                key_value_heads=-(-call.key_value_heads // degree),
            )
        )
        query_entries = [entry for entry in cut if entry.has_queries]
        cut_results = yield from _to_rows(
            call, query_entries, results[:1] if query_entries else [], axis_degree
        )
        uncut_results = results[1:] if query_entries else results
        gathered_results = yield from _all_heads(call, uncut_results, axis_degree)
        pieces = {True: iter(cut_results), False: iter(gathered_results)}
        return [
            next(pieces[is_cut(entry, self.axis)]) for entry in call.entries if entry.has_queries
        ]


STRATEGY = Ulysses()


def head_counts(proposal: Proposal) -> Iterator[tuple[int, int]]:
    """Yield heads of queries, and of keys and values, of every tower that is cut."""
    for tower in proposal.model.towers:
        if not set(tower.streams) <= set(proposal.model.reuses):
            yield tower.heads.query, tower.heads.key_value


def _times(tensor: int) -> str:
    return f" x tp{tensor}" if tensor > 1 else ""


def _to_heads(
    call: AttentionCall, cut: Sequence[Entry], axis_degree: AxisDegree
) -> Emits[list[Entry]]:
    """Collect all rows of the cut streams, for this rank's heads."""
    kinds = [
        [entry for entry in cut if (entry.has_queries, entry.has_keys) == kind]
        for kind in ((True, True), (True, False), (False, True))
    ]
    assert not (kinds[0] and kinds[1]), "cut rows that only ask beside rows that do both"
    entries = []
    for number, kind in enumerate(kinds):
        if kind:
            entry = yield from _exchange_heads(call, kind, axis_degree, f"{call.name}.a2a{number}")
            entries.append(entry)
    return entries


def _exchange_heads(
    call: AttentionCall, entries: Sequence[Entry], axis_degree: AxisDegree, name: str
) -> Emits[Entry]:
    axis, degree = axis_degree
    first_entry = entries[0]
    parts = call.parts(first_entry)
    spans = tuple(span for entry in entries for span in entry.spans)
    batch, width = first_entry.tensor.shape[0], sum(part.local(degree) for part in parts)
    shape = (degree, batch, total_rows(spans), width)
    packed = Tensor(f"{name}.packed", shape, first_entry.tensor.itemsize)
    tensors = [entry.tensor for entry in entries]
    yield from move("pack_heads", tensors, packed, axis=axis, degree=degree, parts=parts)
    received = yield from collective("all_to_all", packed, axis, degree, f"{name}.received")
    joined = tuple(span.within(axis) for span in spans)
    rows = Tensor(f"{name}.rows", (batch, total_rows(joined), width), packed.itemsize)
    yield from move("unpack_rows", [received], rows, axis=axis, degree=degree, spans=spans)
    return Entry(
        spans=joined,
        tensor=rows,
        has_queries=first_entry.has_queries,
        has_keys=first_entry.has_keys,
    )


def _own_heads(
    call: AttentionCall, uncut: Sequence[Entry], axis_degree: AxisDegree
) -> Emits[list[Entry]]:
    """Take this rank's heads of rows that every rank has."""
    axis, degree = axis_degree
    entries = []
    for number, entry in enumerate(uncut):
        x, parts = entry.tensor, call.parts(entry)
        width = sum(part.local(degree) for part in parts)
        out = Tensor(f"{call.name}.own{number}", (*x.shape[:2], width), x.itemsize)
        yield from move("heads", [x], out, axis=axis, degree=degree, parts=parts, view=True)
        entries.append(replace(entry, tensor=out))
    return entries


def _to_rows(
    call: AttentionCall,
    query_entries: Sequence[Entry],
    results: Sequence[Tensor],
    axis_degree: AxisDegree,
) -> Emits[list[Tensor]]:
    """Give this rank its rows again, with all heads."""
    axis, degree = axis_degree
    if not query_entries:
        return []
    spans = tuple(span for entry in query_entries for span in entry.spans)
    (result,), name = results, f"{call.name}.back"
    batch, width = result.shape[0], call.query.local(degree)
    packed = Tensor(f"{name}.packed", (degree, batch, total_rows(spans), width), result.itemsize)
    yield from move("pack_rows", [result], packed, axis=axis, degree=degree, spans=spans)
    received = yield from collective("all_to_all", packed, axis, degree, f"{name}.received")
    features = call.query.units * call.query.size
    out = Tensor(name, (batch, total_rows(spans), features), result.itemsize)
    yield from move("unpack_heads", [received], out, axis=axis, degree=degree, parts=(call.query,))
    rows = [entry.tensor.shape[1] for entry in query_entries]
    return (yield from split_rows(out, rows, [f"{name}{n}" for n in range(len(query_entries))]))


def _all_heads(
    call: AttentionCall, results: Sequence[Tensor], axis_degree: AxisDegree
) -> Emits[list[Tensor]]:
    """Gather the heads that others computed, of rows that every rank has."""
    axis, degree = axis_degree
    outputs, parts = [], (call.query,)
    for number, result in enumerate(results):
        name = f"{call.name}.whole{number}"
        stacked = Tensor(f"{name}.mine", (1, *result.shape), result.itemsize)
        yield from move("stack", [result], stacked, axis=axis, degree=degree, view=True)
        gathered = yield from collective("all_gather", stacked, axis, degree, f"{name}.gathered")
        out = Tensor(name, (*result.shape[:2], call.query.units * call.size), result.itemsize)
        yield from move("unpack_heads", [gathered], out, axis=axis, degree=degree, parts=parts)
        outputs.append(out)
    return outputs
