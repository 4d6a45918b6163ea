"""Ranks with unequal rows: requests of other lengths, and sequences that do not divide."""

import json
from functools import partial

import numpy as np
import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from costmodels.program.rows import positions
from planner.lowering.work import rank_work
from planner.request.lengths import Lengths, lengths_in
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.simulation.sequences import evened, sequences_of
from planner.strategies import parse_plan
from validate.reference.proof import prove

EXPERTS = "qwen3-30b-a3b"
REQUESTS = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(1, 900), st.sampled_from([0.5, 1.0, 3.0, 7.0])),
    min_size=1,
    max_size=5,
)


def asked(model, gpus, **options):
    return resolve(request_of(model, gpus, options))


@given(REQUESTS, st.integers(1, 40))
def test_dealt_requests_are_those_that_there_are(rows, count):
    """As many tokens together as so many mean ones; each between the shortest and the longest."""
    lengths = lengths_in(rows)
    dealt = lengths.dealt(count)

    often = np.array([row[2] for row in rows])
    for place in (0, 1):
        tokens = [request[place] for request in dealt]
        each = [row[place] for row in rows]
        mean = np.average(each, weights=often)
        assert len(tokens) == count
        assert sum(tokens) == pytest.approx(count * mean, abs=0.51)
        assert min(each) - 1 <= min(tokens)
        assert max(tokens) <= max(each) + 1


@given(st.integers(2, 40), st.floats(0.0, 0.99))
def test_a_spread_is_dealt_from_below_the_mean_to_above(count, spread):
    dealt = Lengths(prompt=1000, output=200, spread=spread).dealt(count)

    prompts = sorted(prompt for prompt, _ in dealt)
    assert sum(prompts) == 1000 * count
    widest = 1000 * spread * (1 - 1 / count)
    assert prompts[0] == pytest.approx(1000 - widest, abs=1)
    assert prompts[-1] == pytest.approx(1000 + widest, abs=1)


@given(st.integers(2, 9), st.integers(0, 40))
def test_rows_of_pieces_are_the_sequence(degree, lines):
    """As numpy splits an array, which PyTorch's tensor_split and so diffusers do alike."""
    side = 16 * (degree + lines)
    scenario = asked("flux.1-dev", degree, height=side, width=side, text_tokens=512)
    plan = parse_plan(f"uaa{degree}")
    sequences = sequences_of(scenario, plan)

    tokens = scenario.workload.length("image") + (512 if 512 % degree == 0 else 0)
    held = [sequences.held(plan, rank) for rank in range(degree)]
    if scenario.workload.length("image") % degree == 0:
        assert held == [None] * degree
        assert sequences.even
        return
    assert sum(held) == tokens
    split = np.array_split(np.arange(scenario.workload.length("image")), degree)
    assert [one - held[-1] for one in held] == [len(one) - len(split[-1]) for one in split]


@given(
    st.sampled_from(["ring4", "allgather_kv4", "ulysses4", "ulysses2.ring2"]), st.integers(8, 700)
)
def test_padded_ranks_compute_as_many_rows_and_hold_the_sequence_once(plan, tokens):
    scenario, plan = asked("llama-3.1-8b", 4, input_tokens=tokens), parse_plan(plan)
    (span,) = rank_work(scenario.model, scenario.workload, plan).spans.values()

    held = np.concatenate([positions(span, plan.index_of(rank)) for rank in range(4)])
    assert sorted(held[held >= 0]) == [*range(tokens)]
    assert len(held) == 4 * span.rows == span.padded
    assert sequences_of(scenario, plan).even
    even = evened(scenario, plan)
    if span.padded == tokens or not span.divided:
        assert even is None
    else:
        assert even.workload.length("tokens") == span.divided < tokens


@pytest.mark.parametrize("plan", ["ring4", "allgather_kv4", "ulysses2.ring2"])
def test_a_padded_sequence_gives_the_unsplit_result(plan):
    scenario = asked("llama-3.1-8b", 4, input_tokens=511)
    assert prove(scenario.model, scenario.workload, parse_plan(plan)).ok


@pytest.mark.parametrize(
    ("model", "gpus", "plan"),
    [
        (EXPERTS, 4, "adp4/ep4"),
        (EXPERTS, 4, "adp2.tp2"),
        ("llama-3.1-8b", 4, "dp2.tp2"),
        ("llama-3.1-8b", 2, "tp2"),
    ],
)
def test_requests_of_one_length_are_run_to_the_digit_as_without(model, gpus, plan):
    lengths = ((512, 8, 3.0), (512, 8, 1.0))
    listed = planner.simulate(model, gpus, plan, lengths=lengths)
    plain = planner.simulate(model, gpus, plan, input_tokens=512, output_tokens=8)

    assert listed.to_dict() == plain.to_dict()
    assert listed.rank_table() == plain.rank_table()


@pytest.mark.parametrize(
    ("model", "gpus", "plan", "engine"),
    [
        (EXPERTS, 4, "adp4/ep4", ""),
        (EXPERTS, 4, "adp2.tp2", ""),
        (EXPERTS, 4, "adp4/ep4", "vllm"),
        ("deepseek-v3", 8, "adp8/ep8", "sglang-llm"),
        ("llama-3.1-8b", 2, "dp2", ""),
        ("llama-3.1-8b", 4, "dp2.pp2", ""),
    ],
)
def test_more_uneven_is_never_faster(model, gpus, plan, engine):
    """Prompts ever further apart around one mean; even, the closed form prices every rank."""
    hardware = "b200" if gpus == 8 else "h100-sxm"
    ask = partial(
        planner.simulate, model, gpus, plan, engine=engine, precision="fp8", hardware=hardware
    )
    prefill = []
    for apart in (0, 256, 896):
        lengths = ((1024 - apart, 1, 1.0), (1024 + apart, 1, 1.0))
        found = ask(lengths=lengths, even=True)
        prefill.append(found.stages_s["prefill"])
        if apart:
            assert found.even_stages_s["prefill"] == prefill[0]
            assert {one.tokens for one in found.ranks} == {1025 - apart, 1025 + apart}
        else:
            assert abs(ask(lengths=lengths).apart) < 0.01

    assert prefill == sorted(prefill)
    assert prefill[-1] > 1.01 * prefill[0]


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(
        [(EXPERTS, 4, "adp4/ep4"), (EXPERTS, 4, "adp2.tp2"), ("llama-3.1-8b", 2, "dp2")]
    ),
    st.integers(16, 8000),
    st.lists(st.floats(0.0, 0.95), min_size=2, max_size=2).map(sorted),
)
def test_prompts_further_apart_around_a_mean_take_no_less(asked, mean, spreads):
    less, more = (
        planner.simulate(
            *asked,
            even=True,
            lengths=((mean - apart, 1, 1.0), (mean + apart, 1, 1.0)),
        ).latency_s
        for apart in (int(mean * spread) for spread in spreads)
    )
    assert less <= more * (1 + 1e-9)


def test_replicas_take_as_long_as_each_would_alone():
    lengths = ((512, 1, 1.0), (4096, 1, 1.0))
    both = planner.simulate("llama-3.1-8b", 2, "dp2", lengths=lengths, even=True)
    alone = [
        planner.simulate("llama-3.1-8b", 1, "single", input_tokens=n, output_tokens=1, even=True)
        for n in (512, 4096)
    ]

    assert both.stages_s["prefill"] == alone[1].stages_s["prefill"]
    times = {one.tokens: one for one in both.ranks}
    assert times[4097].compute_s == alone[1].ranks[0].compute_s
    assert sum(times[513].compute_s.values()) < sum(alone[1].ranks[0].compute_s.values()) / 4
    assert times[513].idle_s > 0.5 * both.turn_s


@pytest.mark.parametrize("engine", ["", "vllm", "tensorrt-llm"])
def test_ranks_that_share_experts_meet_over_the_rows_of_all(engine):
    """A rank attends to its own, waits for the longest, and takes experts for the mean of all.

    A gather takes as long as for the mean rank; TensorRT-LLM's own kernel as for the longest.
    """
    ask = partial(planner.simulate, EXPERTS, 4, "adp4/ep4", engine=engine, even=True)
    found = ask(lengths=((512, 1, 3.0), (4096, 1, 1.0)))
    mean, longest = (ask(input_tokens=tokens, output_tokens=1) for tokens in (1408, 4096))

    long = next(one for one in found.ranks if one.tokens == 4097)
    short = [one for one in found.ranks if one.tokens == 513]
    assert len(short) == 3
    alone = longest.ranks[0].compute_s["attention"]
    assert long.compute_s["attention"] == pytest.approx(alone, rel=1e-9)
    like = longest if engine == "tensorrt-llm" else mean
    assert long.communication_s == pytest.approx(like.ranks[0].communication_s)
    assert [one.communication_s for one in short] == pytest.approx([long.communication_s] * 3)
    assert long.compute_s["gemm"] < longest.ranks[0].compute_s["gemm"]
    assert all(one.waiting_s > 0.01 * found.turn_s for one in short)
    assert mean.turn_s < found.turn_s < longest.turn_s


def test_what_unevenness_costs_is_said(tmp_path):
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input_tokens,output_tokens,count\n512,1,3\n4096,1,1\n")
    words = ("--model", EXPERTS, "--gpus", "4", "--plan", "adp4/ep4", "--lengths", str(lengths))
    simulated = partial(run, "simulate", *words, "--even", "--what-if")
    code, out, err = simulated("--format", "json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    rows = {row["change"]: row["latency_s"] for row in document["what_if"]}
    _, text, _ = simulated()

    assert rows["even sequences"] == pytest.approx(sum(document["even_stages_s"].values()))
    assert rows["even sequences"] < document["latency_s"]
    assert sorted(one["tokens"] for one in document["ranks"]) == [513, 513, 513, 4097]
    (most,) = (rank["rank"] for rank in document["ranks"] if rank["tokens"] == 4097)
    assert f"most to do: rank {most}, 4,097 tokens of 1,409.0 on average; even sequences" in text
    assert "even sequences" in next(line for line in text.splitlines() if "closed form  " in line)


def test_a_padded_sequence_may_be_asked_to_divide():
    asked = ("--model", "llama-3.1-8b", "--gpus", "4", "--plan", "ring4", "--even", "--what-if")
    code, out, _ = run("simulate", *asked, "--input-tokens", "65", "--format", "json")
    assert code == 0
    document = json.loads(out)
    rows = {row["change"]: row["latency_s"] for row in document["what_if"]}

    assert rows["even sequences"] < document["latency_s"]
    assert "even_stages_s" not in document
    assert {one["tokens"] for one in document["ranks"]} == {None}
