"""Where GPUs are many, plans are left out of which others are known to be as good."""

from dataclasses import replace
from itertools import product

import pytest
from generators import asked, made, priced, ranked, recommended

from costmodels.program import Pointwise, SendReceive
from planner.lowering import lower_places
from planner.lowering.diffusion import _combine, _combining_ops, _forward, _through_stage
from planner.lowering.program import _cuts
from planner.lowering.work import rank_work
from planner.request.plan import Plan
from planner.runners.refusal import refusal
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.evaluate import Shared
from planner.search.judging import MANY_GPUS, judge
from planner.search.plans import (
    illegal_axes,
    legal_plans,
    objections,
    plans,
    replica,
    replicated,
    reversed_nesting,
    shallower,
    unpiped,
)
from planner.search.ranking import TIE, Ranking, goal, rank, search
from planner.serving.serving import served_ranking
from planner.strategies import parse_plan


@pytest.mark.parametrize(
    ("plan", "passes", "instead"),
    [
        ("pp4.tp2", 1, "dp4.tp2"),
        ("pp4.tp2", 2, "dp2.cfg2.tp2"),
        ("pp4.cfg2", 2, "dp4.cfg2"),
        ("dp2.pp2.ulysses4", 2, "dp2.cfg2.ulysses4"),
        ("pp3", 2, None),  # two forwards do not divide three stages
        ("pp4.cfg4", 2, None),  # not legal itself
        ("tp8", 1, "tp8"),
    ],
)
def test_a_pipeline_gives_its_gpus_to_forwards_and_replicas(plan, passes, instead):
    found = unpiped(parse_plan(plan), passes)

    assert (None if found is None else str(found)) == instead
    assert found is None or found.gpus == parse_plan(plan).gpus


@pytest.mark.parametrize(
    "model", ["cosmos3-nano", "wan2.1-14b", "hunyuanvideo", "flux.1-dev", "llama-3.1-70b"]
)
def test_a_pipeline_is_no_faster_than_what_takes_its_place(model):
    cut = ("pp2", "pp4", "pp2.tp2", "pp4.ulysses2", "pp2.cfg2", "dp2.pp2")
    for plan, hardware in product(cut, ("h100-sxm", "l40s")):
        scenario, piped = asked(model, hardware=hardware), parse_plan(plan)
        if any(objections(scenario.model, scenario.workload, piped, piped.gpus)):
            continue
        instead = unpiped(piped, scenario.workload.passes)
        slow, fast = (priced(model, str(one), hardware=hardware) for one in (piped, instead))

        assert fast.latency_s <= slow.latency_s * (1 + TIE), (plan, hardware)
        assert fast.throughput_per_s >= slow.throughput_per_s * (1 - TIE), (plan, hardware)


@pytest.mark.parametrize("gpus", [12, 64])
def test_fewer_stages_keep_the_gpus(gpus):
    for plan in plans(asked("flux.1-dev").model, gpus):
        for other in shallower(plan):
            assert other.gpus == gpus
            assert 1 < other.degree("pp") < plan.degree("pp")


@pytest.mark.parametrize("model", ["cosmos3-nano", "flux.1-dev", "wan2.1-1.3b", "llama-3.1-70b"])
def test_what_no_plan_can_have_is_in_no_legal_plan(model):
    scenario = asked(model)
    barred = illegal_axes(scenario.model, scenario.workload, 48)
    left = set(plans(scenario.model, 48, barred))

    for plan in plans(scenario.model, 48):
        legal = not any(objections(scenario.model, scenario.workload, plan, 48))
        assert plan in left or not legal
        assert (plan in left) == (not barred.keys() & set(plan.axes))


def every_outcome(scenario, gpus):
    """Judge every plan there is, in both nestings, each on its own."""
    shared = Shared()
    for plan in plans(scenario.model, gpus):
        yield judge(scenario, plan, shared)
        other = reversed_nesting(scenario.deployment, plan)
        if other is not None:
            yield judge(scenario, other, shared)


@pytest.mark.parametrize(
    ("model", "gpus", "more"),
    [
        ("wan2.1-1.3b", 66, {"hardware": "l40s"}),
        ("llama-3.1-70b", 68, {"hardware": "l40s"}),
        ("llama-3.1-8b", 68, {"hardware": "l40s", "objective": "throughput"}),
    ],
)
def test_nothing_better_is_left_out(model, gpus, more):
    answer = recommended(model, gpus, **more)
    scenario = answer.scenario
    every = [one for one in every_outcome(scenario, gpus) if isinstance(one, PlanEstimate)]
    can = [one for one in every if not refusal(scenario, one.plan)]
    if scenario.ranked_under_load:
        whole = Ranking(
            request=scenario.request, plans=(), by_gpus={gpus: can}, rejected=(), baseline=None
        )
        can = served_ranking(scenario, whole).plans
    best, first = rank(can, scenario.request)[0], answer.plans[0]

    assert gpus > MANY_GPUS
    least = goal(best, scenario.request)
    assert goal(first, scenario.request) <= least + TIE * abs(least)
    shown = {str(one.plan): one.latency_s for one in answer.plans}
    known = {str(one.plan): one.latency_s for one in every}
    assert shown == pytest.approx({name: known[name] for name in shown})


def test_what_is_left_out_is_said():
    answer = recommended("wan2.1-1.3b", 66, hardware="l40s")

    assert any("rings of more than 32" in line for line in answer.notes)
    assert any("pipelines deeper than it takes to fit" in line for line in answer.notes)
    assert answer.to_dict()["notes"] == list(answer.notes)
    assert recommended("wan2.1-1.3b", 8).notes == ()
    depths = {one.plan.degree("pp") for one in answer.plans}
    assert depths == {1, 3, 11}  # it fits without; two forwards a step do not share odd stages


def test_pipelines_are_kept_where_memory_is_the_objective():
    answer = recommended("llama-3.1-8b", 66, objective="memory")

    assert answer.plans[0].plan.degree("pp") > 1
    assert not any("pipelines" in line for line in answer.notes)


def test_pipelines_are_kept_where_nothing_fits_without():
    """70 billion parameters on 65 GPUs of 24 GB: neither 5 nor 13 divides the heads."""
    answer = ranked("llama-3.1-70b", 65, hardware="l4")

    assert answer.plans
    assert all(one.plan.degree("pp") > 1 for one in answer.plans)


def test_many_gpus_reject_a_degree_once():
    answer = recommended("wan2.1-1.3b", 66, hardware="l40s")
    rows = [one for one in answer.rejected if one.reason.endswith("for every plan that has it")]

    assert {"cfg3", "tp66", "ulysses11"} <= {str(one.plan) for one in rows}
    assert all(len(one.plan.axes) == 1 for one in rows)
    assert len({one.plan for one in answer.rejected}) == len(answer.rejected)


def test_a_degree_is_rejected_once_where_fewer_gpus_may_do():
    answer = ranked("llama-3.1-8b", 72, at_most_gpus=True)

    rows = [(one.plan, one.reason) for one in answer.rejected]
    assert len(rows) == len(set(rows))


def test_hundreds_of_gpus_are_a_few_hundred_plans():
    """Of 1254 ways to write 128 as a product."""
    answer = ranked("cosmos3-nano", 128, nodes=16)

    assert 100 < len(answer.plans) < 400
    for scaling in (answer.scaling, ranked("llama-3.1-8b", 128).scaling):
        assert [one.gpus for one in scaling] == [2**power for power in range(8)]


@pytest.mark.parametrize("gpus", [8, 16])
@pytest.mark.parametrize("model", ["flux.1-dev", "wan2.1-14b"])
def test_replicas_are_as_they_would_be_judged(model, gpus):
    """Their links are those of one alone, so that it is priced once."""
    shared = Shared()
    for one in ranked(model, gpus).plans:
        if one.plan.degree("dp") > 1:
            found = judge(asked(model, gpus), one.plan, shared)
            assert found.latency_s == pytest.approx(one.latency_s)
            assert found.memory_bytes == pytest.approx(one.memory_bytes)
            assert found.throughput_per_s == pytest.approx(one.throughput_per_s)


@pytest.mark.parametrize(
    ("hardware", "plan", "alone"),
    [
        ("h100-sxm", "dp2.tp8", "tp8"),
        ("h100-sxm", "dp4.tp4", "tp4"),
        ("h100-sxm", "dp2.tp16", "tp16"),  # hosts of eight, both times
        ("h100-sxm", "dp3.ring4", "ring4"),
        ("h100-sxm", "dp3.ring8", "ring8"),
        ("h100-sxm", "dp3.tp4.ring2", "tp4.ring2"),
        ("gb200", "dp2.tp64", "tp64"),  # one island of 72, then two of 64
        ("gb200", "dp2.tp72", "tp72"),
        ("l40s", "dp2.pp4", None),  # which share switches with others
        ("h100-sxm", "tp8", None),
        ("h100-sxm", "dp2.tp4/vae8", None),
    ],
)
def test_a_replica_alone_has_the_links_it_has_beside_others(hardware, plan, alone):
    found = replica(asked("flux.1-dev", hardware=hardware).deployment, parse_plan(plan))

    assert (None if found is None else str(found)) == alone


def test_a_replica_of_nine_on_hosts_of_eight_stands_for_nothing():
    """18 GPUs are 3 hosts of 6; 9 alone do not fit hosts evenly."""
    assert replica(asked("flux.1-dev").deployment, parse_plan("dp2.ring9")) is None


@pytest.mark.parametrize("model", ["cosmos3-nano", "llama-3.1-8b"])
@pytest.mark.parametrize("plan", ["tp2", "pp2", "single"])
def test_a_replica_takes_the_time_of_one_plan_with_its_part_of_the_batch(model, plan):
    cut = parse_plan(plan)
    many = priced(model, f"dp2.{plan}" if cut.axes else "dp2", batch=4)
    one = priced(model, plan, batch=2)

    assert (many.stages_s, many.breakdown_s) == (one.stages_s, one.breakdown_s)
    assert many.memory_parts_bytes == one.memory_parts_bytes
    assert many.throughput_per_s == pytest.approx(2 * one.throughput_per_s)
    assert many.gpus == 2 * one.gpus


@pytest.mark.parametrize("more", [{"batch": 4}, {"links": (("GPU3-NVSwitch", 0.5),)}])
def test_replicas_on_a_machine_or_with_their_part_of_a_batch_are_lowered_once(more):
    """`replica` tells of neither: they have other links alone, or another batch."""
    scenario, shared = asked("flux.1-dev", 4, **more), Shared()
    for gpus, batch in ((4, 4), (2, 2)):
        sized = replace(scenario.workload, batch=min(batch, scenario.workload.batch))
        one = replace(scenario.on(gpus), workload=sized)
        judge(one, parse_plan("dp2.ulysses2" if gpus > 2 else "ulysses2"), shared)

    assert len(shared.programs) == 1


def test_a_rejected_replica_is_rejected_for_the_same_reason():
    one = Rejected(plan=Plan(), reason="no room", short=priced("flux.1-dev"))
    found = replicated(4, one)

    assert (str(found.plan), found.reason) == ("dp4", "no room")
    assert found.short.throughput_per_s == pytest.approx(4 * one.short.throughput_per_s)
    assert replicated(4, Rejected(plan=Plan(), reason="no")).short is None
    assert "short" not in found.to_dict()


def test_replicas_are_nested_as_the_one_that_was_priced():
    """The best nesting of one may not be the usual one."""
    one = made(plan=parse_plan("allgather_kv4.ulysses4"), gpus=16)

    assert str(replicated(5, one).plan) == "dp5.allgather_kv4.ulysses4"
    assert replicated(5, one).gpus == 80


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3"])
def test_stages_and_replicas_have_their_layers_in_common(model):
    scenario = asked(model, 16)

    def layers(plan):
        places = lower_places(scenario.model, scenario.workload, parse_plan(plan))
        loops = [
            loop for place in places for op, loops in place.stages[0].nested() for loop in loops
        ]
        return {id(loop.body) for loop in loops if loop.layers}

    assert len(layers("pp4.tp2")) == len(scenario.model.blocks)
    assert layers("pp4.tp2") == layers("pp2.tp2") == layers("dp2.pp4.tp2")
    assert not layers("pp4.tp2") & layers("pp4.tp4")


@pytest.mark.parametrize("model", ["flux.1-dev", "cosmos3-nano", "wan2.1-14b"])
def test_a_turn_of_a_stage_is_written_as_if_no_other_had_been(model):
    """Stages of all plans share their operations; how many layers there are is their own."""
    scenario, known = asked(model, 8), {}
    for plan in legal_plans(scenario.model, scenario.workload, 8):
        work = rank_work(scenario.model, scenario.workload, plan)
        for stage, layers in enumerate(_cuts(work)[0] if plan.degree("pp") > 1 else ()):
            place = replace(work, layers=layers, stage=stage)
            shared = tuple(_forward(place))
            assert shared == tuple(_forward_by_itself(place))
            known |= {id(item): plan for item in shared if isinstance(item, Pointwise)}
    assert {"cfg2.pp4", "pp8", "pp4.tp2"} & {str(plan) for plan in known.values()}
    assert len(set(known)) < 100


def test_predictions_come_together_in_the_same_operations_however_layers_are_divided():
    scenario = asked("wan2.1-14b", 8)
    legal = legal_plans(scenario.model, scenario.workload, 8)
    works = [rank_work(scenario.model, scenario.workload, plan) for plan in legal]
    shared = [_combining_ops(work) for work in works]
    for work, (*sent, guidance, step) in zip(works, shared, strict=True):
        assert [*sent[len(sent) - (work.share.guidance > 1) :], guidance, step] == [*_combine(work)]
        broadcasts = [op for op in sent if op.kind == "broadcast"]
        assert [op.degree for op in broadcasts] == [work.share.stages][: work.share.stages - 1]
    assert len({id(step) for *_, step in shared}) == 2  # of one forward a rank, or of two


def _forward_by_itself(work):
    after = yield from _through_stage(work, reusing=False)
    for x in after:
        over = {"axis": "pp", "degree": work.share.stages, "stream": "compute"}
        yield SendReceive(x=x, out=x, ends=True, **over)


@pytest.mark.parametrize("model", ["flux.1-dev", "llama-3.1-8b"])
def test_what_other_gpus_share_changes_no_estimate(model):
    """Bytes of NCCL are those of each: on two kinds of GPU they were measured."""
    known = Shared()
    for hardware, gpus in product(("h100-sxm", "l40s", "h200-sxm"), (4, 2)):
        scenario = asked(model, gpus, hardware=hardware)
        for plan in legal_plans(scenario.model, scenario.workload, gpus):
            assert judge(scenario, plan, known) == judge(scenario, plan)


@pytest.mark.parametrize(
    ("model", "more"), [("llama-3.1-70b", {"precision": "fp8"}), ("flux.1-dev", {})]
)
def test_what_engines_share_changes_no_price(model, more):
    runs = [run for run in recommended(model, **more).runs if run.estimate is not None]

    assert len({run.scenario.deployment.engine for run in runs}) > 2
    for run in runs:
        alone = judge(run.scenario, run.estimate.plan)
        assert run.estimate.latency_s == pytest.approx(alone.latency_s, rel=1e-12)
        assert run.estimate.breakdown_s == pytest.approx(alone.breakdown_s, rel=1e-12)


def test_of_fewer_gpus_plans_that_nothing_runs_are_judged_as_replicas_alone():
    """Of a batch they are replicas of nothing that is an answer."""

    def runs(plan):
        return plan.degree("tp") == 1

    for batch in (1, 4):
        scenario = asked("flux.1-dev", 4, batch=batch)
        some, every = search(scenario, runs=runs), search(scenario)
        fewer = [one.plan for gpus, row in some.by_gpus.items() if gpus < 4 for one in row]

        assert any(not runs(plan) for plan in fewer) == (batch == 1)
        assert some.plans == every.plans
        assert some.only(runs).scaling == every.only(runs).scaling
