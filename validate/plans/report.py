"""Comparisons as tables, for a terminal and for a document."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from topology.base import counted, format_bytes, format_seconds
from topology.drawing.table import Table, bullets, terminal
from validate.plans.compare import Comparison, Ranking, Summary
from validate.reference import Proof

HEADERS: Final = (
    "case", "measured", "predicted", "error", "memory", "proof", "gemm *", "attention *",
    "row-wise *", "comm *", "verdict",
)  # fmt: skip
INSTRUMENTED: Final = (
    "* instrumented, without a verdict: a guide to where time goes, from a step of its own with an "
    "event around each operation and messages one after another"
)
KNOWN: Final = ("measured", "calibrated", "")
"""Bases of a prediction that need no remark; the others are extrapolated, datasheet, assumed."""
_ROW_WISE: Final = ("pointwise", "layout")


def _cells(one: Comparison, gate: float) -> list[str]:
    measured = one.measured
    if not measured.step_s:
        return [measured.key, *["-"] * (len(HEADERS) - 2), f"{measured.status}: {measured.note}"]
    said = {kind: _beside(one, (kind,)) for kind in ("gemm", "attention", "communication")}
    return [
        measured.key,
        format_seconds(measured.step_s),
        _predicted(one),
        percent(one.step_error),
        _memory(one),
        f"{max(measured.error, measured.full_error):.1e}",
        said["gemm"],
        said["attention"],
        _beside(one, _ROW_WISE),
        said["communication"],
        _verdict(one, gate),
    ]


def _predicted(one: Comparison) -> str:
    """Predicted seconds, and on what they rest where nothing was measured or fitted there."""
    rests = "" if one.predicted.basis in KNOWN else f" ({one.predicted.basis})"
    return format_seconds(one.predicted.step_s) + rests


def _memory(one: Comparison) -> str:
    """Measured bytes and the error of what was predicted; a CPU measures none."""
    taken = one.measured.memory_bytes
    return f"{format_bytes(taken)} {percent(one.memory_error)}" if taken else "-"


def _beside(one: Comparison, kinds: Sequence[str]) -> str:
    """Measured seconds of classes together, and the error of what was predicted."""
    measured = sum(one.measured.classes_s.get(kind, 0.0) for kind in kinds)
    predicted = sum(one.predicted.classes_s.get(kind, 0.0) for kind in kinds)
    if not measured:
        return "-"
    return f"{format_seconds(measured)} {percent(predicted / measured - 1)}"


def _verdict(one: Comparison, gate: float) -> str:
    if one.measured.status != "done":
        return f"{one.measured.status}: {one.measured.note}"
    missed = one.misses(gate)
    return f"miss: {', '.join(missed)}" if missed else "pass"


def percent(share: float) -> str:
    """Write a relative error.

    >>> percent(0.0312), percent(-0.2)
    ('+3.1 %', '-20.0 %')
    """
    return f"{100 * share:+.1f} %"


def text(
    found: Sequence[Comparison], ranked: Sequence[Ranking], summary: Summary, gate: float
) -> str:
    """Everything for a terminal."""
    table = Table(head=HEADERS, rows=[_cells(one, gate) for one in found], align="<")
    return terminal([table, "", *_said(found, ranked, summary, gate)])


def markdown(
    found: Sequence[Comparison], ranked: Sequence[Ranking], summary: Summary, gate: float
) -> str:
    """Everything for a document."""
    rows = [[cell.replace("|", "/") for cell in _cells(one, gate)] for one in found]
    table = Table(head=HEADERS, rows=rows).markdown()
    return "\n".join([table, "", *bullets(_said(found, ranked, summary, gate))])


def _said(
    found: Sequence[Comparison], ranked: Sequence[Ranking], summary: Summary, gate: float
) -> Iterator[str]:
    """Lines below the table."""
    yield from _rankings(ranked)
    yield "; ".join(_summary(found, ranked, summary, gate))
    yield from _notes(found)
    yield from instrumented(found)


def _notes(found: Iterable[Comparison]) -> Iterator[str]:
    """Say what was otherwise than asked in cases that were done, such as what was not compiled."""
    keys: dict[str, list[str]] = {}
    for one in found:
        if one.measured.status == "done" and one.measured.note:
            keys.setdefault(one.measured.note, []).append(one.measured.key)
    for note, named in keys.items():
        yield f"{named[0] if len(named) == 1 else counted(len(named), 'case')}: {note}"


def instrumented(found: Iterable[Comparison]) -> list[str]:
    """Say how the columns of classes were taken, and what of waiting is in them."""
    rows = [one.measured for one in found if one.measured.classes_s]
    if not rows:
        return []
    ways = sorted({row.classes_by for row in rows if row.classes_by})
    lines = [f"{INSTRUMENTED}{f' ({chr(59).join(ways)})' if ways else ''}"]
    if any("communication" in row.classes_s for row in rows):
        waited = max(row.waiting_s for row in rows)
        most = f": {format_seconds(waited)} at most here" if waited else ""
        if all(row.classes_by for row in rows):
            lines.append(f"* comm is from when the last rank arrives; waiting is left out{most}")
        else:
            lines.append("* comm holds the time that a rank waits for another one")
    return lines


def proofs_text(proofs: Iterable[Proof]) -> str:
    """Write proofs for a terminal."""
    return "\n".join(
        f"{proof.model} {proof.plan}: {proof.ranks} ranks, relative error {proof.error:.1e} "
        f"({proof.bound:.1e} allowed): {'right' if proof.ok else 'WRONG'}"
        for proof in proofs
    )


def proofs_markdown(proofs: Iterable[Proof]) -> str:
    """Write proofs for a document."""
    rows = [
        [
            proof.model,
            proof.plan,
            str(proof.ranks),
            f"{proof.error:.1e}",
            "right" if proof.ok else "wrong",
        ]
        for proof in proofs
    ]
    return Table(head=("model", "plan", "ranks", "error", ""), rows=rows).markdown()


def _rankings(ranked: Iterable[Ranking]) -> Iterator[str]:
    for one in ranked:
        yield (
            f"{one.subject}, {one.mode}: chose {one.chosen}, fastest {one.best}, regret "
            f"{percent(one.regret)}, rank correlation {one.correlation:.2f} over {len(one.plans)} "
            "plans"
        )


def _summary(
    found: Iterable[Comparison], ranked: Sequence[Ranking], summary: Summary, gate: float
) -> Iterator[str]:
    """Sum up what there is of it: nothing of errors where nothing was done or measured."""
    done = f"{summary.done} of {summary.cases} cases done"
    if not summary.done:
        yield done
        return
    yield (
        f"{done}: step error median {percent(summary.median_step_error)}, worst "
        f"{percent(summary.worst_step_error)} (gate {percent(gate)})"
    )
    if any(one.measured.memory_bytes for one in found):
        yield f"memory {percent(summary.median_memory_error)}"
    else:
        yield "memory not measured"
    if ranked:
        yield f"mean regret {percent(summary.mean_regret)}"
