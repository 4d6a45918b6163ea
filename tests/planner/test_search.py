"""Every plan is judged, the best comes first whatever the order, and no plan is lost."""

import math
import re
from dataclasses import replace

import pytest
from generators import MODELS, asked, judge_all, made, ranked, recommended
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.tables import profile_for
from planner.recommendation import estimate_plan, recommend_plans, shortened
from planner.request.plan import Plan, nearest
from planner.request.request import Request
from planner.runners.refusal import refusal
from planner.runners.runners import compare
from planner.scenario.scenario import resolve
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.evaluate import Shared, price
from planner.search.judging import judge
from planner.search.plan_memory import least_bytes, usable_bytes
from planner.search.plans import legal_plans, objections, plans, unpiped
from planner.search.ranking import TIE, counts_up_to, rank, search
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, InputError, format_bytes

OBJECTIVES = ("latency", "throughput", "memory", "cost")


def goal(one, objective):
    return {
        "latency": one.latency_s,
        "throughput": -one.throughput_per_s,
        "memory": one.memory_bytes,
        "cost": one.gpus / one.throughput_per_s,
    }[objective]


def request(objective="latency", **more):
    return Request(model="flux", gpus=8, objective=objective, **more)


plan_of = st.sampled_from(
    ["tp8", "ulysses8", "ring8", "cfg2.tp4", "dp2.tp4", "tp4", "tp2", "single"]
)


@st.composite
def estimates(draw):
    """Estimates with many ties."""
    plan = parse_plan(draw(plan_of))
    return made(
        plan=plan,
        gpus=plan.gpus,
        latency_s=float(draw(st.integers(1, 3))),
        throughput_per_s=draw(st.sampled_from([0.5, 1.0])),
        memory_bytes=float(draw(st.integers(1, 2))),
    )


found = st.lists(estimates(), max_size=6, unique_by=lambda one: str(one.plan))


@given(
    found=found, data=st.data(), objective=st.sampled_from(OBJECTIVES), at_most_gpus=st.booleans()
)
def test_the_order_of_plans_does_not_depend_on_how_they_came(found, data, objective, at_most_gpus):
    shuffled = data.draw(st.permutations(found))
    asked_for = request(objective, at_most_gpus=at_most_gpus)

    assert rank(shuffled, asked_for) == rank(found, asked_for)


@given(found=found, objective=st.sampled_from(OBJECTIVES))
def test_plans_are_sorted_by_the_objective_then_fewer_gpus_then_latency_then_name(found, objective):
    ranked = rank(found, request(objective))

    keys = [(goal(one, objective), one.gpus, one.latency_s, str(one.plan)) for one in ranked]
    assert keys == sorted(keys)
    assert sorted(map(str, (one.plan for one in ranked))) == sorted(str(one.plan) for one in found)


@given(found=found, objective=st.sampled_from(OBJECTIVES))
def test_when_fewer_gpus_may_do_the_fewest_of_the_best_comes_first(found, objective):
    ranked = rank(found, request(objective, at_most_gpus=True))
    if not ranked:
        return
    best = min(goal(one, objective) for one in found)
    close = [one for one in found if goal(one, objective) <= best + TIE * abs(best)]

    assert ranked[0].gpus == min(one.gpus for one in close)
    assert ranked[0] in close
    assert ranked[1:] == [one for one in rank(found, request(objective)) if one is not ranked[0]]


@pytest.mark.parametrize("gpus", [1, 2, 3, 6, 8, 12])
@pytest.mark.parametrize("model", ["flux.1-dev", "llama-3.1-8b"])
def test_every_way_to_multiply_degrees_is_tried_once(model, gpus):
    every = list(plans(asked(model).model, gpus))

    assert len(set(every)) == len(every)
    assert all(plan.gpus == gpus for plan in every)
    assert all(min(degree for _, degree in plan.axes) > 1 for plan in every if plan.axes)
    assert all(parse_plan(f"{name}{gpus}") in every for name in ("tp", "dp", "pp", "ring"))
    assert all(parse_plan(str(plan)) == plan for plan in every)


def test_eight_gpus_have_seventy_seven_plans():
    """Three factors of two over 7 axes: C(9, 6) = 84; 7 of them have both ring and allgather_kv."""
    assert len(list(plans(asked("flux.1-dev").model, 8))) == math.comb(9, 6) - 7


@pytest.mark.parametrize("gpus", [1, 2, 6, 12, 64, 96, 3600, 16384])
def test_counts_are_powers_of_two_and_divisors(gpus):
    counts = counts_up_to(gpus, many=64)

    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, gpus)
    assert all(gpus % count == 0 or count.bit_count() == 1 for count in counts)
    assert len(counts) <= 16


def test_the_most_gpus_are_answered_by_replicas_of_the_best_few():
    """A request by itself is as fast on a replica beside others as alone."""
    most, few = (ranked("llama-3.1-8b", gpus, output_tokens=16) for gpus in (16384, 8))

    best, alone = most.plans[0], few.plans[0]
    assert str(best.plan) == f"dp{16384 // alone.gpus}.{alone.plan}"
    assert best.latency_s == alone.latency_s
    assert best.throughput_per_s == pytest.approx(alone.throughput_per_s * 16384 / alone.gpus)


@pytest.mark.parametrize("model", ["flux.1-dev", "wan2.1-14b", "llama-3.1-70b", "mixtral-8x7b"])
def test_a_recommendation_has_every_plan_once(model):
    answer = recommended(model)
    every = set(plans(asked(model).model, 8))

    shown = [one.plan for one in answer.plans] + [one.plan for one in answer.rejected]
    assert len(shown) == len(every)
    assert set(shown) == every
    usable = usable_bytes(asked(model))
    assert all(one.memory_bytes <= usable for one in answer.plans)
    assert all(one.reason for one in answer.rejected)


@pytest.mark.parametrize("model", MODELS)
def test_more_gpus_are_never_slower_at_their_best(model):
    """Scaling holds the best plan at each count; more GPUs can always do as fewer do, or better."""
    answer = ranked(model)
    latencies = [one.latency_s for one in answer.scaling]

    assert [one.gpus for one in answer.scaling] == sorted({one.gpus for one in answer.scaling})
    assert latencies == sorted(latencies, reverse=True)
    assert all(one.latency_s * one.gpus >= latencies[-1] for one in answer.scaling)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_puts_its_best_first(objective):
    answer = recommended("wan2.1-14b", objective=objective)
    for half in (answer.runnable, answer.plans[len(answer.runnable) :]):
        goals = [goal(one, objective) for one in half]
        assert goals == sorted(goals)


def test_throughput_is_served_by_replicas():
    """Llama-3.1-8B fits one GPU: 4 replicas answer more than 4 GPUs on one request."""
    best = recommended("llama-3.1-8b", 4, objective="throughput").plans[0]

    assert str(best.plan) == "dp4"


def test_guidance_comes_before_the_sequence():
    """Wan2.1-14B on 8 H100: xDiT and SGLang split the two forwards of a step first."""
    assert recommended("wan2.1-14b").plans[0].plan.degree("cfg") == 2


def test_the_best_plan_of_sana_that_its_engine_has_is_the_measured_one():
    """XDiT's docs/performance/sana.md: of cfg, ulysses and ring on 8 A100 at 4096 squared."""
    asked_ = {"height": 4096, "width": 4096, "engine": "xdit", "runtime": "torch-eager"}
    found = recommended("sana-1.6b", hardware="a100-sxm-80gb", **asked_)

    assert str(found.lead.plan) == "cfg2.ulysses2.ring2"


def test_plans_of_fewer_gpus_that_cannot_fit_are_not_priced(monkeypatch):
    scenario, priced = asked("cosmos3", 16, batch=64), []

    def noted(here, plan, shared):
        priced.append((plan, price(here, plan, shared)))
        return priced[-1][1]

    monkeypatch.setattr("planner.search.judging.price", noted)
    search(scenario)
    usable = usable_bytes(scenario)
    least = {plan: least_bytes(scenario, plan.degree("dp")) for plan, _ in priced}
    assert any(size > usable for size in least.values())
    assert all(plan.gpus == 16 for plan, size in least.items() if size > usable)
    assert all(estimate.memory_bytes >= least[plan] for plan, estimate in priced)


def test_what_does_not_fit_is_told_how_much_is_short():
    scenario = asked("cosmos3-super", 2)
    outcomes = [one for one in judge_all(scenario) if isinstance(one, Rejected)]

    assert outcomes
    for one in outcomes:
        needed = judge(
            replace(scenario, deployment=roomy(scenario.deployment)), one.plan
        ).memory_bytes
        assert one.short.memory_bytes == needed
        short = format_bytes(needed - usable_bytes(scenario))
        assert f" a GPU, {short} short, at " in one.reason


def roomy(deployment):
    """The same hardware with a terabyte a GPU."""
    device = deployment.hardware.device
    memory = replace(device.memory, value=1e12)
    return replace(
        deployment, hardware=replace(deployment.hardware, device=replace(device, memory=memory))
    )


def test_of_a_language_model_the_nearest_are_those_that_some_engine_runs():
    with pytest.raises(IllegalPlanError, match=r"nearest that can on 3 GPUs: dp3, pp3$"):
        estimate_plan(asked("llama-3.1-8b", gpus=3), "tp3")


def test_where_equal_pieces_do_not_divide_unequal_ones_are_nearest():
    with pytest.raises(IllegalPlanError, match=r"nearest that can on 5 GPUs: uaa5, dp5, pp5$"):
        estimate_plan(asked("flux.1-dev", gpus=5), "ulysses5")


def test_an_illegal_plan_is_answered_with_the_nearest_legal_ones():
    with pytest.raises(IllegalPlanError) as error:
        estimate_plan(asked("wan2.1-1.3b"), "ulysses8")

    said = str(error.value)
    assert "12 heads do not divide by ulysses8" in said
    near = said.partition("nearest that can on 8 GPUs: ")[2].split(", ")
    assert len(near) == 3
    for text in near:
        outcome = judge(asked("wan2.1-1.3b"), parse_plan(text))
        assert isinstance(outcome, PlanEstimate)


@pytest.mark.parametrize(
    ("model", "gpus", "plan", "said"),
    [
        ("flux.1-dev", 8, "tp4", "degrees multiply to 4 (4), not to 8 GPUs: it takes --gpus 4"),
        ("flux.1-dev", 2, "cfg2", "one forward (no guidance), which cfg2 does not divide"),
        ("flux.1-dev", 2, "ep2", "adp2 is of language models"),
        ("llama-3.1-8b", 2, "tp2/ep2", "ep2: llama-3.1-8b has no experts"),
        ("mixtral-8x7b", 3, "adp3/ep3", "8 experts do not divide by ep3"),
        ("mixtral-8x7b", 2, "tp2/ep4", "ep4 does not divide the 2 ranks of adp x tp"),
        ("mixtral-8x7b", 4, "tp2.adp2", "adp stands outside tp"),
        ("qwen3-next-80b-a3b", 2, "ring2", "a recurrence over a cut sequence is not modelled"),
        ("cosmos3-super", 1, "single", " GiB short, at vae decode"),
        ("flux.1-dev", 2, "tp2/vae4", "vae4 needs more than 2 GPUs"),
    ],
)
def test_reasons_say_what_got_and_wanted(model, gpus, plan, said):
    with pytest.raises(IllegalPlanError, match=re.escape(said)) as error:
        estimate_plan(asked(model, gpus), plan)

    assert "\n" not in str(error.value)
    assert isinstance(error.value, InputError)


def test_blocks_of_a_scale_are_not_parted():
    scenario, plan = asked("deepseek-v3", 32), parse_plan("tp32")
    said = "; ".join(objections(scenario.model, scenario.workload, plan, 32))

    assert "2048 over tp32 is not a multiple of the quantisation block" in said


@pytest.mark.parametrize(
    ("tokens", "engine", "shown"),
    [(2048, "vllm", False), (2048, "planner", True), (65536, "vllm", True)],
)
def test_plans_that_cut_a_prompt_are_shown_to_whom_they_matter(tokens, engine, shown):
    """To what runs them always, to others for long prompts."""
    more = {"engine": engine, "input_tokens": tokens, "output_tokens": 1, "concurrency": None}
    runtime = "torch-compile" if engine == "planner" else "tensorrt"
    found = recommended("llama-3.1-8b", 4, runtime=runtime, **more)
    cut = [str(one.plan) for one in found.plans if one.plan.sequence_ranks > 1]

    assert bool(cut) == shown
    assert not shown or {"ring4", "allgather_kv4", "ulysses2.ring2", "ring2.tp2"} <= set(cut)


def test_a_plan_may_be_left_out_on_one_gpu_only():
    assert estimate_plan(asked("flux.1-dev", 1), None).plan == Plan()
    with pytest.raises(InputError, match="a plan is needed for 2 GPUs, such as tp2"):
        estimate_plan(asked("flux.1-dev", 2), None)
    with pytest.raises(InputError, match="expected axes and degrees"):
        estimate_plan(asked("flux.1-dev", 1), "")


@given(data=st.data())
@settings(max_examples=20)
def test_a_legal_plan_is_its_own_nearest(data):
    every = list(plans(asked("flux.1-dev").model, data.draw(st.sampled_from([4, 8]))))
    plan = data.draw(st.sampled_from(every))

    assert nearest(plan, every)[0] == plan
    assert len(nearest(plan, every, count=5)) == 5


def test_near_means_the_same_axes_first():
    legal = [parse_plan(text) for text in ("tp8", "dp8", "ulysses4.ring2", "ulysses8")]

    assert str(nearest(parse_plan("ulysses16"), legal)[0]) == "ulysses8"
    assert str(nearest(parse_plan("ring8"), legal)[0]) == "ulysses4.ring2"


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_the_number_of_plans_to_show_is_within_reason(count):
    with pytest.raises(InputError, match=f"top: got {count}"):
        shortened(recommended("flux.1-dev"), count)


def test_a_shortened_answer_is_the_head_of_the_whole():
    whole = recommended("flux.1-dev")

    assert shortened(whole, 3).plans == whole.plans[:3]
    assert shortened(whole, 3).rejected == whole.rejected


def test_a_plan_of_the_wrong_size_is_the_only_objection():
    scenario = asked("flux.1-dev", 2)

    assert list(objections(scenario.model, scenario.workload, parse_plan("cfg4"), 2)) == [
        "degrees multiply to 4 (4), not to 2 GPUs: it takes --gpus 4"
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [("h100-sxm-x2-2026-11-28", "this machine's own profile of 2026-11-28"), ("", "the shipped")],
)
def test_the_profile_of_a_machine_that_was_looked_at_is_named(name, said):
    scenario = asked("flux.1-dev", 2)
    seen = replace(
        scenario,
        request=replace(scenario.request, detect=True),
        deployment=replace(scenario.deployment, profile=profile_for("h100-sxm", name)),
    )

    assert any(note.startswith(f"priced with {said}") for note in recommend_plans(seen).notes)
    assert recommend_plans(scenario).notes == ()


PIPED = [
    ("llama-3.1-70b", 8, "h100-sxm", "vllm"),
    ("qwen3-30b-a3b", 8, "h200-sxm", "sglang-llm"),
    ("gpt-oss-120b", 16, "h100-sxm", "tensorrt-llm"),
    ("nemotron-3-nano", 4, "l40s", "vllm"),
]


@pytest.mark.parametrize(("model", "gpus", "hardware", "engine"), PIPED)
def test_a_pipeline_answers_one_request_no_sooner_than_replicas_in_its_place(
    model, gpus, hardware, engine
):
    scenario = resolve(Request(model=model, gpus=gpus, hardware=hardware, engine=engine))
    legal = legal_plans(scenario.model, scenario.workload, gpus)
    pairs = [(plan, unpiped(plan, passes=1)) for plan in legal if plan.degree("pp") > 1]
    both = [(piped, other) for piped, other in pairs if other in legal]

    assert both
    shared = Shared()
    for piped, other in both:
        later, sooner = (price(scenario, plan, shared).latency_s for plan in (piped, other))
        assert later >= sooner


EAGER = ("llama-3.1-8b", 4, "h100-sxm", "vllm", "torch-eager")
"""Hosts of all stages begin to launch at once there: a pipeline may be the best."""


@pytest.mark.parametrize(
    ("model", "gpus", "hardware", "engine", "runtime"), [*((*row, "") for row in PIPED), EAGER]
)
def test_pipelines_that_are_left_out_are_never_an_engines_best(
    model, gpus, hardware, engine, runtime
):
    asked_ = Request(model=model, gpus=gpus, hardware=hardware, engine=engine, runtime=runtime)
    (found,) = compare(resolve(asked_))

    own = found.scenario
    legal = legal_plans(own.model, own.workload, gpus)
    judged = [judge(own, plan) for plan in legal if not refusal(own, plan)]
    every = [row for row in judged if isinstance(row, PlanEstimate)]
    assert found.estimate.plan == rank(every, asked_)[0].plan
