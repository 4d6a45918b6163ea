"""Serving: steps of many requests proved on numbers, and a scheduler held to laws and by hand."""

import re
from dataclasses import field, replace

import numpy as np
import pytest
import testmodels
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.command.cli import main
from planner.engines.engine import Scheduling
from planner.fleet.answers import Answer, Capacity
from planner.fleet.demand import Demand
from planner.fleet.fleet import capacity
from planner.lowering import Chunk, lower_steps
from planner.recommendation import estimate_plan, recommend_plans
from planner.rendering import capacity as shown
from planner.rendering import engines, report
from planner.request.lengths import Lengths, Load, closed_load, poisson
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.serving.scheduler import Queue, Workers
from planner.strategies import parse_plan
from topology.base import InputError, ModelError, format_seconds
from topology.base.page import web
from topology.base.table import document, terminal
from topology.base.values import dataclass
from validate.reference.run import execute
from validate.reference.weights import Source

pytestmark = pytest.mark.usefixtures("asked_once")

MODEL = testmodels.llama
WORK = replace(testmodels.workload(MODEL), batch=1)


def _chunk(name, tokens, context, sequences=1):
    return Chunk(name=name, tokens=tokens, context=context, sequences=sequences)


@dataclass(frozen=True, slots=True)
class Given(Source):
    """Weights as usual, and some inputs that are given."""

    given: dict = field(default_factory=dict)

    def array(self, name, shape):
        found = self.given.get(name)
        return Source.array(self, name, shape) if found is None else found.reshape(shape)


def _scores(text, steps, given=None, model=MODEL):
    """Run steps on all ranks; the scores of those that have them."""
    plan = parse_plan(text)
    places = range(plan.degree("pp"))
    programs = [lower_steps(model, WORK, plan, steps, place, ordered=True) for place in places]
    outs = execute(programs, WORK, Given(0, given=given or {}))
    return [out for out in outs if not np.isnan(out).any()]


MIXED = [
    [_chunk("a", 6, 0), _chunk("b", 5, 0, 3)],
    [_chunk("a", 4, 6), _chunk("b", 1, 5, 3)],
]


@pytest.mark.parametrize("model", testmodels.DECODERS, ids=lambda model: model.name)
@pytest.mark.parametrize("text", ["tp2", "tp4", "pp2", "pp2.tp2"])
def test_a_split_step_of_prompts_and_answers_equals_the_unsplit_one(text, model):
    whole = _scores("single", MIXED, model=model)[0]
    split = _scores(text, MIXED, model=model)

    assert split
    assert max(np.abs(out - whole).max() for out in split) < 1e-9 * np.abs(whole).max()


@pytest.mark.parametrize("model", testmodels.DECODERS, ids=lambda model: model.name)
def test_sequences_do_not_see_each_other_and_pieces_of_a_prompt_are_the_prompt(model):
    """Latent attention expands the rows of a prompt, and looks at them as they are for a token."""
    random = np.random.default_rng(0).standard_normal
    hidden = model.main.hidden
    prompt, others, later = random((10, hidden)), random((3, 5, hidden)), random((3, hidden))
    first = np.concatenate([prompt[:6], others.reshape(15, hidden)])
    second = np.concatenate([prompt[6:], later])
    mixed = _scores("tp2", MIXED, {"step0.tokens#0": first, "step1.tokens#0": second}, model)[0]

    alone = [_scores("single", [[_chunk("a", 10, 0)]], {"step.tokens#0": prompt}, model)[0]]
    for mine, last in zip(others, later, strict=True):
        rows = np.concatenate([mine, last[None]])
        alone += _scores("single", [[_chunk("b", 6, 0)]], {"step.tokens#0": rows}, model)

    np.testing.assert_allclose(mixed[0], np.concatenate(alone, axis=1)[0], atol=1e-9)


def _second_a_step(tokens, context, rows, length):
    """A second a step, and a hundredth more for each token of a prompt."""
    return 1.0 + tokens / 100


def _run(load, *, capacity=10**6, places=(_second_a_step,), prefix=0.0, **ways):
    ways = Scheduling(**{"chunk": 100, "block": 1, **ways})

    def steps(*sizes):
        return [place(*sizes) for place in places]

    workers = Workers(ways=ways, capacity=capacity, steps=steps, kinds=tuple(range(len(places))))
    trail = Queue(workers, load, prefix).run()
    return trail, sorted(trail.sequences, key=lambda sequence: sequence.number)


FIVE = Load(
    prompts=[50, 100, 150, 50, 20], outputs=[3, 2, 2, 1, 2], arrivals=[0.0, 0.0, 1.5, 3.0, 20.0]
)


def test_five_requests_by_hand():
    _, sequences = _run(FIVE)

    firsts, ends = ([getattr(s, name) for s in sequences] for name in ("first", "finish"))
    # 50 + 50 of 100; then 50, and 49 of 150 beside one; then 98 beside two; then 3 and 50
    assert firsts == pytest.approx([2.0, 3.99, 7.5, 7.5, 21.2])
    assert ends == pytest.approx([5.97, 5.97, 8.5, 7.5, 22.2])


def test_five_requests_by_hand_where_prompts_go_first_and_whole():
    _, sequences = _run(FIVE, mixed=False, chunked=False)

    firsts, ends = ([getattr(s, name) for s in sequences] for name in ("first", "finish"))
    # 50; then 100; then 150, which is over the budget alone; then 50; only then all others
    assert firsts == pytest.approx([1.5, 3.5, 6.0, 7.5, 21.2])
    assert ends == pytest.approx([9.5, 8.5, 8.5, 7.5, 22.2])


def test_a_cached_prefix_is_not_prefilled_again():
    trail, _ = _run(FIVE, prefix=0.5)

    assert trail.prefilled == sum(FIVE.prompts) / 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=30),
    st.integers(1, 9),
    st.integers(140, 400),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(1, 4),
)
def test_all_work_is_done_once_and_the_cache_never_overflows(
    sizes, concurrency, capacity, kept, ways, places
):
    prompts, outputs = (list(each) for each in zip(*sizes, strict=True))
    load = Load(prompts=prompts, outputs=outputs, concurrency=concurrency)
    more = {"kept": kept, "mixed": ways[0], "chunked": ways[1], "chunk": 32, "block": 4}
    trail, sequences = _run(load, capacity=capacity, places=(_second_a_step,) * places, **more)

    assert len(sequences) == len(sizes)
    assert trail.most_tokens <= capacity
    assert trail.decoded == sum(outputs)
    assert trail.prefilled >= sum(prompts)
    assert trail.preempted or trail.prefilled == sum(prompts)
    assert not (kept == 1.0 and trail.preempted)
    assert all(s.arrival <= s.first <= s.finish <= trail.seconds for s in sequences)
    busiest = sorted((s.arrival, 1) for s in sequences) + sorted((s.finish, -1) for s in sequences)
    assert max(np.cumsum([sign for _, sign in sorted(busiest)])) <= concurrency


def test_runs_of_equal_steps_in_one_go_are_the_steps_one_by_one():
    """A step whose time grows with the cache: jumping over steps loses nothing."""

    def step(tokens, context, rows, length):
        return 1.0 + tokens / 100 + rows * length / 1000

    load = Load(prompts=[20] * 4, outputs=[31, 31, 31, 11], concurrency=4)
    trail, _ = _run(load, places=(step,))

    lengths = [range(20, 50)] * 3 + [range(20, 30)]
    decode = 30 + sum(sum(each) for each in lengths) / 1000
    assert trail.seconds == pytest.approx(1.8 + decode)


def test_three_requests_in_a_pipeline_by_hand():
    """Two places, and so two batches: the second waits where the first has a piece of a prompt."""
    load = Load(prompts=[100, 50, 100], outputs=[3, 5, 2], arrivals=[0.0, 0.0, 4.0])
    _, sequences = _run(load, places=(_second_a_step,) * 2)

    firsts, ends = ([getattr(s, name) for s in sequences] for name in ("first", "finish"))
    # batch 1: 100 tokens pass from 0 to 4; 99 of the third and a token from 4 to 7.98; then to 10
    # batch 2: 50 tokens pass from 2 to 5.5; a token from 5.99, behind the piece, to 8.98; to 11
    assert firsts == pytest.approx([4.0, 5.5, 10.0])
    assert ends == pytest.approx([10.0, 15.0, 12.0])


@pytest.mark.parametrize("places", [2, 3, 4])
def test_a_pipeline_writes_as_fast_as_it_has_batches_up_to_one_a_place(places):
    """Without prompts a token passes all places; a place does one batch at a time."""

    def step(tokens, context, rows, length):
        return 0.0 if tokens else 1.0

    for requests in range(1, 2 * places + 1):
        load = Load(prompts=[1] * requests, outputs=[101] * requests, concurrency=requests)
        trail, _ = _run(load, places=(step,) * places)

        assert trail.seconds == pytest.approx(100 * places, abs=2 * places)


def test_the_slowest_place_sets_the_pace_of_a_pipeline():
    """It runs a batch of two sequences, and one of one, in every round."""

    def slow(tokens, context, rows, length):
        return 2.0 + rows

    def fast(tokens, context, rows, length):
        return 1.0

    load = Load(prompts=[1] * 3, outputs=[60, 60, 60], concurrency=3)
    trail, _ = _run(load, places=(slow, fast))

    assert trail.seconds == pytest.approx(59 * (4.0 + 3.0), rel=0.02)


def test_more_load_never_brings_the_first_token_sooner():
    means = []
    for rate in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        _, sequences = _run(poisson(Lengths(prompt=80, output=20), rate, 400))
        means.append(np.mean([s.first - s.arrival for s in sequences]))
    for concurrency in (1, 2, 4, 8, 16):
        _, sequences = _run(closed_load(Lengths(prompt=80, output=20), concurrency, 200))
        means.append(np.mean([s.first - s.arrival for s in sequences]))

    assert means[:6] == sorted(means[:6])
    assert means[6:] == sorted(means[6:])


def _asked(plan="tp4", model="llama-3.1-70b", **options):
    sizes = {} if "arrivals" in options else {"input_tokens": 1024, "output_tokens": 256}
    asked = {**sizes, "hardware": "h200-sxm", **options}
    return planner.estimate(model, plan=plan, precision="fp8", **asked)


def test_what_clients_see_is_in_the_answer_word_for_word():
    serving = _asked(concurrency=16, engine="vllm").to_dict()["serving"]

    names = ["concurrency", "ttft_s", "tpot_s", "request_s", "tokens_per_s"]
    assert list(serving)[:8] == [
        *names,
        "tokens_per_s_per_gpu",
        "max_concurrency",
        "kv_tokens",
    ]
    assert all(list(serving[name]) == ["mean", "p50", "p90", "p99"] for name in names[1:4])
    assert serving["concurrency"] == 16
    assert serving["tokens_per_s_per_gpu"] == serving["tokens_per_s"] / 4
    means = [serving[name]["mean"] for name in ("ttft_s", "tpot_s", "request_s")]
    assert means[2] == pytest.approx(means[0] + 255 * means[1], rel=0.02)
    assert serving["tokens_per_s"] == pytest.approx(16 * 256 / means[2], rel=0.02)
    assert "serving" not in _asked().to_dict()


def test_what_clients_see_has_intervals_that_are_as_wide_as_their_parts_are_unsure():
    known, unsure = (
        _asked("tp4", concurrency=16, engine="vllm", hardware=hardware).to_dict()["serving"]
        for hardware in ("h100-sxm", "l40s")
    )
    for name in ("ttft", "tpot"):
        low, high = known[f"{name}_interval_s"]
        assert low < known[f"{name}_s"]["mean"] < high
    widths = [np.ptp(one["tokens_per_s_interval"]) / one["tokens_per_s"] for one in (known, unsure)]

    assert 0.1 < widths[0] < widths[1] < 0.6


def test_memory_under_load_is_that_of_all_sequences_and_no_more_than_the_engine_uses():
    held = {}
    for many in (1, 16, 64, 1024):
        found = _asked("tp2", concurrency=many, engine="vllm", hardware="h100-sxm")
        parts = found.memory_parts_bytes
        assert found.memory_bytes == sum(parts.values())
        assert {type(size) for size in (found.memory_bytes, *parts.values())} == {int}
        held[many] = parts["kv"]
        room = 0.92 * 80 * 2**30
        assert found.memory_bytes < room

    assert held[16] == pytest.approx(16 * held[1], rel=0.15)
    assert held[64] > 3 * held[16]
    assert held[1024] < 1.001 * held[64] * 1024 / 64


def test_plans_that_the_engine_cannot_run_are_of_the_load_too():
    asked = {"hardware": "h100-sxm", "engine": "tensorrt-llm"}
    for load in ({"concurrency": 64}, {"concurrency": 64, "slo_tpot": 0.008}):
        found = planner.recommend("llama-3.1-8b", 4, **asked, **load)
        barred = {row.plan for row in found.refusals}
        assert barred <= {row.plan for row in found.plans}
        assert not {row.plan for row in found.plans} & {row.plan for row in found.rejected}
        for row in found.plans:
            alone = planner.estimate("llama-3.1-8b", 4, row.plan, **asked, **load)
            assert row.serving is not None
            assert row.memory_parts_bytes == alone.memory_parts_bytes


def test_many_requests_and_few_tokens_are_written_out():
    text = terminal(_asked("tp4", concurrency=1024).table().text().splitlines(), 200)
    assert "1,024" in text
    assert "e+03" not in text
    answer = planner.recommend(
        "llama-3.1-70b", 8, hardware="l4", precision="fp8", input_tokens=8192, output_tokens=16,
        objective="throughput",
    )  # fmt: skip
    rows = report.frontier_table(answer.frontier).rows
    assert all(float(row[1].replace(",", "")) > 0 for row in rows)


def test_replicas_share_the_requests_and_a_pipeline_takes_turns():
    alone, twice = _asked("tp2", concurrency=8), _asked("dp2.tp2", concurrency=16)

    assert twice.serving.tokens_per_s == pytest.approx(2 * alone.serving.tokens_per_s)
    assert twice.serving.kv_tokens == 2 * alone.serving.kv_tokens
    piped = _asked("pp2.tp2", concurrency=16).serving
    assert 0.7 < piped.tokens_per_s / twice.serving.tokens_per_s < 1.0


def test_a_pipeline_with_one_request_is_as_slow_as_one_place_with_all_layers():
    alone, piped = (_asked(plan, concurrency=1).serving for plan in ("tp2", "pp2.tp2"))

    assert 1.0 < piped.tpot.mean / alone.tpot.mean < 1.1


def test_a_rate_is_served_or_the_plan_says_how_much_it_serves():
    quiet = _asked(rate="1/s").serving

    assert quiet.tokens_per_s == pytest.approx(256, rel=0.02)
    assert quiet.concurrency == pytest.approx(quiet.request.mean)
    assert _asked(rate="4/s", burst=8.0).serving.ttft.p99 > _asked(rate="4/s").serving.ttft.p99
    with pytest.raises(ModelError, match=r"plan tp4: serves [\d.]+ of 1e\+03 requests a second"):
        _asked(rate="1000/s")


def test_near_saturation_as_many_are_followed_as_the_slowest_take_to_settle():
    asked = {"model": "llama-3.1-8b", "gpus": 1, "engine": "vllm"}
    quiet, busy = (_asked("single", rate=rate, **asked).serving for rate in (4.0, 24.0))
    sizes = {"hardware": "h200-sxm", "precision": "fp8", "input_tokens": 1024, "output_tokens": 256}
    ranked = planner.recommend(**asked, **sizes, rate=24.0).plans[0].serving

    assert (quiet.followed, ranked.followed, busy.followed) == (3200, 800, 25600)
    assert busy.request.p99 > 1.1 * ranked.request.p99


def test_a_trace_is_served_as_it_comes(tmp_path):
    lines = [f"{number},{1000 + number},{10 + number}" for number in range(20)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]))
    serving = _asked(arrivals=path).serving

    assert serving.tokens_per_s == pytest.approx(sum(range(10, 30)) / 19, rel=0.1)
    assert _asked("dp2.tp2", arrivals=str(path)).serving.ttft.mean > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,input_tokens\n0,1\n", "got no column output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n-1,10,10\n", "line 2: arrival_s: got -1"),
        ("arrival_s,input_tokens,output_tokens\ninf,10,10\n", "line 2: arrival_s: got inf"),
        ("arrival_s,input_tokens,output_tokens\n0,10,ten\n", "output_tokens: got 'ten'"),
        ("arrival_s,input_tokens,output_tokens\n0,10,0.5\n", "wanted a whole number from 1"),
        ("arrival_s,input_tokens,output_tokens\n", "got no requests"),
        ("arrival_s,input_tokens,output_tokens\n0,200000,9\n", "wanted at most 131,072, the"),
        (f"arrival_s,input_tokens,output_tokens\n0,{'1' * 200000},9\n", "a line that is no CSV"),
    ],
)
def test_a_bad_trace_is_one_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        _asked(arrivals=path)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency: got 0"),
        ({"rate": "fast"}, "rate: got 'fast'"),
        ({"rate": -1.0}, "rate: got -1.0, wanted more than 1e-06 and at most 1,000"),
        ({"rate": 1e-30}, "rate: got 1e-30, wanted more than 1e-06"),
        ({"rate": 1, "burst": None}, "burst: got None, wanted more than 0 and at most 100"),
        ({"rate": 1, "burst": 1e300}, "burst: got 1e.300, wanted more than 0 and at most 100"),
        ({"slo_ttft": 10**400, "rate": 1}, "slo_ttft: got 1000.*, wanted more than 0"),
        ({"slo_ttft": 1.0}, "slo_ttft: got 1 s of no load, wanted a concurrency, a rate or"),
        ({"spread": 0.25}, "spread: got 0.25 of no load, wanted a concurrency, a rate or"),
        ({"burst": 4.0}, "burst: got 4 of no rate, wanted a rate beside it"),
        ({"burst": 4.0, "concurrency": 2}, "burst: got 4 of no rate, wanted a rate beside it"),
        ({"burst": 4.0, "arrivals": [[0.0, 9, 9]]}, "burst: got 4 of no rate, wanted a rate"),
        ({"slo_ttft": 1.0, "batch": 4}, "batch: got 4 beside slo_ttft"),
        ({"concurrency": 2, "output_tokens": 0}, "output_tokens: got 0 beside concurrency"),
        ({"arrivals": "nowhere.csv"}, "arrivals: got 'nowhere.csv', No such file"),
        ({"prefix_hit": 1.0, "concurrency": 2}, "prefix_hit: got 1.0, wanted a share"),
        ({"slo_tpot": "soon"}, "slo_tpot: got 'soon'"),
        ({"concurrency": 2, "rate": 2.0}, "rate: got one beside concurrency"),
        ({"concurrency": 2, "batch": 4}, "batch: got 4 beside concurrency"),
        ({"concurrency": 2, "input_tokens": 131000}, "wanted at most 131,072, the context of"),
        (
            {
                "concurrency": 2,
                "input_tokens": 49900,
                "spread": 0.9,
                "plan": "single",
                "model": "llama-3.1-8b",
                "hardware": "l4",
            },
            "the cache of single holds",
        ),
    ],
)
def test_a_load_that_cannot_be_is_one_line(options, message):
    with pytest.raises(InputError, match=message) as error:
        _asked(**options)

    assert "\n" not in str(error.value)


def test_a_search_refuses_bursts_of_no_rate_too():
    with pytest.raises(InputError, match="burst: got 2 of no rate, wanted a rate beside it"):
        planner.recommend("llama-3.1-8b", 2, concurrency=4, burst=2.0)


@pytest.mark.parametrize("option", [{"spread": 0.5}, {"burst": 2.0}, {"output_tokens": 0}])
def test_what_is_said_of_language_models_is_refused_of_others(option):
    with pytest.raises(InputError, match="is no language model"):
        planner.estimate("flux.1-dev", **option)


def test_a_search_finds_the_concurrency_and_says_what_comes_nearest():
    sizes = {"input_tokens": 512, "output_tokens": 128, "engine": "vllm"}
    answer = planner.recommend("llama-3.1-8b", 2, slo_tpot="12ms", **sizes)
    lead = answer.lead.serving

    assert answer.request.objective == "throughput"
    assert lead.tpot.mean <= 12e-3
    assert lead.tokens_per_s == max(plan.serving.tokens_per_s for plan in answer.plans)
    points = [(point.tpot_s, point.tokens_per_s_per_gpu) for point in answer.frontier]
    assert points == sorted(points)
    assert [rate for _, rate in points] == sorted(rate for _, rate in points)


@pytest.mark.parametrize("objective", [None, "latency", "throughput"])
def test_of_plans_that_keep_up_with_a_rate_the_quickest_is_the_best(objective):
    answer = planner.recommend(
        "llama-3.1-70b", 8, hardware="h200-sxm", precision="fp8", engine="vllm", rate="10/s",
        slo_ttft="1s", ttft_percentile=99, objective=objective,
    )  # fmt: skip
    seconds = [plan.serving.request.mean for plan in answer.plans]

    assert answer.request.objective == (objective or "latency")
    assert len(seconds) > 2
    assert seconds == sorted(seconds)
    said = document(report.recommendation(answer, top=4))
    assert "ranked by the time of a request" in " ".join(said.split())


def test_what_a_search_shows_is_what_an_estimate_of_it_gives():
    sizes = {"input_tokens": 512, "output_tokens": 128}
    answer = planner.recommend("llama-3.1-8b", 2, slo_tpot="12ms", **sizes)
    for row in answer.to_dict()["engines"]:
        many = round(row["serving"]["concurrency"])
        alone = planner.estimate(
            "llama-3.1-8b", 2, row["plan"], engine=row["engine"], concurrency=many, **sizes
        ).to_dict()
        for name in ("tokens_per_s", "concurrency", "max_concurrency", "ttft_s", "tpot_s"):
            assert alone["serving"][name] == row["serving"][name]
        assert alone["latency_s"] == pytest.approx(row["latency_s"])


def test_a_fleet_takes_no_requests_that_are_longer_than_its_model_takes():
    request = request_of("llama-3.1-8b", 1, {"input_tokens": 200000})
    with pytest.raises(InputError, match="wanted at most 131,072, the context of"):
        capacity([Demand(name="a", request=request, rate_per_s=1.0, slo_s=9.0)], ["h100-sxm"])


def test_where_no_plan_meets_what_is_wanted_the_nearest_are_shown():
    asked = {"input_tokens": 512, "output_tokens": 128, "slo_tpot": 1e-4}
    hopeless = planner.recommend("llama-3.1-8b", 2, **asked)

    assert hopeless.lead is None
    assert not hopeless.runnable
    (line,) = hopeless.advice
    assert re.match(r"no plan meets what is wanted: tp2 comes nearest, TPOT [\d.]+ ms of 100", line)
    rows = hopeless.to_dict()["engines"]
    assert {row["engine"] for row in rows} == {"vllm", "sglang-llm", "tensorrt-llm"}
    assert line == rows[0]["reason"]
    texts = (
        terminal(report.recommendation(hopeless, top=8), 120),
        document(report.recommendation_page(hopeless, top=8)),
        web("", report.recommendation_page(hopeless, top=8)),
    )
    for text in texts:
        assert "none of which meets what is wanted, the nearest first" in text
        assert "nothing that is known runs" not in text


def test_an_estimate_says_which_times_it_misses(capsys):
    words = ["estimate", "--model", "llama-3.1-8b", "--concurrency", "4", "--slo-ttft"]

    assert main([*words, "1ms"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"misses what is wanted: TTFT [\d.]+ ms of 1 ms", out)
    assert "--batch" not in out
    assert main([*words, "1min"]) == 0
    assert "misses" not in capsys.readouterr().out


def test_the_shortest_requests_are_served():
    serving = _asked("single", "llama-3.1-8b", concurrency=1, input_tokens=1, output_tokens=1)

    assert serving.serving.ttft.mean > 0


def test_a_fleet_has_the_replicas_that_serve_a_rate_in_time():
    sizes = {"input_tokens": 512, "output_tokens": 128, "engine": "vllm"}
    request = request_of("llama-3.1-8b", 1, sizes)
    fleets = {}
    for rate in (20.0, 40.0):
        demand = Demand(name="chat", request=request, rate_per_s=rate, slo_s=5.0)
        fleets[rate] = capacity([demand], ["h100-sxm"]).answers[0].fleets[0]
    one, two = fleets[20.0], fleets[40.0]

    assert one.gpus <= two.gpus <= 2 * one.gpus
    assert one.response_s <= 5.0
    assert one.most_rate_per_s >= 20.0
    assert one.serving.tokens_per_s * one.replicas == pytest.approx(20 * 128, rel=0.05)
    answer = Answer(demand=demand, fleets=(two,), without=())
    assert "TTFT" in terminal(shown.parts(Capacity(answers=(answer,))))


def test_engines_are_told_the_load_and_take_smaller_steps_on_smaller_gpus():
    lines = {}
    for hardware in ("h100-sxm", "l40s"):
        more = {"concurrency": 32, "engine": "vllm", "hardware": hardware}
        answer = planner.recommend("qwen3-8b", 2, **more)
        lines[hardware] = next(line.line for line in answer.launch if line.engine == "vLLM")

    assert "--max-num-seqs 32 --max-num-batched-tokens 8192" in lines["h100-sxm"]
    assert "--max-num-batched-tokens 2048" in lines["l40s"]


def test_sglang_takes_larger_steps_on_gpus_of_much_memory():
    chunks = [
        planner.estimate("llama-3.1-8b", hardware=hardware, engine="sglang-llm", concurrency=8)
        .serving.told["chunk"]
        for hardware in ("h200-sxm", "b200")
    ]  # fmt: skip

    assert chunks == [8192, 16384]


def test_tables_of_language_models_have_their_words():
    scenario = resolve(request_of("llama-3.1-8b", 2, {"slo_tpot": "12ms"}))
    answer = recommend_plans(scenario)
    page = web("", report.recommendation_page(answer, top=8))
    texts = [terminal(report.recommendation(answer, top=8), 120), page]
    one = _asked(concurrency=4)
    texts += [one.table().text(), terminal(report.estimate(scenario, one, []), 120)]
    texts += [_asked().table().text()]

    assert all(word in text for text in texts for word in ("TTFT", "TPOT", "tokens/s"))
    assert "<svg" in page


def test_the_concurrency_found_meets_the_times_as_it_is_estimated():
    more = {"gpus": 2, "hardware": "h100-sxm", "engine": "vllm"}
    found = planner.recommend("llama-3.1-8b", slo_tpot=0.012, **more)
    lead = found.plans[0]
    at = round(lead.serving.concurrency)
    again = planner.estimate("llama-3.1-8b", plan=str(lead.plan), concurrency=at, **more)

    assert again.serving.tpot.mean == pytest.approx(lead.serving.tpot.mean, rel=0.02)
    assert again.serving.request.mean == pytest.approx(lead.serving.request.mean, rel=0.02)


def test_the_headline_under_load_says_what_clients_see():
    more = {"engine": "vllm", "concurrency": 16}
    found = recommend_plans(resolve(request_of("llama-3.1-8b", 2, more)))
    serving = found.lead.serving
    ((said, _),) = engines.headlines(found.runs[0], found.lead)

    assert f"TPOT {format_seconds(serving.tpot.mean)}" in said
    assert re.search(rf"{serving.tokens_per_s:,.0f} ± \d+ tokens/s with 16 at once", said)
    assert "results a second" not in said
    both, one = (replace(found.lead, plan=parse_plan(plan)) for plan in ("dp2", "single"))
    alone, all_of_them = (said for said, _ in engines.headlines(found.runs[0], both, one))
    assert alone.startswith("For one result at a time use 2 GPUs: single with vLLM: ")
    assert all_of_them.startswith("On all 2 GPUs run dp2 ")  # other plans may write more


def test_under_a_load_latency_is_the_time_of_its_requests():
    """And by Little's law the order of tokens/s, where so many requests are in flight."""
    more = {"engine": "vllm", "concurrency": 64, "objective": "latency"}
    answer = recommend_plans(resolve(request_of("llama-3.1-8b", 4, more)))
    served = [plan.serving for plan in answer.runnable]
    text = terminal(report.recommendation(answer, top=8), 400)

    assert len(served) > 2
    assert served == sorted(served, key=lambda each: each.request.mean)
    assert served == sorted(served, key=lambda each: -each.tokens_per_s)
    assert re.search(rf"1  {answer.lead.plan} +{format_seconds(served[0].request.mean)} +64 ", text)
    assert "ranked by the time of a request" in text


def test_who_alters_an_answer_alters_no_later_one():
    asked = {"plan": "tp4", "concurrency": 3}
    first = _asked(**asked)
    said = first.to_dict()
    for parts in (first.stages_s, first.breakdown_s, first.memory_parts_bytes, first.known):
        parts.clear()

    assert _asked(**asked).to_dict() == said


def test_an_estimate_under_load_says_how_many_requests_are_done():
    scenario = resolve(request_of("llama-3.1-8b", 2, {"engine": "vllm", "concurrency": 16}))
    found = estimate_plan(scenario, "tp2")
    text = terminal(report.estimate(scenario, found, ()), 400)

    assert f"{found.serving.requests_per_s:.3g} requests a second, bound by" in text
    assert " a request by itself, " in text
