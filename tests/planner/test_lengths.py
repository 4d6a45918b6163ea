"""Requests whose lengths and times vary: histograms, traces and bursts, as a user gives them."""

import json
from itertools import cycle

import numpy as np
import pytest
from commands import assert_refused, run
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.engines.engine import Scheduling
from planner.fleet.queueing import wait
from planner.request.lengths import (
    Lengths,
    Load,
    closed_load,
    lengths_in,
    poisson,
    read_requests,
    traced_load,
)
from planner.request.request import Request
from planner.serving.scheduler import Queue, Workers
from topology.base import InputError

pytestmark = pytest.mark.usefixtures("searched_once")

TRACE = "arrival_s,input_tokens,output_tokens\n0,50,3\n0,1000,200\n0.1,2500,20\n9,2000,200\n"
ROWS = [(0, 50, 3), (0.0, 1000, 200), (0.1, 2500, 20), (9, 2000, 200)]
HISTOGRAM = "input_tokens,output_tokens,count\n200,50,8\n4000,300,1\n"
LLAMA = ("--model", "llama-3.1-8b")


@pytest.fixture
def files(tmp_path):
    """Write a trace and a histogram; give their paths."""
    paths = (tmp_path / "trace.csv", tmp_path / "lengths.csv")
    for path, text in zip(paths, (TRACE, HISTOGRAM), strict=True):
        path.write_text(text)
    return tuple(map(str, paths))


def answer(*words):
    code, out, err = run(*words, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


# How lengths are drawn.


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(1, 900), st.floats(0.1, 9)), min_size=1,
        max_size=9,
    ),
    st.integers(1, 400),
)  # fmt: skip
def test_a_histogram_is_drawn_as_often_as_it_says(rows, count):
    lengths = lengths_in(rows)
    prompts, outputs = lengths.draw(count)
    drawn = list(zip(prompts, outputs, strict=True))

    assert lengths.longest == max(prompt + output for prompt, output, _ in rows)
    for prompt, output in {row[:2] for row in rows}:
        alike = [often for *row, often in rows if tuple(row) == (prompt, output)]
        share = sum(alike) / sum(often for *_, often in rows)
        assert abs(drawn.count((prompt, output)) - share * count) <= len(alike)
    assert lengths.draw(count) == (prompts, outputs)


def test_a_spread_is_uniform_around_the_mean():
    prompts, outputs = Lengths(prompt=1000, output=200, spread=0.5).draw(4000)

    for drawn, mean in ((prompts, 1000), (outputs, 200)):
        assert (min(drawn), max(drawn)) == pytest.approx((0.5 * mean, 1.5 * mean), rel=0.01)
        assert np.mean(drawn) == pytest.approx(mean, rel=0.02)
        assert np.std(drawn) == pytest.approx(mean / np.sqrt(12), rel=0.03)


@pytest.mark.parametrize("burst", [1.0, 4.0, 16.0])
def test_gaps_vary_as_asked(burst):
    load = poisson(Lengths(prompt=1, output=1), 2.0, 20_000, burst)
    gaps = np.diff(load.arrivals)

    assert np.mean(gaps) == pytest.approx(0.5, rel=0.1)
    assert np.var(gaps) / np.mean(gaps) ** 2 == pytest.approx(burst, rel=0.15)


# Laws of the schedule, and schedules by hand.


def _second_a_step(tokens, context, rows, length):
    """A second a step, and a hundredth more for each token of a prompt."""
    return [1.0 + tokens / 100]


def follow(load, *, capacity=10**6, **ways):
    ways = Scheduling(**{"chunk": 100, "block": 1, **ways})
    workers = Workers(ways=ways, capacity=capacity, steps=_second_a_step)
    trail = Queue(workers, load).run()
    return trail, sorted(trail.sequences, key=lambda sequence: sequence.number)


def test_five_requests_by_hand_that_wait_for_room_in_the_cache():
    load = Load(prompts=[40, 30, 50, 20, 10], outputs=[3, 4, 2, 3, 2], arrivals=[0.0] * 5)
    trail, sequences = follow(load, capacity=100)

    # 40 + 30, as 50 do not fit; two steps; 50 beside one; 20 + 10 beside one; 1; 1
    firsts, ends = ([getattr(s, name) for s in sequences] for name in ("first", "finish"))
    assert firsts == pytest.approx([1.7, 1.7, 5.2, 6.5, 6.5])
    assert ends == pytest.approx([3.7, 5.2, 6.5, 8.5, 7.5])
    assert trail.most_tokens <= 100


def test_two_requests_by_hand_of_which_one_loses_its_cache():
    load = Load(prompts=[50, 40], outputs=[6, 6], arrivals=[0.0, 0.0])
    trail, sequences = follow(load, capacity=95)

    # 90; two steps fill 94 of 95; the second starts again: after three steps 42, and two more
    assert [s.first for s in sequences] == pytest.approx([1.9, 1.9])
    assert [s.finish for s in sequences] == pytest.approx([6.9, 10.32])
    assert (trail.preempted, trail.prefilled, trail.decoded) == (1, 132, 12)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(1, 5)), min_size=1,
             max_size=6),
    st.floats(0.02, 2.0),
    st.floats(0.5, 8.0),
    st.integers(140, 400),
)  # fmt: skip
def test_work_of_a_histogram_is_done_once_in_bursts_and_the_cache_never_overflows(
    rows, rate, burst, capacity
):
    load = poisson(lengths_in(rows), rate, 60, burst)
    trail, sequences = follow(load, capacity=capacity, block=4, chunk=32)

    assert len(sequences) == 60
    assert trail.decoded == sum(load.outputs)
    assert trail.preempted or trail.prefilled == sum(load.prompts)
    assert trail.most_tokens <= capacity
    for request, arrival in zip(sequences, load.arrivals, strict=True):
        assert request.arrival == arrival
        assert request.arrival <= request.first <= request.finish <= trail.seconds


def test_one_request_at_once_waits_as_the_queue_of_fixed_service_does():
    """M/D/1: its mean in closed form, and shares of it as the queue of images has them."""
    rate, service, output = 0.06, 11.0, 10
    load = poisson(lengths_in([(100, output, 1.0)]), rate, 40_000)
    _, sequences = follow(load, rows=1)

    waits = [s.first - s.arrival - 2.0 for s in sequences]
    busy = rate * service
    assert np.mean(waits) == pytest.approx(busy * service / (2 * (1 - busy)), rel=0.05)
    for share in (0.5, 0.9, 0.95):
        assert np.quantile(waits, share) == pytest.approx(wait(1, busy, service, share), rel=0.06)


def test_more_load_never_brings_the_first_token_sooner():
    """Of a histogram: a higher rate, a trace that comes faster, more at once."""
    lengths = lengths_in([(20, 4, 6.0), (300, 60, 1.0)])
    once = poisson(lengths, 0.02, 400)
    trace = tuple(zip(once.arrivals, once.prompts, once.outputs, strict=True))
    for loads in (
        [poisson(lengths, rate, 400) for rate in (0.02, 0.05, 0.1, 0.2)],
        [traced_load(trace, pace) for pace in (1.0, 2.0, 4.0, 8.0)],
        [closed_load(lengths, concurrency, 300) for concurrency in (1, 2, 4, 8)],
    ):
        means = [np.mean([s.first - s.arrival for s in follow(load)[1]]) for load in loads]
        assert means == sorted(means)


# As a user asks.


def test_a_trace_is_followed_from_a_file_and_from_rows_alike(files):
    trace, _ = files
    shown = answer("estimate", *LLAMA, "--arrivals", trace)
    found = planner.estimate("llama-3.1-8b", arrivals=ROWS).to_dict()

    assert found["serving"] == shown["serving"]
    assert found["serving"]["tokens_per_s"] == pytest.approx(423 / 10.4, rel=0.1)
    out = run("estimate", *LLAMA, "--arrivals", trace)[1]
    assert "1,388 tokens in, 106 out · 4 requests of a trace" in out.splitlines()[0]


def test_a_histogram_is_taken_by_every_kind_of_load(files):
    _, lengths = files
    for load in (("--concurrency", "8"), ("--rate", "4/s", "--burst", "4")):
        found = answer("estimate", *LLAMA, "--lengths", lengths, *load)["serving"]
        rows = [(200, 50, 8), (4000, 300)]
        asked = {"concurrency": 8} if "8" in load else {"rate": 4.0, "burst": 4.0}

        assert found == planner.estimate("llama-3.1-8b", lengths=rows, **asked).to_dict()["serving"]
    out = run("recommend", *LLAMA, "--gpus", "2", "--lengths", lengths, "--slo-tpot", "15ms")[1]
    assert "622 tokens in, 78 out" in out.splitlines()[0]
    assert "--max-model-len 4300" in " ".join(out.split())


def test_long_requests_among_short_ones_make_others_wait():
    """Twice the mean prompt in a tenth of the requests: the same tokens, later first ones."""
    asked = {"rate": 20.0, "engine": "sglang"}
    alike = planner.estimate("llama-3.1-8b", lengths=[(1000, 50)], **asked).serving
    mixed = [(400, 50, 9), (6400, 50, 1)]
    mixed = planner.estimate("llama-3.1-8b", lengths=mixed, **asked).serving

    assert mixed.tokens_per_s == pytest.approx(alike.tokens_per_s, rel=0.02)
    assert mixed.ttft.p90 > alike.ttft.p90
    assert mixed.ttft.p99 > 1.5 * alike.ttft.p99


DEMAND = '[[demand]]\nmodel = "llama-3.1-8b"\nslo = "5 s"\n'


def fleets(document):
    return document["answers"][0]["fleets"]


def without_lengths(fleet):
    """A fleet without how its lengths were given: as a path, or as rows."""
    request = {name: value for name, value in fleet["request"].items() if name != "lengths"}
    return {**fleet, "request": request}


def test_demands_have_them_too(files, tmp_path):
    trace, lengths = files
    demand = tmp_path / "demand.toml"
    limits = ("--slo", "5s", "--engine", "vllm")
    drawn = (f'lengths = "{lengths}"', "lengths = [[200, 50, 8], [4000, 300, 1]]")
    for words, rows in (
        (("--rate", "40/s", "--lengths", lengths), [f'rate = "40/s"\n{row}' for row in drawn]),
        (("--arrivals", trace), [f'arrivals = "{trace}"']),
    ):
        asked = answer("capacity", *LLAMA, *limits, *words)
        for row in rows:
            demand.write_text(f'{DEMAND}engine = "vllm"\n{row}\n')
            written = answer("capacity", "--demand", str(demand))
            assert [*map(without_lengths, fleets(written))] == [
                *map(without_lengths, fleets(asked))
            ]
            assert written["gpus"] == asked["gpus"]


def test_a_trace_takes_the_replicas_that_keep_up_with_it(tmp_path):
    """Forty requests a second of 2,000 tokens, all at the start of each second."""
    rows = [(second, 2000, 100) for second in range(20) for _ in range(40)]
    path = tmp_path / "trace.csv"
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]))
    words = ("capacity", *LLAMA, "--engine", "vllm", "--arrivals", str(path), "--slo", "4s")
    found = answer(*words)["answers"][0]
    best = found["fleets"][0]
    relaxed = answer(*words[:-1], "60s")["answers"][0]["fleets"][0]

    assert found["demand"]["rate_per_s"] == pytest.approx(799 / 19)
    assert best["most_rate_per_s"] >= 799 / 19
    assert best["response_s"] <= 4.0
    assert best["gpus"] > relaxed["gpus"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input_tokens\n100\n", "got no column output_tokens, wanted input_tokens, output_tokens"),
        ("input_tokens,output_tokens\n", "got no requests, wanted a line for each"),
        (
            "input_tokens,output_tokens\n0,10\n",
            "line 2: input_tokens: got 0, wanted a whole number",
        ),
        ("input_tokens,output_tokens\n10,nan\n", "line 2: output_tokens: got nan, wanted a whole"),
        ("input_tokens,output_tokens\n10,inf\n", "line 2: output_tokens: got inf, wanted a whole"),
        ("input_tokens,output_tokens,count\n10,1,0\n", "line 2: count: got 0, wanted more than 0"),
        ("input_tokens,output_tokens,count\n10,1,inf\n", "line 2: count: got inf, wanted more"),
        ("input_tokens,output_tokens,count\n10,1,1e20\n", "more than 0, at most 1e+12"),
        ("input_tokens,output_tokens\n131000,100\n", "tokens: got 131,100 of the longest prompt"),
    ],
)
def test_a_bad_histogram_is_one_line(tmp_path, text, said):
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    for command in (("estimate",), ("capacity", "--slo", "9s")):
        assert_refused(*run(*command, *LLAMA, "--lengths", str(path), "--rate", "1/s"), said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-1,10,10", "line 2: arrival_s: got -1, wanted seconds from 0 to"),
        ("inf,10,10", "line 2: arrival_s: got inf, wanted seconds from 0 to"),
        ("nan,10,10", "line 2: arrival_s: got nan, wanted seconds from 0 to"),
        ("0,10,10", "arrivals: got 1 request over no time, wanted more"),
        ("0,10,10\n1,131072,10", "tokens: got 131,082 of the longest prompt and answer, wanted"),
    ],
)
def test_a_bad_trace_of_a_demand_is_one_line(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{text}\n")
    assert_refused(*run("capacity", *LLAMA, "--slo", "9s", "--arrivals", str(path)), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lengths", "no.csv"), "lengths: got 'no.csv', No such file"),
        (("--lengths", "/dev/zero"), "lengths: got '/dev/zero', not a file but a pipe or device"),
        (("--lengths", "x", "--arrivals", "y"), "lengths: got some beside arrivals, which have"),
        (("--rate", "1/s", "--arrivals", "y"), "arrivals: got one beside rate, wanted one of the"),
        (("--input-tokens", "130000", "--concurrency", "2", "--spread", "0.1"),
         "got 143,141 of the longest prompt and answer (a spread of 0.1 around the mean), wanted"),
    ],
)  # fmt: skip
def test_bad_words_are_one_line(words, said):
    assert_refused(*run("estimate", *LLAMA, *words), said)


def test_means_beside_requests_are_refused_unless_they_are_theirs(files):
    _, lengths = files
    words = ("estimate", *LLAMA, "--lengths", lengths, "--rate", "1/s")
    assert_refused(*run(*words, "--input-tokens", "100"), "input_tokens: got 100 beside lengths")
    assert_refused(*run(*words, "--spread", "0.2"), "spread: got 0.2 beside lengths, wanted none")


@pytest.mark.parametrize("option", [{"input_tokens": 5}, {"output_tokens": 5}, {"spread": 0.5}])
def test_a_trace_has_its_own_lengths(option):
    with pytest.raises(InputError, match="beside arrivals, wanted none"):
        planner.estimate("llama-3.1-8b", arrivals=ROWS, **option)


@pytest.mark.parametrize("number", ["\u0661\u0660\u0660", "1_0"])
def test_digits_of_other_scripts_are_no_numbers(tmp_path, number):
    path = tmp_path / "lengths.csv"
    path.write_text(f"input_tokens,output_tokens\n{number},20\n", "utf-8")
    words = ("estimate", *LLAMA, "--concurrency", "2")

    assert_refused(*run(*words, "--lengths", str(path)), "input_tokens: got ")
    assert_refused(*run(*words, "--spread", number), f"got {number!r}, wanted a share")
    priced = ("capacity", "--model", "flux", "--rate", "1/min", "--slo", "60s", "--price", number)
    assert_refused(*run(*priced), "No such file")
    version = ("estimate", "--model", "flux", "--tensorrt-version", f"{number}.2")
    assert_refused(*run(*version), "wanted numbers such as 11.4.1")
    assert run(*words, "--input-tokens", "622")[0] == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"lengths": 5}, "lengths: got 5, wanted a file, or rows of numbers"),
        ({"arrivals": cycle([(0, 9, 9)])}, "wanted a file, or rows of numbers"),  # it never ends
        ({"lengths": [(1,)]}, r"lengths, row 1: got \(1,\), wanted input_tokens, output_tokens"),
        ({"lengths": [(10, "x")]}, "lengths, row 1: output_tokens: got 'x', wanted a number"),
        (
            {"arrivals": [(0, 10)]},
            r"arrivals, row 1: got \(0, 10\), wanted arrival_s, input_tokens",
        ),
        ({"arrivals": [(-1, 10, 10)]}, "arrivals, row 1: arrival_s: got -1, wanted seconds"),
    ],
)
def test_bad_rows_are_one_line(asked, said):
    with pytest.raises(InputError, match=said):
        planner.estimate("llama-3.1-8b", **asked)


def test_the_context_is_of_the_longest_request_of_a_search_too():
    """A mean that fits is ranked by a request alone; under load it is refused."""
    sizes = {"input_tokens": 125_000, "output_tokens": 1000}
    found = planner.recommend("llama-3.1-8b", 1, engine="vllm", spread=0.1, **sizes)

    assert found.lead is not None
    assert found.lead.serving is None
    with pytest.raises(InputError, match="of the longest prompt and answer"):
        planner.recommend("llama-3.1-8b", 1, engine="vllm", concurrency=1, spread=0.1, **sizes)
    assert planner.recommend("llama-3.1-8b", 1, concurrency=1, **sizes).lead.serving


def test_images_have_no_lengths():
    with pytest.raises(InputError, match=r"wanted none: flux\.1-dev is no language model"):
        planner.estimate("flux.1-dev", lengths=[(10, 10)])


def test_files_hold_what_is_followed_in_seconds(tmp_path):
    """Two MiB are a hundred thousand requests, of which a plan is followed in ten seconds."""
    long = tmp_path / "long.csv"
    long.write_text("arrival_s,input_tokens,output_tokens\n" + "0,1,1\n" * 2**19)
    with pytest.raises(InputError, match="wanted a file of at most 2097152 bytes"):
        read_requests(Request(model="llama-3.1-8b", arrivals=str(long)))
