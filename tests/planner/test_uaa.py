"""Ulysses Anything: any number of heads and tokens."""

import pytest

import planner
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.plans import objections
from planner.strategies import parse_plan
from validate.reference.proof import prove


@pytest.mark.parametrize(
    ("name", "size", "plan"),
    [
        ("flux.1-dev", 1008, "uaa5"),  # 24 heads, 3,969 tokens
        ("flux.1-dev", 1024, "uaa2.ring2"),
        ("qwen-image", 1328, "cfg2.uaa2"),
        ("pixart-sigma", 1024, "uaa3"),
    ],
)
def test_uneven_heads_and_tokens_give_the_unsplit_result(name: str, size: int, plan: str) -> None:
    scenario = resolve(Request(model=name, height=size, width=size))
    assert prove(scenario.model, scenario.workload, parse_plan(plan)).ok


def test_where_all_divides_it_costs_what_ulysses_does() -> None:
    one, other = (planner.estimate("flux.1-dev", gpus=4, plan=p) for p in ("ulysses4", "uaa4"))
    assert one.latency_s == other.latency_s


def test_the_ranks_with_most_heads_set_the_pace() -> None:
    def attention(plan: str, gpus: int) -> float:
        size = {"height": 2016, "width": 2016}
        return planner.estimate("flux.1-dev", gpus=gpus, plan=plan, **size).breakdown_s["attention"]

    assert attention("uaa5", 5) == pytest.approx(attention("single", 1) * 5 / 24, rel=0.05)


def test_keys_that_fewer_heads_share_are_not_cut_unevenly() -> None:
    scenario = resolve(Request(model="cosmos3-nano"))
    said = list(objections(scenario.model, scenario.workload, parse_plan("uaa3"), 3))
    assert said == ["32 heads over 8 of keys and values for uaa3"]


def test_it_is_recommended_where_equal_pieces_do_not_divide_and_an_engine_runs_it() -> None:
    short = {"height": 464, "width": 832, "engine": "diffusers"}  # 31,668 tokens, not by 8
    assert str(planner.recommend("wan2.1-14b", gpus=8, **short).to_dict()["recommended"]) == "uaa8"
    many = planner.recommend("wan2.1-14b", gpus=96, engine="diffusers", height=464).plans
    assert any(one.plan.degree("uaa") > 1 for one in many)
    for asked in (
        {"gpus": 2, "engine": "diffusers"},
        {"gpus": 5, "engine": "xdit"},
        {"gpus": 5, "runtime": "torch-graph"},
    ):
        plans = planner.recommend("flux.1-dev", **asked).plans
        assert not any(one.plan.degree("uaa") > 1 for one in plans), asked


@pytest.mark.parametrize(
    ("model", "rows"), [("flux.1-dev", 3), ("wan2.1-1.3b", 3), ("pixart-sigma", 3)]
)
def test_every_rank_has_a_token(model: str, rows: int) -> None:
    size = {"width": 16, "engine": "diffusers"} | ({"frames": 1} if model[0] == "w" else {})
    planner.estimate(model, gpus=rows, plan=f"uaa{rows}", height=16 * rows, **size)

    with pytest.raises(planner.InputError, match=f"tokens for {rows} ranks: some have none"):
        planner.estimate(model, gpus=rows, plan=f"uaa{rows}", height=16 * (rows - 1), **size)


def test_a_sweep_prices_what_an_estimate_does_and_says_the_same_of_the_rest() -> None:
    heights = [64, 1024]  # 4 and 64 tokens, over 5 ranks
    few, many = planner.sweep("flux.1-dev", gpus=5, plan="uaa5", height=heights, width=16)
    one = planner.estimate("flux.1-dev", gpus=5, plan="uaa5", height=1024, width=16)

    assert few["reason"] == "4 image tokens for 5 ranks: some have none"
    assert many["latency_s"] == pytest.approx(one.latency_s)
