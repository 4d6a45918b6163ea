"""What an estimate says of itself: keys, interval, basis, and what bounds it."""

import json
import math
from dataclasses import replace

import pytest
from generators import made, priced

import planner
from costmodels.basis import Basis
from planner.request.plan import Plan
from planner.search.estimate import UNCERTAINTY, WORDS, Rejected
from planner.strategies import parse_plan

KEYS = {
    "model": str,
    "hardware": str,
    "gpus": int,
    "plan": str,
    "runtime": str,
    "precision": str,
    "latency_s": float,
    "step_s": float,
    "stages_s": dict,
    "breakdown_s": dict,
    "communication_hidden_s": float,
    "memory_bytes": int,
    "memory_parts_bytes": dict,
    "throughput_per_s": float,
    "basis": str,
    "bound_by": str,
}
PARTS = {"transformer_weights", "other_weights", "activations", "kv", "buffers", "runtime"}


@pytest.mark.parametrize(
    ("model", "plan", "stages"),
    [
        ("cosmos3-nano", "cfg2.ulysses4", {"text_encode", "denoise", "vae_decode"}),
        ("flux.1-dev", "single", {"text_encode", "denoise", "vae_decode"}),
        ("llama-3.1-8b", "tp2", {"prefill", "decode"}),
    ],
)
def test_the_promised_keys_are_there(model, plan, stages):
    shown = priced(model, plan).to_dict()

    assert {key: type(shown[key]) for key in KEYS} == KEYS
    assert set(shown["stages_s"]) == stages
    assert set(shown["memory_parts_bytes"]) >= PARTS
    assert set(shown["breakdown_s"]) >= {
        "gemm",
        "attention",
        "pointwise",
        "communication_exposed",
        "launch",
    }
    assert shown["basis"] in ("measured", "calibrated", "datasheet", "assumed")


@pytest.mark.parametrize("plan", ["single", "cfg2.ulysses4", "tp8", "ring8", "pp2.tp4"])
def test_numbers_are_plain_and_finite(plan):
    """JSON has no NaN, and numpy scalars do not leak."""
    shown = priced("wan2.1-14b", plan).to_dict()
    numbers = [shown[key] for key in KEYS if KEYS[key] is float]
    for part in ("stages_s", "breakdown_s"):
        numbers += shown[part].values()
    whole = [shown["memory_bytes"], *shown["memory_parts_bytes"].values()]

    assert all(type(number) is float for number in numbers)
    assert all(type(number) is int for number in whole)
    assert all(number >= 0 and math.isfinite(number) for number in (*numbers, *whole))
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_a_plan_pasted_back_is_the_same_plan():
    assert parse_plan(made().to_dict()["plan"]) == made().plan


def test_what_bounds_it_is_the_largest_part():
    assert made().bound_by == "matrix products (60 % of the time)"
    assert made(breakdown_s={"launch": 10.0}).bound_by == "kernel launches (100 % of the time)"


def test_every_part_has_a_word():
    for model, plan in (("cosmos3-nano", "cfg2.ulysses4"), ("llama-3.1-8b", "tp2")):
        assert set(priced(model, plan).breakdown_s) <= set(WORDS)


def test_the_basis_is_the_weakest_of_the_heavy_parts():
    guess = {**made().known, "communication_exposed": Basis.ASSUMED}

    assert made().basis == Basis.DATASHEET
    assert made(known=guess).basis == Basis.ASSUMED
    light = {"gemm": 9.6, "attention": 0.0, "communication_exposed": 0.4}
    assert made(known=guess, breakdown_s=light).basis == Basis.CALIBRATED


def test_the_interval_adds_parts_as_independent_errors():
    """8 % of 6 s, 20 % of 3 s, 3 % of 1 s, and 7 % of all that no part has: a root of squares."""
    parts = math.sqrt((0.08 * 6) ** 2 + (0.2 * 3) ** 2 + (0.03 * 1) ** 2)
    low, high = made().to_dict()["latency_interval_s"]

    assert (high - low) / 2 == pytest.approx(math.hypot(parts, 0.07 * 10))
    assert (high + low) / 2 == pytest.approx(10)
    assert made(engine="planner").half_width_s == pytest.approx(parts)


def test_a_time_that_the_host_sets_is_as_unsure_as_hosts_differ():
    asked = {"engine": "xdit", "runtime": "torch-eager"}
    one, four = (planner.estimate("flux.1-dev", plan=p, **asked) for p in ("single", "ulysses4"))

    assert four.half_width_s > 0.19 * four.latency_s
    assert one.half_width_s < 0.1 * one.latency_s


def test_what_is_known_better_has_a_shorter_interval():
    assert list(UNCERTAINTY) == sorted(Basis)
    assert list(UNCERTAINTY.values()) == sorted(UNCERTAINTY.values())


def test_gpu_seconds_are_what_a_result_costs():
    assert made().to_dict()["gpu_seconds_per_result"] == pytest.approx(20)


def test_a_rejected_plan_has_a_reason():
    assert Rejected(plan=Plan(), reason="no").to_dict() == {"plan": "single", "reason": "no"}


def test_estimates_do_not_change():
    with pytest.raises(AttributeError):
        made().latency_s = 1.0
    assert replace(made(), gpus=4).gpus == 4


def test_time_of_the_host_says_how_well_it_is_known():
    model = "llama-3.1-8b"
    eager, graph = (
        planner.estimate(model, 8, "tp8", runtime=name).to_dict()["basis_by_part"]
        for name in ("torch-eager", "tensorrt")
    )

    assert eager["launch"] == "extrapolated"
    assert "launch" not in graph


@pytest.mark.parametrize("plan", ["single", "dp4", "cfg2.ulysses4", "tp8"])
def test_waiting_says_how_well_it_is_known_where_there_is_any(plan):
    shown = priced("cosmos3-nano", plan).to_dict()
    waits = plan not in ("single", "dp4")

    assert ("waiting" in shown["breakdown_s"]) == waits
    assert shown["basis_by_part"].get("waiting") == ("extrapolated" if waits else None)
