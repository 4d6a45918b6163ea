"""Comparisons of plans, and proofs of them, as parts of an answer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from topology.base import counted, format_bytes, format_seconds
from topology.base.rows import gathered
from topology.base.table import Part, Said, Table
from validate.plans.compare import Comparison, MeasuredRanking, rankings, summarise
from validate.reference import Proof

HEADERS: Final = (
    "case", "measured", "predicted", "error", "memory", "proof", "gemm *", "attention *",
    "element-wise *", "comm *", "verdict",
)  # fmt: skip
INSTRUMENTED_NOTE: Final = (
    "* instrumented, without a verdict: a guide to where time goes, from a step of its own with an "
    "event around each operation and messages one after another"
)
MEASURED_BASES: Final = ("measured", "calibrated", "")
"""Bases of a prediction that need no remark; the others are extrapolated, datasheet, assumed."""


def _cells(comparison: Comparison, gate: float) -> list[str]:
    measured = comparison.measured
    if not measured.step_s:
        return [measured.key, *["-"] * (len(HEADERS) - 2), f"{measured.status}: {measured.note}"]
    columns = (("gemm",), ("attention",), ("pointwise", "layout"), ("communication",))
    return [
        measured.key,
        format_seconds(measured.step_s),
        _predicted_cell(comparison),
        percent(comparison.step_error),
        _memory_cell(comparison),
        f"{max(measured.error, measured.full_error):.1e}",
        *(_class_cell(comparison, kinds) for kinds in columns),
        _verdict(comparison, gate),
    ]


def _predicted_cell(comparison: Comparison) -> str:
    """Predicted seconds, and on what they rest where nothing was measured or fitted there."""
    basis_note = (
        "" if comparison.predicted.basis in MEASURED_BASES else f" ({comparison.predicted.basis})"
    )
    return format_seconds(comparison.predicted.step_s) + basis_note


def _memory_cell(comparison: Comparison) -> str:
    """Measured bytes, or room of a cache, and the error of what was predicted; a CPU has none."""
    if room := comparison.measured.cache_tokens:
        return f"cache {room:,} tokens {percent(comparison.memory_error)}"
    memory_bytes = comparison.measured.memory_bytes
    return (
        f"{format_bytes(memory_bytes)} {percent(comparison.memory_error)}" if memory_bytes else "-"
    )


def _class_cell(comparison: Comparison, kinds: Sequence[str]) -> str:
    """Measured seconds of classes together, and the error of what was predicted."""
    measured = sum(comparison.measured.classes_s.get(kind, 0.0) for kind in kinds)
    predicted = sum(comparison.predicted.classes_s.get(kind, 0.0) for kind in kinds)
    if not measured:
        return "-"
    return f"{format_seconds(measured)} {percent(predicted / measured - 1)}"


def _verdict(comparison: Comparison, gate: float) -> str:
    if comparison.measured.status != "done":
        return f"{comparison.measured.status}: {comparison.measured.note}"
    missed = comparison.misses(gate)
    return f"miss: {', '.join(missed)}" if missed else "pass"


def percent(share: float) -> str:
    """Write a relative error.

    >>> percent(0.0312), percent(-0.2)
    ('+3.1 %', '-20.0 %')
    """
    return f"{100 * share:+.1f} %"


def parts(comparisons: Sequence[Comparison], gate: float) -> list[Part]:
    """Say everything: a row a case, and what they come to."""
    table = Table(
        head=HEADERS, rows=[_cells(comparison, gate) for comparison in comparisons], align="<"
    )
    return [table, "", Said(lines=list(_footer_lines(comparisons, gate)))]


def _footer_lines(comparisons: Sequence[Comparison], gate: float) -> Iterator[str]:
    """Yield the lines below the table."""
    ranked = rankings(comparisons)
    for ranking in ranked:
        yield (
            f"{ranking.subject}, {ranking.mode}: chose {ranking.chosen}, fastest {ranking.best}, "
            f"regret {percent(ranking.regret)}, rank correlation {ranking.correlation:.2f} over "
            f"{len(ranking.plans)} plans"
        )
    yield "; ".join(_summary(comparisons, ranked, gate))
    yield from _notes(comparisons)
    yield from instrumented_notes(comparisons)


def _notes(comparisons: Iterable[Comparison]) -> Iterator[str]:
    """Say what was otherwise than asked in cases that were done, such as what was not compiled."""
    done = [
        comparison.measured for comparison in comparisons if comparison.measured.status == "done"
    ]
    for note, keys in gathered((row.note, row.key) for row in done if row.note).items():
        yield f"{keys[0] if len(keys) == 1 else counted(len(keys), 'case')}: {note}"


def instrumented_notes(comparisons: Iterable[Comparison]) -> list[str]:
    """Say how the columns of classes were taken, and what of waiting is in them."""
    rows = [comparison.measured for comparison in comparisons if comparison.measured.classes_s]
    if not rows:
        return []
    ways = sorted({row.classes_by for row in rows if row.classes_by})
    lines = [f"{INSTRUMENTED_NOTE}{f' ({chr(59).join(ways)})' if ways else ''}"]
    if any("communication" in row.classes_s for row in rows):
        wait_s = max(row.waiting_s for row in rows)
        wait_note = f": {format_seconds(wait_s)} at most here" if wait_s else ""
        if all(row.classes_by for row in rows):
            lines.append(
                f"* comm is from when the last rank arrives; waiting is left out{wait_note}"
            )
        else:
            lines.append("* comm holds the time that a rank waits for another one")
    return lines


def proof_lines(proofs: Iterable[Proof]) -> Said:
    """Say of each plan whether its ranks are right."""
    lines = [
        f"{proof.model} {proof.plan}: {proof.ranks} ranks, relative error {proof.error:.1e} "
        f"({proof.bound:.1e} allowed): {'right' if proof.ok else 'WRONG'}"
        for proof in proofs
    ]
    return Said(lines=lines)


def _summary(
    comparisons: Sequence[Comparison], ranked: Sequence[MeasuredRanking], gate: float
) -> Iterator[str]:
    """Sum up what there is of it: nothing of errors where nothing was done or measured."""
    summary = summarise(comparisons, ranked)
    done = f"{summary.done} of {summary.cases} cases done"
    if not summary.done:
        yield done
        return
    yield (
        f"{done}: step error median {percent(summary.median_step_error)}, worst "
        f"{percent(summary.worst_step_error)} (gate {percent(gate)})"
    )
    if any(
        comparison.measured.memory_bytes or comparison.measured.cache_tokens
        for comparison in comparisons
    ):
        yield f"memory {percent(summary.median_memory_error)}"
    else:
        yield "memory not measured"
    if ranked:
        yield f"mean regret {percent(summary.mean_regret)}"
