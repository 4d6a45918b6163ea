"""Fully sharded weights: parts of each layer that are gathered beside the layer before."""

import pytest

import planner
from planner.models import read_model
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.plans import objections
from planner.strategies import parse_plan
from validate.reference.proof import prove

WAN = {"gpus": 8, "hardware": "h100-sxm", "runtime": "torch-eager", "offload": True}


@pytest.mark.parametrize(
    ("name", "plan"), [("flux.1-dev", "ulysses2/fsdp2"), ("qwen-image", "cfg2.ring2/fsdp2")]
)
def test_gathered_parts_are_the_weights_and_the_result_is_the_unsplit_one(name, plan):
    scenario = resolve(Request(model=name))
    assert prove(scenario.model, scenario.workload, parse_plan(plan)).ok


def test_a_rank_holds_its_part_and_two_layers():
    whole, parts = (
        planner.estimate("wan2.1-14b", plan=plan, **WAN) for plan in ("ulysses8", "ulysses8/fsdp8")
    )
    held, less = (one.memory_parts_bytes["transformer_weights"] for one in (whole, parts))
    layers, parameters = 40, read_model("wan2.1-14b").blocks[0].parameters
    kept, layer = 4 * parameters, 2 * parameters  # its code keeps 32 bits, and gathers 16
    outside = held - layers * kept
    assert less == pytest.approx(outside + layers * kept / 8 + 2 * layer, rel=0.01)
    assert whole.latency_s < parts.latency_s < 1.05 * whole.latency_s
    assert parts.communication_hidden_s > whole.communication_hidden_s


def test_what_has_no_parts_is_said():
    def said(name, plan):
        model, parsed = read_model(name), parse_plan(plan)
        workload = resolve(Request(model=name)).workload
        return "; ".join(objections(model, workload, parsed, parsed.gpus))

    assert said("wan2.1-14b", "cfg2.ulysses4/fsdp4") == ""
    assert "the degree of one axis" in said("wan2.1-14b", "cfg2.ulysses4/fsdp8")
    assert "beside an axis that cuts weights" in said("wan2.1-14b", "ulysses4.tp2/fsdp4")
    assert "denoises nothing" in said("llama-3.1-8b", "ulysses2/fsdp2")
