"""Plain attention on one rank: where every exchange ends."""

from costmodels.program.emit import Emits, concat_rows, split_features, split_rows
from costmodels.program.ops import Attention, Span, Tensor
from planner.strategies.base import Entry, Meeting


def ask(meeting: Meeting) -> Emits[tuple[Tensor, list[Tensor]]]:
    """Emit the queries of all entries as one tensor; and keys with values of each entry.

    Returns
    -------
    queries ``[batch, rows, heads * size]``, and ``[batch, rows, keys | values]`` an entry
    """
    queries: list[Tensor] = []
    answers: list[Tensor] = []
    for number, entry in enumerate(meeting.entries):
        name = f"{meeting.name}.{number}"
        both = 2 * meeting.key_value.units * meeting.key_value.size
        if entry.asks and entry.answers:
            widths = (meeting.query.units * meeting.query.size, both)
            query, answer = yield from split_features(
                entry.tensor, widths, (f"{name}.q", f"{name}.kv")
            )
            queries.append(query)
            answers.append(answer)
        elif entry.asks:
            queries.append(entry.tensor)
        else:
            answers.append(entry.tensor)
    query = yield from concat_rows(queries, f"{meeting.name}.q")
    return query, answers


def key_spans(entries: tuple[Entry, ...]) -> tuple[Span, ...]:
    """Spans of the rows that answer, in order."""
    return tuple(span for entry in entries if entry.answers for span in entry.spans)


def query_spans(entries: tuple[Entry, ...]) -> tuple[Span, ...]:
    """Spans of the rows that ask, in order."""
    return tuple(span for entry in entries if entry.asks for span in entry.spans)


def release(meeting: Meeting, out: Tensor) -> Emits[list[Tensor]]:
    """Give each asking entry its rows of the result."""
    asking = [entry for entry in meeting.entries if entry.asks]
    rows = [entry.tensor.shape[1] for entry in asking]
    names = [f"{meeting.name}.out{number}" for number in range(len(asking))]
    result = yield from split_rows(out, rows, names)
    return result


def softmax(meeting: Meeting) -> Emits[list[Tensor]]:
    """Emit attention over the rows that are here."""
    query, answers = yield from ask(meeting)
    both = yield from concat_rows(answers, f"{meeting.name}.kv")
    out = yield from attention(
        meeting, query, both, query_spans(meeting.entries), key_spans(meeting.entries)
    )
    result = yield from release(meeting, out)
    return result


def attention(
    meeting: Meeting,
    query: Tensor,
    both: Tensor,
    asking: tuple[Span, ...],
    answering: tuple[Span, ...],
) -> Emits[Tensor]:
    """Emit one fused attention of `query` over keys and values lying side by side in `both`."""
    width = meeting.key_value.units * meeting.key_value.size
    key, value = yield from split_features(
        both, (width, width), (f"{both.name}.k", f"{both.name}.v")
    )
    out = Tensor(f"{meeting.name}.out", query.shape, query.itemsize)
    split = any(span.axes for span in asking)
    yield Attention(
        q=query,
        k=key,
        v=value,
        out=out,
        heads=meeting.heads,
        key_value_heads=meeting.key_value_heads,
        size=meeting.size,
        query_spans=asking,
        key_spans=answering,
        causal=meeting.causal,
        window=meeting.window,
        pairs=0.5 if meeting.causal and split else 1.0,
    )
    return out
