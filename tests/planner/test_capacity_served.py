"""Replicas of language models: how soon tokens are wanted, what to type, and files of demands."""

import json
import re
from functools import cache

import pytest
from commands import ROOT, assert_refused, run

import planner
from planner.fleet import fleet
from planner.fleet.replica_rates import ALL_FOLLOWED, Replica
from planner.search.clients import Wanted, spread_of

pytestmark = pytest.mark.usefixtures("searched_once")

WORDS = ("capacity", "--model", "llama-3.1-8b", "--rate", "20/s", "--input-tokens", "500",
         "--output-tokens", "60")  # fmt: skip
DEMAND = """
[[demand]]
model = "llama-3.1-8b"
rate = "20/s"
input_tokens = 500
output_tokens = 60
slo_ttft = "300 ms"
ttft_percentile = 99
slo_tpot = "15 ms"
kv_precision = "fp8"
chunk = 2048
prefix_hit = 0.5
engine = "vllm"
"""
SAME = ("--slo-ttft", "300ms", "--ttft-percentile", "99", "--slo-tpot", "15ms",
        "--kv-precision", "fp8", "--chunk", "2048", "--prefix-hit", "0.5",
        "--engine", "vllm")  # fmt: skip


@cache
def answer(*words):
    code, out, err = run(*words, "--format", "json")
    assert err == ""
    return code, json.loads(out)["answers"][0]


def test_tokens_alone_may_be_wanted_soon_and_the_fleet_keeps_it():
    code, found = answer(*WORDS, *SAME)
    best, serving = found["fleets"][0], found["fleets"][0]["serving"]

    assert code == 0
    assert found["demand"]["slo_s"] is None
    assert serving["ttft_s"]["p99"] <= 0.3
    assert serving["tpot_s"]["mean"] <= 0.015
    assert best["most_rate_per_s"] >= 20.0


def test_a_file_says_the_same_as_options(tmp_path):
    file = tmp_path / "demand.toml"
    file.write_text(DEMAND)

    assert answer("capacity", "--demand", str(file)) == answer(*WORDS, *SAME)


def test_python_says_the_same_as_options():
    """Requests of a histogram, and of a trace in place of a rate, as rows of numbers."""
    asked = {"slo_ttft": "300ms", "ttft_percentile": 99, "slo_tpot": "15ms", "engine": "vllm",
             "kv_precision": "fp8", "chunk": 2048, "prefix_hit": 0.5}  # fmt: skip
    sizes = {"input_tokens": 500, "output_tokens": 60}
    found = planner.capacity(model="llama-3.1-8b", rate="20/s", **sizes, **asked).to_dict()
    _, shown = answer(*WORDS, *SAME)
    assert found["answers"][0] == shown

    rows = [(number / 20, 500, 60) for number in range(100)]
    traced = planner.capacity(model="llama-3.1-8b", arrivals=rows, **asked).answers[0]
    assert traced.demand.rate_per_s == pytest.approx(20.0)
    assert traced.fleets[0].gpus == found["answers"][0]["fleets"][0]["gpus"]
    lengths = [(100, 20, 3), (1700, 180, 1)]
    mixed = planner.capacity(model="llama-3.1-8b", rate="20/s", lengths=lengths, **asked)
    assert mixed.answers[0].fleets[0].serving.ttft.p99 <= 0.3


def test_a_percentile_that_more_keep_takes_no_fewer_gpus():
    """A tight time to the first token: of the mean, of half and of nearly all requests."""
    rates = []
    for words in ((), ("--ttft-percentile", "90"), ("--ttft-percentile", "99")):
        limit = ("--slo-ttft", "60ms", "--engine", "vllm")
        _, found = answer(*WORDS, *limit, *words)
        rates.append(found["fleets"][0]["most_rate_per_s"] / found["fleets"][0]["gpus"])

    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[2]


@pytest.mark.parametrize("style", ["table", "markdown", "html"])
def test_what_to_type_stands_in_every_format(style):
    limits = ("--slo-tpot", "20ms", "--engine", "sglang", "--kv-precision", "fp8")
    code, out, _ = run(*WORDS, *limits, "--format", style)
    _, found = answer(*WORDS, *limits)
    best = found["fleets"][0]

    assert code == 0
    assert best["engine"] == "sglang-llm"
    assert best["command"] in out
    for flag in ("--kv-cache-dtype fp8_e4m3", "--max-running-requests 1024", "--context-length "):
        assert flag in best["command"]


def test_where_no_engine_is_named_the_best_of_those_that_serve_is_taken():
    limits = ("--slo-ttft", "300ms", "--slo-tpot", "15ms")
    _, found = answer(*WORDS, *limits)
    best = found["fleets"][0]
    gpus = {}
    for engine in ("vllm", "tensorrt-llm", "sglang-llm"):
        _, one = answer(*WORDS, *limits, "--engine", engine)
        gpus[engine] = (one["fleets"][0]["gpus"], one["fleets"][0]["response_s"])

    assert best["engine"] == min(gpus, key=lambda name: gpus[name])
    assert best["gpus"] == gpus[best["engine"]][0]


def test_of_several_engines_the_best_is_taken():
    limits = ("--slo-ttft", "300ms", "--slo-tpot", "15ms")
    _, both = answer(*WORDS, *limits, "--engine", "vllm,sglang")

    assert both["fleets"][0]["engine"] in ("vllm", "sglang-llm")


def test_the_example_of_language_models_is_met():
    code, out, _ = run("capacity", "--demand", str(ROOT / "examples" / "chat.toml"))

    assert code == 0
    assert "p99 of TTFT within 500 ms, TPOT within 25 ms" in out
    assert "--speculative-config" in out or "--speculative-algorithm" in out or "DraftTarget" in out


PICTURES = ("capacity", "--model", "flux.1-dev", "--rate", "30/min", "--slo", "10s")


def fewest(*words):
    code, found = answer(*PICTURES, *words)
    assert code == 0
    best = found["fleets"][0]
    return best["gpus"], best["response_s"], best["engine"]


def test_pictures_are_counted_on_the_best_engine_that_makes_them():
    names = ("trtmc", "xdit", "sglang", "vllm-omni", "diffusers")
    alone = [fewest("--engine", name) for name in names]

    assert fewest() == min(alone)
    assert fewest("--engine", "xdit,diffusers") == min(alone[1], alone[4])


def test_exports_are_counted_where_they_are_asked_for_or_no_engine_runs_a_model(monkeypatch):
    for words in (("--engine", "planner"), ("--runtime", "tensorrt")):
        _, out, _ = run(*PICTURES, *words)
        assert "planner export --model flux.1-dev --plan" in out
        assert "on GPUs yet: leave --engine and --runtime out to count engines" in out
    monkeypatch.setattr("planner.fleet.fleet._engine_runs", lambda scenario: False)
    _, out, _ = run(*PICTURES)
    assert "planner export --model flux.1-dev --plan" in out
    assert "on GPUs yet, and no known engine runs flux.1-dev as asked" in out


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (
            ("--slo-tpot", "1ms"),
            r"h100-sxm: tp8 comes nearest: TPOT [\d.]+ ms of 1 ms, one at once",
        ),
        (
            ("--slo-ttft", "1ms", "--ttft-percentile", "90"),
            r"comes nearest: p90 of TTFT [\d.]+ ms of 1 ms, one at once",
        ),
        (("--slo", "10ms"), r"comes nearest: [\d.]+ ms a request of 10 ms, one at once"),
    ],
)
def test_what_nothing_meets_names_the_nearest(limits, said):
    code, out, _ = run(*WORDS, *limits, "--engine", "vllm")

    assert code == 1
    assert out.startswith("not met: llama-3.1-8b\n")
    assert re.search(said, out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "slo: got none, wanted --model, --rate and --slo, or --demand"),
        (("--slo", "9s", "--ttft-percentile", "99"), "ttft_percentile: got 99, wanted slo_ttft"),
        (("--slo-ttft", "1s", "--ttft-percentile", "100"), "ttft_percentile: got 100.0, wanted"),
        (("--slo-ttft", "1s", "--ttft-percentile", "nan"), "ttft_percentile: got nan, wanted"),
        (("--slo-tpot", "soon"), "slo_tpot: got 'soon', wanted a time such as"),
        (("--slo", "9s", "--kv-precision", "int2"), "kv_precision"),
        (("--slo", "9s", "--chunk", "0"), "chunk: got 0, wanted a whole number from 1"),
        (("--slo", "9s", "--prefix-hit", "1"), "prefix_hit: got 1.0, wanted a share"),
        (("--demand", "x.toml", "--slo-ttft", "1s"), "demand: got --model llama-3.1-8b beside"),
    ],
)
def test_bad_limits_are_one_line(words, said):
    assert_refused(*run(*WORDS, *words), said)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("", "d.toml, demand 1: slo: got none, wanted a time such as 60s, or slo_ttft or slo_tpot"),
        ("ttft_percentile = 99\nslo = '9s'", "ttft_percentile: got 99, wanted slo_ttft beside it"),
        ("slo_ttft = 'soon'", "d.toml, demand 1: slo_ttft: got 'soon'"),
        ("slo = 9", "d.toml, demand 1: slo: got 9, wanted a text"),
    ],
)
def test_a_file_without_a_time_says_so(tmp_path, row, said):
    file = tmp_path / "d.toml"
    file.write_text(f'[[demand]]\nmodel = "llama-3.1-8b"\nrate = "1/s"\n{row}\n')
    assert_refused(*run("capacity", "--demand", str(file)), said)


def test_images_have_no_tokens_to_wait_for():
    said = "slo_ttft: got 1.0, wanted none: flux.1-dev is no language model"
    assert_refused(
        *run("capacity", "--model", "flux.1-dev", "--rate", "1/s", "--slo-ttft", "1s"), said
    )


def test_a_share_of_requests_is_read_off_all_of_them():
    spread = spread_of([4.0, 1.0, 3.0, 2.0], [1.0, 1.0, 1.0, 1.0])

    assert [spread.at(share) for share in (0.2, 0.5, 0.75, 0.99)] == [1.0, 2.0, 3.0, 4.0]
    assert spread.at(None) == spread.mean == 2.5
    assert not Wanted()
    assert Wanted(tpot=1.0, tpot_share=0.999).words() == ["p99.9 of TPOT within 1 s"]


def test_a_fleet_that_many_requests_show_to_be_late_is_none(monkeypatch):
    """A few requests of the search were in time, and those that follow are not, at any rate."""
    usual = Replica.in_time

    def late_in_the_end(*args):
        return None if ALL_FOLLOWED in args else usual(*args)

    monkeypatch.setattr(Replica, "in_time", late_in_the_end)
    words = ("--model", "llama-3.1-8b", "--rate", "1/s", "--slo", "20s", "--engine", "vllm")
    code, out, _ = run("capacity", *words, "--format", "json")

    assert code == 1
    (missing,) = json.loads(out)["answers"][0]["without"]
    assert "of 6,000 requests too few are served in time" in missing["reason"]


@pytest.mark.parametrize("spare", ["", "node"])
def test_a_node_that_is_lost_takes_its_replicas_and_their_requests(tmp_path, spare):
    file = tmp_path / "demand.toml"
    more = DEMAND.replace("20/s", "900/s")
    file.write_text(f'{more}spare = "{spare}"' if spare else more)
    _, found = answer("capacity", "--demand", str(file))
    best = found["fleets"][0]
    lost, each = best["node_lost"], 8 // best["gpus_per_replica"]

    assert lost["replicas_lost"] + lost["replicas_left"] == best["replicas"] > each
    assert lost["replicas_lost"] == lost["spare_replicas_needed"] == each
    if spare:
        assert lost["in_time"]
        assert lost["serving"] == best["serving"]
    else:
        assert not lost["in_time"]
        assert lost["most_rate_per_s"] < best["most_rate_per_s"]
        out = run("capacity", "--demand", str(file))[1]
        how = 'stand by on another node (spare = "node" in a file for --demand)'
        assert f"let {each} replicas {how}" in " ".join(out.split())


def test_pictures_of_a_node_that_is_lost_go_to_the_others():
    _, found = answer("capacity", "--model", "flux.1-dev", "--rate", "10/s", "--slo", "5s")
    best = found["fleets"][0]
    lost = best["node_lost"]

    assert lost["replicas_lost"] == 8 // best["gpus_per_replica"]
    assert lost["most_rate_per_s"] < best["most_rate_per_s"]
    assert lost["response_percentiles_s"] == {} or min(lost["response_percentiles_s"].values()) > 0
    assert not lost["in_time"]
