"""Which way each engine sends tokens to experts that are spread, what that costs, what to type."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from costmodels import memory
from costmodels.collectives.dispatch import WAYS, Exchange
from costmodels.expert_routing import Routing
from costmodels.price import price
from costmodels.program import Collective, ExpertTokens, Matmul, Tensor
from planner.engines.tables import engines
from planner.lowering import lower
from planner.request.request import Request
from planner.runners.launch import launch_lines
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.search.evaluate import evaluate
from planner.search.plans import objections
from planner.strategies import parse_plan
from topology.base import InputError

ROUTING = Routing(experts=256, top_k=8, groups=8, top_groups=4)
FEATURES = 7168


def asked(engine, hardware, gpus, nodes=0, **more):
    at = {"nodes": nodes} if nodes else {}
    return resolve(
        Request(
            model="deepseek-v3", hardware=hardware, gpus=gpus, engine=engine, batch=gpus,
            input_tokens=256, output_tokens=8, **at, **more,
        )
    )  # fmt: skip


def own(gpus):
    """Every rank has requests, and experts, of its own."""
    return parse_plan(f"adp{gpus}/ep{gpus}")


@pytest.mark.parametrize(
    ("engine", "hardware", "gpus", "nodes", "ways", "flag"),
    [
        ("vllm", "h200-sxm", 8, 0, ["allgather_reducescatter"], ""),
        ("vllm", "h200-sxm", 16, 2, ["deepep_low_latency"], "--all2all-backend deepep_low_latency"),
        ("vllm", "gb200", 32, 0, ["nvlink_one_sided"], "flashinfer_nvlink_one_sided"),
        ("sglang-llm", "h200-sxm", 8, 0, ["allgather_reducescatter"], ""),
        (
            "sglang-llm", "h200-sxm", 16, 2, ["deepep_low_latency", "deepep_normal"],
            "--moe-a2a-backend deepep",
        ),
        ("tensorrt-llm", "b200", 8, 0, ["nvlink_one_sided"], ""),
        ("tensorrt-llm", "gb200", 32, 0, ["nvlink_one_sided"], ""),
        ("tensorrt-llm", "h200-sxm", 16, 2, ["deepep_normal"], ""),
        ("tensorrt-llm", "rtx-pro-6000", 8, 0, ["allgather_reducescatter"], ""),
    ],
)  # fmt: skip
def test_each_engine_takes_the_way_that_its_code_takes_there(
    engine, hardware, gpus, nodes, ways, flag
):
    scenario, plan = asked(engine, hardware, gpus, nodes), own(gpus)
    target = scenario.deployment.target(scenario.model, plan)
    assert [way.way for way in target.ways] == ways
    title = {one.name: one.title for one in engines().engines}[engine]
    (line,) = [one for one in launch_lines(scenario, plan) if one.engine == title]
    told = "all2all-backend" in line.command or "moe-a2a-backend" in line.command
    assert told == bool(flag), line
    assert line.command.count(flag) == 1 or not flag


def test_more_experts_a_token_than_one_sided_kernels_have_room_for_take_the_next_way():
    scenario = asked("tensorrt-llm", "b200", 8)
    fabric, device = scenario.deployment.spread(own(8)), scenario.deployment.hardware.device
    model = scenario.model
    habits = scenario.deployment.habits
    assert [way.way for way in habits.ways(model, fabric, device)] == ["nvlink_one_sided"]
    few = [replace(way, top_k=min(way.top_k, 4)) for way in habits.tokens]
    smaller = replace(habits, tokens=tuple(few))
    assert [way.way for way in smaller.ways(model, fabric, device)] == ["nvlink_two_sided"]


def test_ways_of_engines_are_known_and_have_a_source():
    for engine in engines().engines:
        for way in engine.habits.tokens:
            assert way.way in WAYS
            assert set(way.over) <= {"node", "rack", "network"}
        assert bool(engine.habits.tokens) == ("tokens" in engine.sources)


def test_experts_that_ranks_share_leave_the_messages_as_they_are():
    scenario = asked("tensorrt-llm", "b200", 8)
    for text in ("adp8", "adp4.tp2/ep8", "tp8/ep8"):
        assert not scenario.deployment.target(scenario.model, parse_plan(text)).ways


def carried(tokens, kind="all_gather"):
    """What a program says of tokens that are gathered for their experts, or of results."""
    small, large = Tensor("x", (1, tokens, FEATURES)), Tensor("y", (8, tokens, FEATURES))
    x, out = (small, large) if kind == "all_gather" else (large, small)
    what = ExpertTokens(routing=ROUTING, features=FEATURES, precision="fp8_block")
    return Collective(kind=kind, x=x, out=out, axis="adp", degree=8, tokens=what)


@pytest.mark.parametrize(
    ("kind", "phase", "sent"),
    [("all_gather", "dispatch", 7392), ("reduce_scatter", "combine", 14336)],
)
def test_a_message_to_experts_costs_what_its_way_costs(kind, phase, sent):
    scenario = asked("tensorrt-llm", "b200", 8)
    target = scenario.deployment.target(scenario.model, own(8))
    of = Exchange(
        phase=phase, way="nvlink_one_sided", routing=ROUTING, fabric=target.fabrics["adp"],
        device=target.device, engine="tensorrt-llm", launch="graph",
    )  # fmt: skip
    found = price(carried(512, kind), target)
    assert found.seconds == of.time(512.0, float(sent))
    without = price(carried(512, kind), replace(target, ways=()))
    assert found.seconds < without.seconds


def test_a_way_for_few_tokens_gives_place_to_the_next():
    scenario = asked("sglang-llm", "h200-sxm", 16, 2)
    target = scenario.deployment.target(scenario.model, own(16))
    few, many = target.ways
    sizes = np.array([1.0, few.most, few.most + 1, 4096.0])
    together = price(carried(sizes), target).seconds
    for size, seconds, way in zip(sizes, together, (few, few, many, many), strict=True):
        alone = replace(target, ways=(replace(way, most=np.inf),))
        assert seconds == pytest.approx(price(carried(size), alone).seconds)


def experts_of(scenario, plan):
    """Give the first product of experts that a prompt passes."""
    program = lower(scenario.model, scenario.workload, plan)
    return next(
        op
        for stage in program.stages
        for op, _ in stage.nested()
        if isinstance(op, Matmul) and op.route is not None
    )


@pytest.mark.parametrize("engine", ["tensorrt-llm", "vllm"])
def test_experts_of_a_rank_pass_over_the_tokens_that_came(engine):
    """Eight times the ranks bring each rank 1.5 times the tokens, for as many rows of experts."""
    seconds = {}
    for gpus in (8, 64):
        scenario = asked(engine, "gb200", gpus, expert_distribution="balanced")
        target = scenario.deployment.target(scenario.model, own(gpus))
        product = experts_of(scenario, own(gpus))
        seconds[gpus] = price(product, target).seconds
        assert seconds[gpus] < price(product, replace(target, ways=())).seconds

    assert seconds[64] < 1.5 * seconds[8]


def test_experts_after_a_gather_pass_over_all_tokens():
    scenario = asked("vllm", "h200-sxm", 8)
    target = scenario.deployment.target(scenario.model, own(8))
    product = experts_of(scenario, own(8))

    assert [way.way for way in target.ways] == ["allgather_reducescatter"]
    assert price(product, target).seconds == price(product, replace(target, ways=())).seconds


def test_a_program_says_which_of_its_messages_carry_tokens():
    scenario = asked("vllm", "h200-sxm", 8)
    for text, told in (("adp8/ep8", True), ("adp8", False)):
        program = lower(scenario.model, scenario.workload, parse_plan(text))
        found = {
            op.tokens
            for stage in program.stages
            for op, _ in stage.nested()
            if isinstance(op, Collective) and op.kind in ("all_gather", "reduce_scatter")
        } - {None}
        assert bool(found) == told
        assert all(one.routing == ROUTING and one.features == FEATURES for one in found)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", """--enable-eplb --eplb-config '{"num_redundant_experts":32}'"""),
        ("sglang-llm", "--enable-eplb --ep-num-redundant-experts 32"),
        ("tensorrt-llm", "32 copies of experts: needs moe_config"),
    ],
)
def test_copies_of_experts_are_in_memory_in_time_and_on_the_launch_line(engine, flags):
    plain, copied = (
        asked(engine, "h200-sxm", 16, 2, redundant_experts=copies) for copies in (None, 32)
    )
    programs = [lower(one.model, one.workload, own(16)) for one in (plain, copied)]
    whole, more = (memory.weights(program.stages) for program in programs)
    lines = " ".join(f"{line.command} {line.notes}" for line in launch_lines(copied, own(16)))
    before, after = (evaluate(one, own(16)).latency_s for one in (plain, copied))

    layers, expert = 58, 3 * 7168 * 2048
    assert more - whole == pytest.approx(2 * layers * expert, rel=0.01)  # 288 on 16 ranks, in fp8
    assert after < before
    assert flags in lines


def test_copies_of_experts_need_groups_that_they_divide_by():
    scenario = asked("vllm", "h200-sxm", 8, redundant_experts=30)

    def said(plan):
        return list(objections(scenario.model, scenario.workload, parse_plan(plan), 8))

    assert "30 copies of experts need experts in groups (ep)" in said("tp8")
    assert "256 experts and 30 copies do not divide by ep8" in said("tp8/ep8")
    with pytest.raises(InputError, match="redundant_experts: got 4, and llama"):
        resolve(Request(model="llama-3.1-8b", redundant_experts=4))


def skewed(model="deepseek-v3", **more):
    """Seconds of prompts by `adp8/ep8`, and of all messages."""
    scenario = resolve(
        request_of(
            model, 8, {"hardware": "b200", "engine": "tensorrt-llm", "batch": 64, **more}, own(8)
        )
    )
    found = evaluate(scenario, own(8))
    return found.stages_s["prefill"], found.breakdown_s["communication_exposed"]


def test_the_experts_that_were_seen_are_waited_for_in_products_and_messages(tmp_path):
    """Of eight ranks the first holds what takes half of all tokens; the order is the experts'."""
    seen = (217.0,) * 8 + (7.0,) * 224 + (0.0,) * 24
    listed = tmp_path / "layer0.csv"
    listed.write_text("\n".join(map(str, seen)))

    even, one, file = (
        skewed(expert_distribution=how) for how in ("uniform", np.array(seen), listed)
    )
    assert one == file
    assert one[0] > even[0]
    assert one[1] > even[1]
    assert skewed(expert_distribution=[3] * 256) == even
    assert skewed(expert_distribution=seen[::-1])[0] == pytest.approx(one[0])
    assert skewed(expert_distribution="power_law")[0] >= skewed()[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1] * 255, "got 255 numbers, wanted one for each of 256"),
        ([0] * 256, "got tokens of 0 experts, wanted at least 8"),
        ([-1] + [1] * 255, "got -1.0, wanted tokens from 0"),
        ([], "got \\(\\), wanted a name, a file"),
        (np.array("x"), "got array.*, wanted a name, a file"),
        (cycle([1]), "got <itertools.cycle .*, wanted a name, a file"),  # it never ends
        ("zipf", "got 'zipf', No such file .*; wanted balanced, uniform, power_law"),
        ("power_law_400", "got 'power_law_400', wanted an exponent of at most 10"),
    ],
)
def test_experts_that_cannot_have_been_seen_are_refused_in_a_line(given, said):
    with pytest.raises(InputError, match=f"expert_distribution: {said}"):
        skewed(expert_distribution=given)
    with pytest.raises(InputError, match=r"expert_distribution: got .*llama-3.1-8b has no experts"):
        skewed("llama-3.1-8b", expert_distribution="balanced")


@pytest.mark.parametrize(("engine", "most"), [("vllm", 256), ("sglang-llm", 1024)])
def test_a_shared_expert_runs_beside_others_up_to_the_tokens_of_each_engine(engine, most):
    """Its weights pass the same memory, and it is not waited for."""
    scenario, plan = asked(engine, "h200-sxm", 8), parse_plan("tp8")
    target = scenario.deployment.target(scenario.model, plan)
    alone = replace(target, beside=0)
    (product, *_) = (
        op for op in lower(scenario.model, scenario.workload, plan).stages[1].walk()
        if isinstance(op, Matmul) and op.beside
    )  # fmt: skip

    def times(rows, target):
        out = replace(product.out, shape=(1, rows, product.weight.local_columns))
        return price(replace(product, out=out), target).seconds

    assert times(most, target) < 0.5 * times(most, alone)
    assert times(1, target) == product.weight.bytes / target.device.memory_bandwidth.value
    assert times(most + 1, target) == times(most + 1, alone)
