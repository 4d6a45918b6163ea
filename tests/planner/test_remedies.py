"""What is said to fit does, and it is the least change that does."""

import re
from dataclasses import replace

import pytest
from generators import asked, judge_all, ranked, recommended
from growth import calls

from planner.advice.remedies import would_fit
from planner.recommendation import estimate_plan, recommend_plans
from planner.request.plan import Plan, nearest
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.estimate import PlanEstimate
from planner.search.judging import judge
from planner.search.plan_memory import peak_of
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, counted

pytestmark = pytest.mark.usefixtures("asked_once")

CASES = [
    ("flux.1-dev", 1, {"hardware": "rtx-4090"}),
    ("cosmos3-super", 2, {"hardware": "l40s"}),
    ("cosmos3-super", 8, {"hardware": "rtx-4090"}),
    ("wan2.1-14b", 1, {"hardware": "a100-sxm-40gb"}),
    ("wan2.2-a14b", 4, {"hardware": "a100-sxm-40gb", "batch": 8}),
    ("hunyuanvideo", 1, {"hardware": "l20", "height": 720, "width": 1280, "frames": 129}),
    ("hunyuanvideo", 8, {"hardware": "rtx-4090"}),
    ("mochi-1", 1, {"hardware": "rtx-4090", "offload": True}),
    ("qwen-image", 1, {"hardware": "l40s"}),
    ("llama-3.1-70b", 1, {}),
    ("llama-3.1-405b", 8, {}),
    ("llama-3.1-8b", 1, {"hardware": "l4", "batch": 4, "input_tokens": 16384}),
    ("llama-3.1-8b", 1, {"hardware": "l4", "input_tokens": 60000}),
]
cases = pytest.mark.parametrize(("model", "gpus", "more"), CASES)


def short_of(model, gpus, **more):
    """Every legal split, none of which fits."""
    rejected = [one.short for one in ranked(model, gpus, **more).rejected]
    return [one for one in rejected if one is not None]


def suggested(line, gpus):
    """Turn "would fit: tp2 with --offload, --frames 61, tp4 on 4 GPUs" into plans and requests."""
    for way in re.split(r", ", line.partition(": ")[2]):
        on = re.fullmatch(r"(\S+) on (\d+) GPUs?", way)
        if on:
            yield on[1], {"gpus": int(on[2])}
            continue
        plan, _, flags = way.rpartition(" with ")
        named = re.findall(r"--([a-z-]+)(?: (\w+))?", flags)
        assert named, way
        changes = {name.replace("-", "_"): value for name, value in named}
        yield (
            plan or "single",
            {
                "gpus": gpus,
                **{
                    name: True
                    if name == "offload"
                    else value
                    if name == "precision"
                    else int(value)
                    for name, value in changes.items()
                },
            },
        )


@cases
def test_what_is_said_to_fit_does(model, gpus, more):
    line = would_fit(asked(model, gpus, **more), short_of(model, gpus, **more))
    ways = list(suggested(line, gpus))

    assert line.startswith("would fit: ")
    assert 1 <= len(ways) <= 4
    for plan, changes in ways:
        scenario = resolve(Request(**{"model": model, **more, **changes}))
        found = judge(scenario, parse_plan(plan))
        assert isinstance(found, PlanEstimate), (plan, changes, found.reason)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("hardware", ["l40s", "rtx-5090", "h100-sxm"])
@pytest.mark.parametrize("model", ["qwen-image", "flux.2-dev", "cosmos3-nano"])
def test_a_plan_that_is_short_says_whether_it_fits_without_its_encoders(model, hardware, offload):
    rejected = ranked(model, 2, hardware=hardware, offload=offload).rejected
    away = asked(model, 2, hardware=hardware, offload=True)

    for one in rejected:
        fits = one.short is not None and isinstance(judge(away, one.plan), PlanEstimate)
        assert ("would fit with --offload" in one.to_dict()["reason"]) == (fits and not offload)
        assert not re.search(r"\d bytes", one.reason)


def test_an_estimate_beside_plans_that_fit_says_that_it_would_with_offload():
    plan = "; would fit with --offload; nearest that can on 2 GPUs: pp2"
    with pytest.raises(IllegalPlanError, match="2.05 GiB short, at vae decode" + plan):
        estimate_plan(asked("qwen-image", 2, hardware="l40s"), "tp2")


@cases
def test_it_is_said_at_once(model, gpus, more):
    scenario, short = asked(model, gpus, **more), short_of(model, gpus, **more)

    assert calls(lambda few: would_fit(scenario, few), short) < 2e6  # half a second's


@pytest.mark.parametrize(("model", "gpus", "more"), [CASES[i] for i in (0, 2, 5, 9, 12)])
def test_recommendations_and_refusals_say_the_same_kind_of_thing(model, gpus, more):
    answer = recommended(model, gpus, **more)

    assert answer.plans == ()
    assert answer.advice[0].startswith(f"no plan of {counted(gpus, 'GPU')} can run; would fit: ")
    with pytest.raises(IllegalPlanError, match=r"short.*; would fit: ") as error:
        estimate_plan(asked(model, gpus, **more), f"tp{gpus}" if gpus > 1 else "single")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "gpus", "more", "ways"),
    [
        # 24 GB of transformer and 10 GB of encoders on 24 GB: 8 bits halve the first
        ("flux.1-dev", 1, {"hardware": "rtx-4090"}, ["--precision fp8"]),
        # 28 GB of transformer and 11 GB of encoder on 40 GB, which has no 8-bit floats
        ("wan2.1-14b", 1, {"hardware": "a100-sxm-40gb"}, ["--offload"]),
        # the same on 24 GB: 28 GB, or 14 and 11, are too much; 14 are not
        (
            "wan2.1-14b",
            1,
            {"hardware": "rtx-4090", "height": 480, "width": 832},
            ["--offload --precision fp8"],
        ),
    ],
)
def test_the_least_change_comes_first(model, gpus, more, ways):
    line = would_fit(asked(model, gpus, **more), short_of(model, gpus, **more))

    assert line.removeprefix("would fit: ").split(", ")[: len(ways)] == ways


@pytest.mark.parametrize(
    ("model", "more", "name"),
    [
        ("hunyuanvideo", {"hardware": "l20", "frames": 129}, "frames"),
        ("llama-3.1-8b", {"hardware": "l4", "input_tokens": 60000}, "input_tokens"),
        ("llama-3.1-8b", {"hardware": "l4", "input_tokens": 8192, "batch": 16}, "batch"),
    ],
)
def test_the_largest_request_that_fits_is_named(model, more, name):
    """One step more does not fit: a latent frame, 128 tokens, a sample."""
    scenario = asked(model, 1, **more)
    line = would_fit(scenario, short_of(model, 1, **more))
    most = int(re.search(rf"--{name.replace('_', '-')} (\d+)", line)[1])
    step = {"frames": 4, "input_tokens": 128, "batch": 1}[name]

    named = resolve(Request(**{"model": model, **more, name: most}))
    assert isinstance(judge(named, Plan()), PlanEstimate)
    wider = resolve(Request(**{"model": model, **more, name: most + step}))
    assert "short" in judge(wider, Plan()).reason


def test_smaller_requests_are_the_same_in_latent_frames():
    line = recommended("hunyuanvideo", 1, hardware="l20", frames=129).advice[0]

    assert int(re.search(r"--frames (\d+)", line)[1]) % 4 == 1


def test_a_request_is_not_cut_to_nothing():
    """Five frames of 129 would fit eight cards of 24 GB; that is not what was asked for."""
    scenario = asked("hunyuanvideo", 8, hardware="rtx-4090")
    line = would_fit(scenario, short_of("hunyuanvideo", 8, hardware="rtx-4090"))

    assert line
    assert "--frames" not in line


def test_pictures_have_no_frames_to_leave_out():
    assert "--frames" not in recommended("qwen-image", 1, hardware="l40s").advice[0]


def test_the_split_that_was_asked_for_is_kept_where_it_can_be():
    scenario = asked("cosmos3-super", 8, hardware="rtx-4090")
    short = short_of("cosmos3-super", 8, hardware="rtx-4090")

    assert "pp8 with --precision fp8" in would_fit(scenario, short, parse_plan("pp8"))
    assert "tp8 with --precision fp8" in would_fit(scenario, short, parse_plan("tp8"))


@pytest.fixture(scope="module")
def able():
    """Plans of HunyuanVideo that fit eight GPUs of 24 GB once its encoders are away."""
    away = asked("hunyuanvideo", 8, hardware="rtx-4090", offload=True)
    return [one.plan for one in judge_all(away) if isinstance(one, PlanEstimate)]


@pytest.mark.parametrize("plan", ["tp8", "ulysses8", "cfg2.tp4", "pp2.ring4"])
def test_the_nearest_split_that_would_fit_is_named(plan, able):
    scenario = asked("hunyuanvideo", 8, hardware="rtx-4090")
    short = short_of("hunyuanvideo", 8, hardware="rtx-4090")
    line = would_fit(scenario, short, parse_plan(plan))
    named = re.search(r"(\S+) with --offload", line)[1]

    assert parse_plan(named) == nearest(parse_plan(plan), able)[0]


def test_more_gpus_may_be_split_along_any_axis():
    """Qwen-Image's modulation is not cut by tensor parallelism: a pipeline takes fewer GPUs."""
    line = recommended("qwen-image", 1, hardware="l40s").advice[0]
    plan, gpus = re.search(r"(\S+) on (\d+) GPUs", line).groups()
    scenario = asked("qwen-image", int(gpus), hardware="l40s")

    assert parse_plan(plan) == recommend_plans(scenario).lead.plan
    assert "pp2 on 2 GPUs" in would_fit(
        asked("qwen-image", 1, hardware="l40s"), short_of("qwen-image", 1, hardware="l40s")
    )


@pytest.mark.parametrize(("model", "gpus", "hardware"), [("llama-3.1-70b", 1, "h100-sxm"),
                                                         ("llama-3.1-405b", 8, "h100-sxm"),
                                                         ("cosmos3-super", 2, "l40s")])  # fmt: skip
def test_no_fewer_gpus_would_do(model, gpus, hardware):
    line = recommended(model, gpus, hardware=hardware).advice[0]
    needed = int(re.search(r" on (\d+) GPUs", line)[1])

    assert needed > gpus
    count = gpus * 2
    while count < needed:
        assert not ranked(model, count, hardware=hardware).plans
        count *= 2


def test_fewer_gpus_are_named_where_no_split_is_legal():
    """31 divides neither a batch of 2 nor 16 heads nor 4096 tokens, and there are 28 layers."""
    answer = recommended("pixart-sigma", 31, hardware="gb200", batch=2)
    said = re.fullmatch(
        r"no plan of 31 GPUs can run; would run: (\S+) on 16 GPUs", answer.advice[0]
    )
    fewer = asked("pixart-sigma", 16, hardware="gb200", batch=2)

    assert isinstance(judge(fewer, parse_plan(said[1])), PlanEstimate)


def test_when_nothing_fits_that_is_said():
    """405 billion parameters in 16 bits on up to 64 GPUs of 16 GB."""
    given = {"hardware": "t4", "precision": "fp16", "engine": "sglang-llm"}
    line = would_fit(asked("llama-3.1-405b", 1, **given), short_of("llama-3.1-405b", 1, **given))

    assert line == "nothing tried fits 12.6 GiB a GPU"  # 84 % of 15


def test_what_is_priced_is_what_is_counted():
    scenario = asked("wan2.1-14b", 2)
    for plan in map(parse_plan, ("tp2", "ulysses2", "pp2", "cfg2")):
        found = judge(scenario, plan)
        held = peak_of(scenario, plan)
        assert held == pytest.approx(found.memory_bytes)


def test_fewer_gpus_that_would_run_are_on_as_many_hosts():
    """Where none runs a plan of 13; 8 of 13 hosts with one GPU each have no NVLink between them."""
    line = would_fit(asked("pixart-sigma", 13, nodes=13), [])

    assert re.search(r"would run: \S+ on 8 GPUs on 8 hosts$", line)
