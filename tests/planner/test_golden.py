"""Ranked plans of a few realistic requests: they notice that something changed, not whether it may.

``pytest tests/planner/test_golden.py --renew-golden`` rewrites them.
"""

import json
from pathlib import Path

import pytest
from generators import recommended

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = {
    "cosmos3-nano_8_h100-sxm": ("cosmos3-nano", 8, {}),
    "flux.1-schnell_8_b200_512": (
        "flux.1-schnell",
        8,
        {"hardware": "b200", "height": 512, "width": 512},
    ),
    "wan2.1-14b_8_l40s_compiled": (
        "wan2.1-14b",
        8,
        {"hardware": "l40s", "runtime": "torch-compile", "height": 480, "width": 832},
    ),
    "llama-3.1-70b_8_a100-sxm-80gb": (
        "llama-3.1-70b",
        8,
        {"hardware": "a100-sxm-80gb", "objective": "throughput", "batch": 16},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ranked_plans_are_as_they_were(name, renew_golden):
    model, gpus, more = CASES[name]
    found = [(str(one.plan), one.latency_s) for one in recommended(model, gpus, **more).plans]
    path = GOLDEN / f"{name}.json"
    if renew_golden:
        rows = [f"  {json.dumps([plan, float(f'{seconds:.9g}')])}" for plan, seconds in found]
        path.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    golden = json.loads(path.read_text())

    assert [plan for plan, _ in found] == [plan for plan, _ in golden]
    for (plan, seconds), (_, before) in zip(found, golden, strict=True):
        assert seconds == pytest.approx(before, rel=1e-6), plan


def test_every_file_has_its_case():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(CASES)
