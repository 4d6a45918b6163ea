"""Tables of docs/accuracy.md say what the rows in `validate/data` and the models make of them."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from validate.accuracy.plans_run import MACHINES, MODES
from validate.plans.compare import compare, rankings
from validate.plans.measured import read_measured

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
H100, H200, *_ = MACHINES


def rows_of(machine, name="plans"):
    path = ROOT / "validate" / "data" / machine.folder / f"{name}.jsonl"
    return [row for row in read_measured(path.read_text("utf-8")) if row.status == "done"]


@cache
def compared(machine):
    """Steps as they are said with no profile, with the default, and with the machine's own."""
    rows = rows_of(machine)
    return [compare(rows, machine.hardware, profile) for profile in ("none", "", machine.profile)]


def errors(found, mode):
    return np.array([abs(one.step_error) for one in found if one.measured.case.mode == mode])


def percent(*numbers):
    return ", ".join(f"{100 * number:.1f}" for number in numbers)


def test_steps_on_h200_are_off_by_what_the_table_says():
    profiles = compared(H200)

    for mode, words in MODES.items():
        sizes = [errors(found, mode) for found in profiles]
        cells = [
            f"{percent(np.median(size))} ({percent(np.quantile(size, 0.9), size.max())})"
            for size in sizes
        ]
        assert f"| {words}, {len(sizes[0])} | {' | '.join(cells)} |" in DOCUMENT
    whole = [percent(np.median([abs(one.step_error) for one in found])) for found in profiles]
    assert f"| all, {len(profiles[0])} | {' | '.join(whole)} |" in DOCUMENT


def test_steps_on_h100_are_off_by_what_the_table_says():
    profiles = compared(H100)

    for mode in ("graph", "eager"):
        sizes = [errors(found, mode) for found in profiles]
        cells = [f"{percent(np.median(size))} ({percent(size.max())})" for size in sizes]
        line = f"| steps run on 2 x H100, {MODES[mode]} | {' | '.join(cells)} |"
        assert line in DOCUMENT
    lost = [np.quantile([one.regret for one in rankings(found)], 0.9) for found in profiles]
    cells = " | ".join(percent(one) for one in lost)
    assert f"| time lost by the planner's choice, ninth decile | {cells} |" in DOCUMENT


def test_a_choice_loses_on_average_what_is_said():
    by_default = 1
    h100, h200 = (
        [one.regret for one in rankings(compared(machine)[by_default])] for machine in (H100, H200)
    )

    assert (
        f"one choice loses {percent(np.mean(h200))} % on average on H200, {percent(np.mean(h100))} "
        f"% on H100, {percent(np.mean([*h100, *h200]))} % over both"
    ) in DOCUMENT


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("before", ["plans_fifth_session_collecting_too"] * 2),
        ("without collections", ["plans_fifth_session_lane_without_priority"] * 2),
        ("and with priority", ["plans", "plans_replaced"]),
    ],
)
def test_compiled_rings_took_what_is_said(words, names):
    cells = []
    for plan, name in zip(("ring2", "ulysses2"), names, strict=True):
        known = {row.key: row for row in rows_of(H200, name)}
        row = known[f"flux.1-dev 1024x1024 | {plan} | compile"]
        step, low, high = (f"{1e3 * time:.1f}" for time in (row.step_s, row.low_s, row.high_s))
        cells.append(f"{step} ({low} to {high})")

    assert f"| {words} | {' | '.join(cells)} |" in DOCUMENT


def test_the_host_adds_what_is_said():
    more = [row.wall_s / row.mean_s - 1 for row in rows_of(H200)]

    assert (
        f"at most {100 * max(more):.3f} % ({len(more)} rows on 2 x H200; median "
        f"{100 * np.median(more):.3f} %)"
    ) in DOCUMENT
