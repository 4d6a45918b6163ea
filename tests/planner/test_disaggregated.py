"""Two pools of workers: a schedule by hand, laws, bad input, and launch lines that parse."""

import json
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import planner
from planner.command.cli import main
from planner.engines.engine import Disaggregation, Scheduling
from planner.request.lengths import Load
from planner.request.plan import Plan, TwoPools
from planner.runners.worker_lines import worker_lines
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.serving.cache import link_between, rank_cache_bytes, transfer_of
from planner.serving.disaggregated import estimate_pools
from planner.serving.pools import DecodeQueue, Pools, PrefillQueue
from planner.serving.scheduler import Workers
from planner.strategies import parse_plan, parse_pools
from topology.base import InputError, ModelError, format_seconds

pytestmark = pytest.mark.usefixtures("asked_once")

WAYS = Scheduling(chunk=100, rows=64, block=1)
PAIR = {"prefill_plan": "tp2", "prefill_workers": 2, "decode_plan": "tp4", "decode_workers": 1}
LLAMA = {"hardware": "h200-sxm", "precision": "fp8", "input_tokens": 1024, "output_tokens": 128}


def _follow(load, prefills=1, decodes=1, *, send=0.02, again=False, capacity=10000, decode=None):
    """Serve with a millisecond for a token of a prompt, and 10 for a step of a decode worker."""
    first = Workers(ways=WAYS, capacity=10000, steps=lambda t, _c, _r, _k: [0.001 * t])
    step = decode or (lambda t, _c, _r, _k: [0.01 + 0.001 * t])
    later = Workers(ways=WAYS, capacity=capacity, steps=step)
    return Pools(
        [PrefillQueue(first, 0.0) for _ in range(prefills)],
        [DecodeQueue(later, 1.0, again=again) for _ in range(decodes)],
        lambda _prompt, _last: send,
        load,
    ).run()


def _times(trail):
    return {s.number: (s.arrival, s.first, s.finish) for s in trail.sequences}


def test_a_schedule_is_the_one_computed_by_hand():
    """Three requests, two at once: 100 ms of prompt each, 20 of way, three steps of 10."""
    trail = _follow(Load(prompts=[100] * 3, outputs=[4] * 3, concurrency=2))

    assert _times(trail) == {
        0: pytest.approx((0.0, 0.12, 0.15)),
        1: pytest.approx((0.0, 0.22, 0.25)),
        2: pytest.approx((0.15, 0.32, 0.35)),  # comes at 150, waits for the second until 200
    }


def test_the_first_token_comes_of_a_step_where_the_last_one_is_run_again():
    trail = _follow(Load(prompts=[100], outputs=[4], concurrency=1), again=True)

    assert _times(trail) == {0: pytest.approx((0.0, 0.13, 0.16))}


def test_two_workers_share_prompts_and_two_share_answers():
    load = Load(prompts=[100] * 2, outputs=[3] * 2, arrivals=[0.0, 0.03])
    one, two = _times(_follow(load)), _times(_follow(load, prefills=2, decodes=2))

    assert one == {0: pytest.approx((0.0, 0.12, 0.14)), 1: pytest.approx((0.03, 0.22, 0.24))}
    assert two == {0: pytest.approx((0.0, 0.12, 0.14)), 1: pytest.approx((0.03, 0.15, 0.17))}


def test_a_sequence_joins_between_steps_of_those_that_decode():
    """The first one's steps begin at 120, 160 and 200; the second arrives at 150."""
    load = Load(prompts=[100, 30], outputs=[4, 2], arrivals=[0.0, 0.0])
    times = _times(_follow(load, decode=lambda _t, _c, _r, _k: [0.04]))

    assert times[0] == pytest.approx((0.0, 0.12, 0.24))
    assert times[1] == pytest.approx((0.0, 0.16, 0.20))


def test_answers_of_one_token_never_reach_a_decode_worker():
    trail = _follow(Load(prompts=[100] * 2, outputs=[1] * 2, concurrency=1))

    assert _times(trail)[1] == pytest.approx((0.1, 0.2, 0.2))
    assert trail.token_s == 0


def test_a_full_cache_makes_arrivals_wait():
    """Room for one request of 104 tokens: the second starts when the first has ended."""
    load = Load(prompts=[100] * 2, outputs=[40] * 2, concurrency=2)
    times = _times(_follow(load, capacity=150))

    assert times[0][2] == pytest.approx(0.12 + 0.39)
    assert times[1][1] == pytest.approx(times[0][2])


LOADS = st.builds(
    lambda rows, most: Load(
        prompts=[p for p, _ in rows], outputs=[o for _, o in rows], concurrency=most
    ),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=40),
    st.integers(1, 12),
)


@settings(max_examples=60, deadline=None)
@given(LOADS, st.integers(1, 3), st.integers(1, 3))
def test_every_request_is_served_once_and_none_before_its_prompt(load, prefills, decodes):
    trail = _follow(load, prefills, decodes)

    assert sorted(s.number for s in trail.sequences) == list(range(load.count))
    for s in trail.sequences:
        prompt, output = load.prompts[s.number], load.outputs[s.number]
        sent = 0.02 if output > 1 else 0.0
        assert s.first - s.arrival >= 0.001 * prompt + sent - 1e-9
        assert s.finish - s.first >= 0.01 * (output - 1) - 1e-9
    assert trail.decoded == sum(load.outputs)
    assert trail.prefilled == sum(load.prompts)


@settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(st.integers(1, 200), st.integers(2, 30), st.integers(1, 48), st.integers(1, 3))
def test_more_workers_of_either_kind_are_never_slower(prompt, output, count, workers):
    """But for one request, as the last ones may end in another order.

    All have come at the start: where an end brings the next request, more workers may serve them
    in step, which is slower (121 tokens in, 8 out, 5 at once: 2.41 s by 3 and 3, 2.66 by 3 and 4).
    """
    load = Load(prompts=[prompt] * count, outputs=[output] * count, concurrency=count)
    few = _follow(load, workers, workers).seconds + 0.001 * prompt + 0.02 + 0.01 * output

    assert _follow(load, workers + 1, workers).seconds <= few
    assert _follow(load, workers, workers + 1).seconds <= few


def _scenario(model="llama-3.1-70b", **options):
    return resolve(request_of(model, None, {**LLAMA, **PAIR, **options}))


@pytest.mark.parametrize(
    ("model", "kv", "token"),
    [
        ("llama-3.1-70b", "bf16", 2 * 80 * 8 * 128 * 2),
        ("llama-3.1-70b", "fp8", 2 * 80 * 8 * 128),
        ("deepseek-v3", "bf16", 61 * (512 + 64) * 2),
        ("qwen3-32b", "bf16", 2 * 64 * 8 * 128 * 2),
    ],
)
def test_what_is_sent_is_the_cache_of_the_prompt(model, kv, token):
    scenario = _scenario(model, kv_precision=kv)
    sent = transfer_of(scenario, parse_pools(scenario.request), 4096)

    assert sent.bytes(1000) == pytest.approx(1000 * token)
    assert rank_cache_bytes(scenario, Plan(), 4096) == pytest.approx(4096 * token)


def test_more_ranks_of_both_workers_send_in_less_time_and_a_network_is_slower():
    def after(prefill, decode, workers=1):
        pools = TwoPools(
            prefill=parse_plan(prefill), prefills=1, decode=parse_plan(decode), decodes=workers
        )
        return transfer_of(_scenario(), pools, 8192).after(8192, 8192)

    assert after("tp4", "tp4") < after("tp2", "tp4") == after("tp4", "tp2") < after("tp1", "tp1")
    assert after("tp4", "tp4", 3) > 2 * after("tp4", "tp4")


def test_workers_of_one_host_talk_over_its_links_and_others_over_the_network():
    inside, outside = (
        link_between(
            _scenario(),
            TwoPools(prefill=parse_plan("tp4"), prefills=1, decode=parse_plan("tp4"), decodes=n),
        )
        for n in (1, 3)
    )

    assert (inside.nodes, inside.network) == (1, None)
    assert outside.nodes == 2
    assert outside.network is not None


def test_an_engine_that_sends_step_by_step_has_less_left_at_the_end():
    scenario = _scenario()
    pools = parse_pools(scenario.request)
    whole = transfer_of(scenario, pools, 8192)
    steps = replace(whole, ways=Disaggregation(stepwise=True))

    assert steps.after(8192, 1024) < whole.after(8192, 1024) == steps.after(8192, 8192)


def _estimate(**options):
    return planner.estimate("llama-3.1-70b", **{**LLAMA, **PAIR, **options})


def test_an_estimate_adds_up_and_says_both_pools():
    found = _estimate(concurrency=32).to_dict()

    assert found["plan"] == "prefill 2 x tp2 + decode 1 x tp4"
    assert found["gpus"] == 8
    assert set(found["stages_s"]) == {"prefill", "transfer", "decode"}
    assert sum(found["stages_s"].values()) == pytest.approx(found["latency_s"])
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["latency_s"])
    served, pools = found["serving"], found["pools"]
    assert served["tokens_per_s_per_gpu"] == pytest.approx(served["tokens_per_s"] / 8)
    assert pools["prefill"]["gpus"] + pools["decode"]["gpus"] == 8
    assert pools["sent_bytes"] == pytest.approx(1024 * 2 * 80 * 8 * 128 * 2, rel=0.01)
    assert served["ttft_s"]["p50"] >= found["stages_s"]["prefill"]


def test_one_request_at_a_time_is_as_fast_as_by_itself():
    found = _estimate(concurrency=1)

    assert found.serving.request.mean == pytest.approx(found.latency_s, rel=0.03)


@pytest.mark.parametrize("more", [{"prefill_workers": 3}, {"decode_workers": 2}])
def test_more_workers_write_no_fewer_tokens(more):
    few, many = _estimate(concurrency=96).serving, _estimate(concurrency=96, **more).serving

    assert many.tokens_per_s >= 0.999 * few.tokens_per_s
    assert many.ttft.mean <= 1.001 * few.ttft.mean or many.tpot.mean < few.tpot.mean


def test_requests_that_fit_at_once_are_those_of_the_decode_workers():
    one = _estimate(concurrency=8).serving
    more = _estimate(concurrency=8, decode_workers=2).serving
    prompts = _estimate(concurrency=8, prefill_workers=3).serving

    assert more.max_concurrency == 2 * one.max_concurrency
    assert prompts.kv_tokens == one.kv_tokens


def test_the_command_prints_what_python_gives(capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**LLAMA, **PAIR}.items()]
    words += ["--model=llama-3.1-70b", "--concurrency=16", "--engine=vllm"]
    assert main(["estimate", *words, "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out) == _estimate(concurrency=16, engine="vllm").to_dict()
    assert main(["estimate", *words]) == 0
    shown = capsys.readouterr().out
    assert "prefill 2 x tp2 + decode 1 x tp4" in shown
    assert "kv_producer" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decode_plan": ""}, "prefill_plan: got tp2, wanted decode_plan beside it"),
        (
            {"prefill_plan": "", "prefill_workers": None},
            "decode_plan: got tp4, wanted prefill_plan",
        ),
        ({"prefill_workers": 0}, "prefill_workers: got 0, wanted a whole number from 1 to 4096"),
        ({"gpus": 16}, "gpus: got 16, wanted 8, those of prefill 2 x tp2 + decode 1 x tp4"),
        ({"prefill_plan": "tp3"}, "prefill plan tp3: "),
        ({"decode_plan": "ulysses4", "concurrency": 4}, "decode: cuts each prompt over 4 GPUs"),
        ({"prefill_plan": "tpp2"}, "unknown axis 'tpp'"),
        ({"batch": 4}, "batch: got 4 beside prefill_plan, wanted one of the two"),
        ({"plan": "tp8"}, "plan: got 'tp8' beside prefill_plan, wanted one of the two"),
        ({"engine": "planner", "prefill_plan": "single", "hardware": "l4"}, "prefill"),
        ({"disaggregate": True}, "disaggregate: got True, wanted none: recommend searches"),
        ({"slo_tpot": 0.02}, "slo_tpot: got 20 ms of no load, wanted a concurrency"),
    ],
)
def test_what_cannot_be_right_is_said_in_a_line(options, said):
    with pytest.raises(InputError) as caught:
        _estimate(**options)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_workers_without_their_plan_and_other_kinds_of_models_are_refused():
    with pytest.raises(InputError, match="prefill_workers: got 2, wanted prefill_plan beside it"):
        planner.estimate("llama-3.1-70b", 8, "tp8", prefill_workers=2)
    with pytest.raises(InputError, match="prefill_plan: got tp2, wanted none: flux"):
        planner.estimate("flux.1-dev", prefill_plan="tp2", decode_plan="tp2")


@pytest.mark.parametrize("ask", [planner.simulate, planner.recommend, planner.sweep])
def test_what_looks_at_one_plan_refuses_two_pools(ask):
    with pytest.raises(InputError, match="prefill_plan: got 'tp2', wanted none: "):
        ask("llama-3.1-70b", gpus=8, prefill_plan="tp2", decode_plan="tp4")


def test_an_engine_without_such_workers_says_so_in_a_line():
    scenario = _scenario(engine="vllm")
    lacking = replace(scenario.deployment, disaggregation=Disaggregation(reason="has none"))

    with pytest.raises(InputError, match=r"^prefill 2 x tp2 \+ decode 1 x tp4: vllm has none$"):
        estimate_pools(replace(scenario, deployment=lacking))


def _recommend(capsys=None, **options):
    asked = {"hardware": "h200-sxm", "precision": "fp8", "engine": "vllm", "input_tokens": 2048}
    asked |= {"output_tokens": 256, "disaggregate": True, **options}
    return planner.recommend("llama-3.1-70b", 8, **asked)


def test_the_best_split_takes_all_gpus_and_keeps_the_times_wanted():
    found = _recommend(slo_ttft=1.0, slo_tpot=0.02)

    assert found.splits.plans
    for plan in found.splits.plans:
        pools = plan.disaggregated.pools
        assert pools.gpus == plan.gpus == 8
        assert plan.serving.ttft.mean <= 1.0
        assert plan.serving.tpot.mean <= 0.02
    rates = [plan.serving.tokens_per_s for plan in found.splits.plans]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[0] >= 0.97 * max(rates)


def test_a_split_is_named_beside_the_best_plan_with_their_difference():
    found = _recommend(concurrency=32)
    written, best = found.to_dict(), found.splits.best

    pair = written["disaggregated"]
    assert pair["recommended"] == best.name
    assert pair["plans"][0]["serving"] == best.serving.to_dict()
    ratio = best.serving.tokens_per_s / found.lead.serving.tokens_per_s
    assert pair["tokens_per_s_ratio"] == pytest.approx(ratio)
    (said,) = [line for line in found.advice if line.startswith(best.name)]
    assert f"tokens/s than {found.lead.plan}" in said or f"as {found.lead.plan}" in said
    known = found.lead.serving.half_width("tokens_per_s")
    assert ("too close to call" in said) is (abs(ratio - 1) <= known)
    if abs(ratio - 1) <= known:
        assert f"TTFT is {format_seconds(best.serving.ttft.mean)} against" in said
    assert "disaggregated" not in _recommend(concurrency=32, disaggregate=False).to_dict()


def test_a_recommended_split_is_what_estimate_says_of_it():
    best = _recommend(concurrency=32).splits.best
    pools = best.disaggregated.pools
    same = planner.estimate(
        "llama-3.1-70b",
        hardware="h200-sxm",
        precision="fp8",
        engine="vllm",
        input_tokens=2048,
        output_tokens=256,
        concurrency=32,
        prefill_plan=pools.prefill,
        prefill_workers=pools.prefills,
        decode_plan=pools.decode,
        decode_workers=pools.decodes,
    )

    assert same.name == best.name
    assert same.serving.tokens_per_s == pytest.approx(best.serving.tokens_per_s, rel=0.02)


def test_no_other_split_of_the_same_plans_writes_many_more_tokens():
    best = _recommend(concurrency=64).splits.best
    pools = best.disaggregated.pools
    others = [(n, m) for n in range(1, 8) for m in range(1, 8)]
    for prefills, decodes in others:
        if prefills * pools.prefill.gpus + decodes * pools.decode.gpus == 8:
            other = planner.estimate(
                "llama-3.1-70b",
                hardware="h200-sxm",
                precision="fp8",
                engine="vllm",
                input_tokens=2048,
                output_tokens=256,
                concurrency=64,
                prefill_plan=pools.prefill,
                prefill_workers=prefills,
                decode_plan=pools.decode,
                decode_workers=decodes,
            )
            assert other.serving.tokens_per_s <= 1.03 * best.serving.tokens_per_s


def test_where_no_split_keeps_the_times_it_is_said_why():
    found = _recommend(slo_tpot=0.0001)

    assert found.splits.best is None
    assert any(line.startswith("no two pools of workers: ") for line in found.advice)
    assert not found.runs_something
    with pytest.raises(InputError, match="disaggregate: got 1 GPU, wanted 2 or more"):
        planner.recommend("llama-3.1-8b", 1, disaggregate=True)
    with pytest.raises(InputError, match="disaggregate: got True, wanted none: flux"):
        planner.recommend("flux.1-dev", 8, disaggregate=True)


@pytest.mark.parametrize("shape", ["table", "markdown", "html", "json"])
def test_the_command_shows_splits_with_what_to_type(shape, capsys):
    words = "recommend --model llama-3.1-8b --gpus 4 --engine sglang --concurrency 32"
    assert main([*words.split(), "--disaggregate", "--format", shape]) == 0
    shown = capsys.readouterr().out

    assert "prefill " in shown
    if shape == "json":
        pair = json.loads(shown)["disaggregated"]
        assert pair["recommended"].startswith("prefill ")
        assert "--disaggregation-mode prefill" in pair["launch"][0]["line"]
    else:
        assert "--disaggregation-mode" in shown


MEASURED = [
    ("tp8/ep8", 1, "tp8/ep8", 9, 144, 1.03704, 0.020166),
    ("tp8/ep8", 1, "tp8/ep8", 9, 288, 1.37130, 0.025290),
    ("adp8/ep8", 1, "tp8/ep8", 9, 576, 1.65854, 0.031038),
    ("adp8/ep8", 1, "adp8/ep8", 9, 1152, 3.28808, 0.034821),
    ("adp8/ep8", 1, "adp8/ep8", 6, 1536, 5.12130, 0.039899),
]
"""Runs of DeepSeek-V3 in fp8 with TensorRT-LLM on H200, 1,024 tokens in and out: plans and workers,
requests at once, TTFT and TPOT in seconds. From the benchmark sample of aiconfigurator-core
(Apache-2.0)."""


def test_measured_deployments_are_in_their_order_and_tokens_take_as_long():
    seen, there = [], []
    for prefill, prefills, decode, decodes, most, ttft, tpot in MEASURED:
        found = planner.estimate(
            "deepseek-v3",
            hardware="h200-sxm",
            precision="fp8",
            engine="tensorrt-llm",
            input_tokens=1024,
            output_tokens=1024,
            concurrency=most,
            prefill_plan=prefill,
            prefill_workers=prefills,
            decode_plan=decode,
            decode_workers=decodes,
        )
        assert found.serving.tpot.mean == pytest.approx(tpot, rel=0.2)
        seen.append(found.serving.tokens_per_s_per_gpu)
        there.append(most * 1024 / (ttft + 1023 * tpot) / found.gpus)

    assert sorted(range(5), key=seen.__getitem__) == sorted(range(5), key=there.__getitem__)
    assert seen == pytest.approx(there, rel=0.25)


def test_a_worker_sits_on_one_host_where_one_holds_it():
    """Twelve GPUs of hosts of eight: the larger worker fills the first."""
    scenario = _scenario(prefill_plan="tp4", prefill_workers=1, decode_plan="tp8")
    lines = worker_lines(scenario, parse_pools(scenario.request), {})
    first, later, router = (line for line in lines if line.engine.startswith("vLLM"))

    assert first.command.startswith("CUDA_VISIBLE_DEVICES=0,1,2,3 ")
    assert later.command.startswith("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 ")
    assert "--prefiller-hosts HOST1 " in router.command
    assert "--decoder-hosts HOST0 " in router.command


def test_requests_that_come_at_random_wait_more_the_more_there_are():
    few, many = _estimate(rate=2.0).serving, _estimate(rate=14.0).serving

    assert few.ttft.mean < many.ttft.mean
    assert few.requests_per_s == pytest.approx(2.0, rel=0.01)
    with pytest.raises(ModelError, match=r"decode 1 x tp4: serves .* of 200 requests a second"):
        _estimate(rate=200.0)


@pytest.mark.parametrize(
    "options",
    [
        {"arrivals": [[0.0, 500, 20], [0.1, 900, 30], [0.2, 100, 1]]},
        {"lengths": [[100, 50, 3], [900, 20, 1]], "concurrency": 8},
        {"prefill_plan": "pp2", "decode_plan": "pp2.tp2", "concurrency": 16},
        {"prefill_plan": "dp2.tp2", "decode_plan": "dp2", "concurrency": 16},
        {"speculative": 2, "draft": "llama-3.1-8b", "concurrency": 8},
    ],
)
def test_other_loads_and_plans_are_served_too(options):
    lengths = {"input_tokens": None, "output_tokens": None} if "lengths" in options else {}
    lengths |= {"input_tokens": None, "output_tokens": None} if "arrivals" in options else {}
    found = _estimate(**{**lengths, **options})

    assert found.serving.tokens_per_s > 0
    assert found.serving.request.mean > found.serving.ttft.mean > 0


def test_a_cached_prefix_saves_prefill_and_is_sent_all_the_same():
    whole, part = _estimate(concurrency=32), _estimate(concurrency=32, prefix_hit=0.75)

    assert part.serving.ttft.mean < whole.serving.ttft.mean
    assert part.disaggregated.sent_bytes == whole.disaggregated.sent_bytes


def test_a_worker_for_prompts_is_told_the_tokens_of_its_steps():
    found = _estimate(concurrency=8, engine="tensorrt-llm", input_tokens=12000)
    told = found.disaggregated.prefill.told

    assert told == {"length": 12128, "chunk": 8192}
    assert found.disaggregated.decode.told["batch"] == 8
