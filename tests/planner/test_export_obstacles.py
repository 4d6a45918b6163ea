"""What TensorRT cannot run, said with its reason; and the nearest plan that it can."""

import pytest
import testmodels

from planner.engines.reading import read_version
from planner.engines.tables import allowed
from planner.export.tensorrt import tensorrt_folder
from planner.recommendation import recommend_plans
from planner.request.plan import nearest
from planner.request.request import Request
from planner.runners.refusal import check_tensorrt, footnotes
from planner.scenario.scenario import resolve
from planner.search.plans import objections, plans
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, InputError
from topology.catalogue import find_hardware

pytestmark = pytest.mark.usefixtures("asked_once")


def said(text, name="h100-sxm", version="", **more):
    return "; ".join(allowed().obstacles(parse_plan(text), find_hardware(name), version, **more))


@pytest.mark.parametrize("text", ["single", "tp8", "ulysses8", "allgather_kv4", "cfg2.ulysses4",
                                  "ulysses4.tp2", "dp2.tp4", "cfg2.pp2.tp2"])  # fmt: skip
def test_most_plans_run_on_an_h100(text):
    assert said(text) == ""


def test_a_ring_needs_messages_that_no_layer_passes():
    assert "log-sum-exp" in said("ring4")
    assert "allgather_kv" in said("ring4")  # what it is called for real
    assert "ulysses2" not in said("ulysses2.ring2")


@pytest.mark.parametrize(("text", "word"), [("pp4/patch8", "pieces"), ("ep8", "experts")])
def test_pieces_and_experts_on_several_gpus_do_not_run(text, word):
    assert word in said(text)


def test_collectives_need_ampere():
    """Compute capability 8.0: a T4 has 7.5, an A100 8.0."""
    assert "compute capability 8.0" in said("tp2", "t4", precision="fp16")
    assert said("single", "t4", precision="fp16") == ""
    assert said("tp2", "a100-sxm-80gb") == ""


@pytest.mark.parametrize(
    ("precision", "name", "runs"),
    [("fp8", "a100-sxm-80gb", False), ("fp8", "l40s", True), ("nvfp4", "h100-sxm", False),
     ("nvfp4", "b200", True), ("bf16", "t4", False), ("fp16", "t4", True)],
)  # fmt: skip
def test_precisions_need_their_gpus(precision, name, runs):
    assert (said("single", name, precision=precision) == "") == runs


def test_groups_within_an_engine_are_broken_in_one_version():
    """pytorch/TensorRT issue 4380: on 11.2.1.2 a group of ranks gives the sum of all."""
    assert "issue 4380" in said("ulysses4.tp2", version="11.2.1.2")
    assert said("cfg2.ulysses4", version="11.2.1.2") == ""  # branches have their own communicators
    assert said("ulysses4.tp2", version="11.2.0.86") == ""


def test_groups_elsewhere_are_to_be_watched():
    plan = parse_plan("ulysses4.tp2")

    assert any("unproven" in one for one in allowed().cautions(testmodels.flux, plan))
    assert not any(
        "unproven" in one for one in allowed().cautions(testmodels.flux, parse_plan("tp8"))
    )
    assert not any(
        "unproven" in one for one in allowed().cautions(testmodels.flux, plan, "11.2.0.86")
    )


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("11.0.0", ["4381", "4388"]), ("11.1.0", ["4381", "4388"]), ("11.2.0", []), ("11.5.0", [])],
)
def test_what_a_version_does_wrong_is_said_of_plans_that_meet(version, numbers):
    said = " ".join(allowed().cautions(testmodels.flux, parse_plan("tp4"), version))

    assert [number for number in ("4380", "4381", "4388") if number in said] == numbers
    alone = allowed().cautions(testmodels.flux, parse_plan("dp4"), version)
    assert not any("pytorch" in line for line in alone)


def test_what_is_nearest_fits_too():
    """Four copies of Llama 3.1 70B do not fit the GPUs that a ring of four was asked for."""
    scenario = resolve(Request(model="llama-3.1-70b", gpus=4))

    with pytest.raises(
        IllegalPlanError, match=r"ring needs.*nearest that run: pp4, tp4, dp2\.pp2$"
    ):
        check_tensorrt(scenario, parse_plan("ring4"))


def test_all_to_all_is_newer_than_the_other_collectives():
    assert "all_to_all" in said("ulysses4", version="10.16.0")
    assert said("tp4", version="10.16.0") == ""
    assert said("tp4", version="10.15.1") != ""


def test_dense_experts_and_new_nccl_are_said():
    assert any("2.28" in one for one in allowed().cautions(testmodels.flux, parse_plan("ulysses2")))
    assert any("expert" in one for one in allowed().cautions(testmodels.experts, parse_plan("tp2")))


def test_the_nearest_plans_that_run_are_offered():
    scenario = resolve(Request(model="flux.1-dev", gpus=8))
    model, work, node = scenario.model, scenario.workload, scenario.deployment.hardware
    legal = [one for one in plans(model, 8) if not any(objections(model, work, one, 8))]
    able = [one for one in legal if not any(allowed().obstacles(one, node))]

    near = nearest(parse_plan("ulysses4.ring2"), able)

    assert len(near) == 3
    assert "ring" not in "".join(map(str, near))
    assert any(dict(one.axes).get("ulysses") == 4 for one in near)


@pytest.mark.parametrize(("model", "gpus"), [("flux.1-dev", 4), ("cosmos3", 8), ("z-image", 6)])
def test_a_recommendation_marks_what_does_not_run(model, gpus):
    """A mark for each plan that has something against it, with plans that have nothing."""
    scenario = resolve(Request(model=model, gpus=gpus, runtime="tensorrt"))
    answer = recommend_plans(scenario)
    barred = {
        one.plan
        for one in answer.plans
        if any(allowed().obstacles(one.plan, scenario.deployment.hardware))
    }

    assert {mark.plan for mark in answer.refusals} == barred
    uneven = {mark.plan for mark in answer.refusals if "which TensorRT's builder" in mark.reason}
    assert all("ring" in str(plan) or "pp" in str(plan) for plan in barred - uneven)
    assert all(len(set(dict(plan.axes).values())) > 1 for plan in uneven)
    for mark in answer.refusals:
        assert mark.reason
        assert mark.nearest
        assert not barred.intersection(mark.nearest)
        assert {near.gpus for near in mark.nearest} == {mark.plan.gpus}
    names = [one.plan for one in answer.plans]
    assert set(names[len(answer.runnable) :]) == barred
    rows = answer.to_dict()["marks"]
    assert [row["plan"] for row in rows] == [str(mark.plan) for mark in answer.refusals]


def test_footnotes_say_a_reason_once_and_only_of_what_is_shown():
    answer = recommend_plans(resolve(Request(model="flux.1-dev", gpus=4, runtime="tensorrt")))

    lines = footnotes(answer.scenario, answer.plans, answer.refusals)

    reasons = {mark.reason for mark in answer.refusals}
    assert sum(line.startswith("! not with TensorRT: ") for line in lines) == len(reasons)
    assert all(str(mark.plan) in " ".join(lines) for mark in answer.refusals)
    assert len(lines) == len(set(lines))
    running = [one for one in answer.plans if str(one.plan) == "tp4"]
    assert footnotes(answer.scenario, running, answer.refusals) == []


@pytest.mark.parametrize(
    ("model", "more", "offered"),
    [
        ("wan2.1-1.3b", {"hardware": "b200"}, 1),
        ("wan2.1-1.3b", {"hardware": "b200", "tensorrt_version": "10.16.0"}, 0),
        ("wan2.1-1.3b", {"hardware": "h100-sxm"}, 0),
        ("wan2.1-1.3b", {"hardware": "rtx-5090"}, 0),
        ("cosmos3-edge", {"hardware": "b200"}, 0),  # keys of its text are on every rank
    ],
)
def test_attention_over_several_devices_is_offered_where_it_is_exported(model, more, offered):
    answer = recommend_plans(resolve(Request(model=model, gpus=4, runtime="tensorrt", **more)))
    (gathers,) = (one for one in answer.plans if str(one.plan) == "cfg2.allgather_kv2")

    lines = footnotes(answer.scenario, [gathers], answer.refusals)

    said = [line for line in lines if "--multi-device-attention" in line]
    assert len(said) == offered
    assert all("a ring inside the layer" in line for line in said)
    try:
        tensorrt_folder(answer.scenario, gathers, multi_device=True)
    except IllegalPlanError:
        assert not offered
    else:
        assert offered


def test_a_runtime_of_our_own_marks_nothing():
    answer = recommend_plans(resolve(Request(model="flux.1-dev", gpus=4, runtime="torch-graph")))

    assert answer.refusals == ()
    assert "marks" not in answer.to_dict()
    assert answer.runs[0].launch.line.startswith("planner validate --model flux.1-dev --plan ")


@pytest.mark.parametrize("text", ["", "eleven", "11.x", "11..2", "9" * 20])
def test_a_version_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="version: got"):
        read_version(text)


def test_the_table_is_as_the_documents_say():
    """Facts of NVIDIA's pages for 11.0 to 11.5, with their sources beside them."""
    known = allowed()

    assert known.capability == (8, 0)
    assert (known.attention_capability, known.attention_below) == ((10, 0), (12, 0))
    assert set(known.attention_types) == {"fp16", "bf16"}
    assert known.nccl_search == ("libnccl.so.2", "libnccl.so")
    assert known.nccl_all_to_all == (2, 28)
    assert set(known.excluded) == {"dla", "ragged", "refit", "safety"}
    assert all(known.sources.values())
    assert known.platforms["x86_64"].systems == ("Ubuntu 24.04", "Rocky Linux 8")
    assert known.platforms["aarch64"].cuda == ((13, 2),)
    assert not known.mig
    assert min(known.since.values()) == known.first


@pytest.mark.parametrize(
    ("text", "barred"),
    [
        ("allgather_kv2.tp4", True),
        ("ulysses2.allgather_kv4", True),
        ("ulysses4.allgather_kv2", True),
        ("allgather_kv4.tp2", False),
        ("ulysses2.allgather_kv2.tp2", False),
        ("cfg2.allgather_kv4", False),
        ("cfg2.tp4", False),
    ],
)
def test_gathers_among_fewer_ranks_than_others_are_barred(text, barred):
    """As the builder of TensorRT-RTX 1.7.1 builds them, or does not."""
    assert ("which TensorRT's builder refuses" in said(text)) is barred
    assert bool(said(text)) is barred
