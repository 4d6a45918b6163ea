"""How many GPUs a demand needs: queues with known answers, laws of fleets, and the command."""

import heapq
import html
import json
import math
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from commands import assert_refused
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.command import cli
from planner.fleet.answers import curve
from planner.fleet.demand import Demand, Prices
from planner.fleet.demand_file import read_demands, read_prices, read_share
from planner.fleet.fleet import capacity
from planner.fleet.queueing import done_within, most_rate, quantile, servers_needed, wait
from planner.rendering import capacity as capacity_shown
from planner.request.quantities import read_rate, read_time
from planner.request.request import Request
from planner.runners.refusal import refusals
from planner.scenario.scenario import resolve
from topology.base import InputError
from topology.base.page import web
from topology.base.table import document, terminal

pytestmark = pytest.mark.usefixtures("searched_once")


@cache
def queue(servers, rate, service, count=200_000):
    """Let requests come at random to servers of one pace; returns their waits in order."""
    draw = random.Random(7)
    free, now, waits = [0.0] * servers, 0.0, []
    for _ in range(count):
        now += draw.expovariate(rate)
        start = max(now, heapq.heappop(free))
        heapq.heappush(free, start + service)
        waits.append(start - now)
    return sorted(waits)


def test_a_quantile_is_numpys_to_the_digit():
    for count in (2, 3, 101, 5000):
        for share in (0.0, 0.3, 0.5, 0.95, 0.999, 1.0):
            values = np.random.default_rng(count).standard_exponential(count)
            assert quantile(values.copy(), share) == np.quantile(values, share)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.999, 1.0])
@pytest.mark.parametrize(("servers", "load"), [(1, 0.3), (1, 0.9), (3, 2.4), (8, 7.9)])
def test_done_in_time_is_what_the_wait_says(servers, load, share):
    waited = wait(servers, load, 1.0, share)
    for limit in (1.0, 1.0 + waited * 0.999999, 1.0 + waited * 1.000001, 2.0, 50.0):
        assert done_within(servers, load, 1.0, limit, share) == (1.0 + waited <= limit)


@pytest.mark.parametrize(
    ("servers", "load"), [(1, 0.5), (1, 0.8), (3, 2.4), (4, 2.0), (10, 8.5), (20, 18.0)]
)
@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_waits_are_those_of_a_queue_of_many_servers(servers, load, share):
    """The queue of one server in c is that of all, of which each request takes the first free."""
    waits = queue(servers, load, 1.0)
    simulated = waits[int(share * len(waits))]

    assert 1.0 + wait(servers, load, 1.0, share) == pytest.approx(1.0 + simulated, rel=0.04)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.0])
def test_one_server_has_a_known_answer(load, seconds):
    """Erlang's M/D/1: P(W <= t) = (1 - r) sum over k of (r (k - t))^k / k! e^(r (t - k))."""
    share = (1 - load) * sum(
        (load * (k - seconds)) ** k / math.factorial(k) * math.exp(load * (seconds - k))
        for k in range(int(seconds) + 1)
    )

    assert wait(1, load, 1.0, share + 0.004) >= seconds - 0.02
    assert wait(1, load, 1.0, share - 0.004) <= seconds + 0.02


@settings(max_examples=15)
@given(st.floats(0.001, 50.0), st.floats(0.01, 100.0), st.floats(1.0, 20.0), st.floats(0.5, 0.999))
def test_one_server_fewer_is_too_few(rate, service, times, share):
    limit = service * times
    needed = servers_needed(rate, service, limit, share)

    assert needed is not None
    assert needed > rate * service
    assert service + wait(needed, rate * service, service, share) <= limit
    if needed > 1:
        assert service + wait(needed - 1, rate * service, service, share) > limit
    assert most_rate(needed, service, limit, share) >= rate * (1 - 1e-6)


def fleet(rate=1.0, slo=10.0, hardware=("h100-sxm",), prices=None, share=0.95, **asked):
    request = Request(model="flux.1-dev", **asked)
    demand = Demand(name="a", request=request, rate_per_s=rate, slo_s=slo, share=share)
    return capacity([demand], hardware, prices)


@pytest.mark.parametrize("change", [{"rate": 3.0}, {"slo": 5.0}, {"share": 0.999}])
def test_more_is_asked_for_with_no_fewer_gpus(change):
    assert fleet(**change).gpus >= fleet().gpus


def test_a_fleet_is_what_it_says():
    (answer,) = fleet(rate=0.7, slo=6.0).answers
    one = answer.fleets[0]

    assert one.gpus == one.replicas * one.estimate.gpus
    assert one.response_s <= 6.0
    assert one.utilisation == pytest.approx(0.7 * one.estimate.latency_s / one.replicas)
    assert one.most_rate_per_s >= 0.7
    assert one.estimate.plan.degree("dp") == 1
    rates = [gpus for _, gpus in curve(one)]
    assert rates == sorted(rates)
    assert one.gpus in rates


def test_a_shorter_time_takes_more_gpus_a_replica():
    """One H100 takes 3.7 s for an image, so that 2 s need a split."""
    assert fleet(slo=20.0).answers[0].fleets[0].estimate.gpus == 1
    assert fleet(slo=2.0).answers[0].fleets[0].estimate.gpus >= 2


def test_prices_decide_where_all_have_one():
    kinds = ("h100-sxm", "b200")
    assert fleet(hardware=kinds).answers[0].fleets[0].estimate.hardware == "b200"
    dear = Prices(currency="EUR", gpu_hour={"h100-sxm": 1.0, "b200": 9.0})

    (answer,) = fleet(hardware=kinds, prices=dear).answers

    assert [one.estimate.hardware for one in answer.fleets] == ["h100-sxm", "b200"]
    best = answer.fleets[0]
    assert best.cost_per_hour == best.gpus
    assert best.cost_per_thousand == pytest.approx(1000 * best.gpus / 3600)


def test_a_demand_that_nothing_meets_says_what_is_missing():
    found = fleet(slo=0.1, hardware=("l40s",))

    assert not found.met
    ((name, why),) = found.answers[0].without
    assert name == "l40s"
    assert "a request, 100 ms are wanted" in why


def test_hardware_without_the_precision_is_said_beside_that_which_has_it():
    (answer,) = fleet(hardware=("a100-sxm-80gb", "h100-sxm"), precision="fp8").answers

    assert [one.estimate.hardware for one in answer.fleets] == ["h100-sxm"]
    assert answer.without[0][0] == "a100-sxm-80gb"
    assert "has no tensor cores for fp8" in answer.without[0][1]


def test_more_than_anyone_has_is_no_fleet():
    ((_, why),) = fleet(rate=1e9).answers[0].without

    assert why.startswith("more than 1,000,000 replicas of")


@pytest.mark.parametrize("asked", [{}, {"engine": "diffusers", "runtime": "torch-eager"}])
def test_what_is_to_be_set_up_can_be_run(asked):
    """TensorRT has no ring, diffusers no branches of guidance on GPUs of their own."""
    request = Request(model="wan2.1-14b", **asked)
    demand = Demand(name="a", request=request, rate_per_s=0.005, slo_s=500.0)

    (one,) = capacity([demand], ["h100-sxm"]).answers[0].fleets

    scenario = resolve(replace(request, gpus=one.estimate.gpus))
    assert refusals(scenario, [one.estimate.plan]) == ()
    assert one.estimate.plan.degree("ring") == 1 or asked


def test_a_language_model_is_served_in_batches():
    request = Request(model="llama-3.1-8b", input_tokens=512, output_tokens=64)
    demand = Demand(name="chat", request=request, rate_per_s=20.0, slo_s=4.0)

    (one,) = capacity([demand], ["h100-sxm"]).answers[0].fleets

    assert one.batch > 1
    assert one.replicas * one.batch >= 20.0 * one.estimate.latency_s


def test_pictures_of_a_batch_are_one_request():
    """They start and end together, so that none joins those under way."""
    request = Request(model="flux.1-schnell", batch=4)
    demand = Demand(name="a", request=request, rate_per_s=1.5, slo_s=3.0)

    (one,) = capacity([demand], ["h100-sxm"]).answers[0].fleets

    plan = str(one.estimate.plan)
    alone = planner.estimate("flux.1-schnell", one.estimate.gpus, plan, batch=4)
    assert one.estimate.latency_s == pytest.approx(alone.latency_s)
    assert one.batch == 1
    assert one.utilisation == pytest.approx(1.5 * alone.latency_s / one.replicas)
    assert one.to_dict()["request"]["batch"] == 4


FOLDER = str(Path(__file__).parents[2] / "examples")
DEMANDS = str(Path(FOLDER) / "demand.toml")
DEMAND = '[[demand]]\nmodel = "flux"\nrate = "6/min"\nslo = "20 s"\n'


def run(capsys, *words):
    code = cli.main(["capacity", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_reads_files(capsys, tmp_path):
    demand, price = tmp_path / "demand.toml", tmp_path / "price.toml"
    demand.write_text(f'{DEMAND}name = "pictures"\n{DEMAND}percentile = 50\n')
    price.write_text('currency = "EUR"\n[gpu_hour]\nh100-sxm = 2.0\n')
    words = ("--demand", str(demand), "--price", str(price))

    code, out, err = run(capsys, *words)
    _, raw, _ = run(capsys, *words, "--format", "json")

    document = json.loads(raw)
    assert (code, err) == (0, "")
    assert "\npictures: flux, 6/min" in out
    assert "\nflux, 6/min" in out
    assert "50 % within 20 s" in out
    assert document["currency"] == "EUR"
    assert document["gpus"] == sum(one["fleets"][0]["gpus"] for one in document["answers"])
    assert document["cost_per_hour"] == 2.0 * document["gpus"]


def test_a_page_has_curves(capsys, tmp_path):
    page = tmp_path / "report.html"
    words = ("--model", "flux", "--rate", "1/s", "--slo", "10s", "--hardware", "h100-sxm,b200")
    code, _, _ = run(capsys, *words, "--format", "html", "--output", str(page))

    written = page.read_text(encoding="utf-8")
    assert code == 0
    assert written.count('class="line"') == 2
    assert ">asked: 1/s<" in written
    assert "<script" not in written


def test_a_profile_beside_a_file_is_for_demands_that_name_none(capsys, tmp_path):
    file = tmp_path / "demand.toml"
    file.write_text(f'{DEMAND}{DEMAND}name = "own"\nprofile = "none"\n')
    named, own = read_demands(file.read_text(), file.name, "h100-sxm")

    assert (named.request.profile, own.request.profile) == ("h100-sxm", "none")
    assert run(capsys, "--demand", str(file), "--profile", "h100-sxm")[0] == 0
    assert run(capsys, "--demand", str(file), "--profile", "/no/such")[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("capacity", "--model", "flux", "--rate", "1/s", "--slo", "10s"),
        ("simulate", "--model", "flux", "--gpus", "2", "--plan", "ulysses2"),
    ],
)
def test_every_format_says_the_same(capsys, words):
    said = {}
    for style in ("table", "markdown", "html"):
        assert cli.main([*words, "--format", style]) == 0
        said[style] = capsys.readouterr().out
    sentences = re.findall(r"<(?:li|p|h1|h2|th|td)(?: [^>]*)?>([^<]+)<", said["html"])

    assert len(sentences) > 20
    for sentence in sentences:
        assert html.unescape(sentence) in said["table"]
        assert html.unescape(sentence) in said["markdown"]


@pytest.mark.parametrize(("model", "talks"), [("wan2.1-14b", True), ("flux.1-dev", False)])
def test_replicas_whose_gpus_talk_say_where_peers_are_assumed_away(capsys, model, talks):
    asked = ("--model", model, "--rate", "1/h", "--slo", "2h", "--hardware", "l40s")
    code, out, _ = run(capsys, *asked)
    assert code == 0
    assert ("l40s: no peer access between GPUs assumed" in out) is talks


def test_exit_code_1_where_no_hardware_will_do(capsys):
    code, out, _ = run(capsys, "--model", "flux", "--rate", "1/s", "--slo", "1ms")

    assert code == 1
    assert out.startswith("not met: flux")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "flux"), "rate: got none, wanted --model, --rate and --slo, or --demand"),
        (("--model", "flux", "--rate", "3", "--slo", "1s"), "rate: got '3', wanted requests over"),
        (("--model", "flux", "--rate", "0/s", "--slo", "1s"), "rate: got '0/s', wanted more"),
        (("--model", "flux", "--rate", "1/s", "--slo", "1"), "slo: got '1', wanted a time such as"),
        (("--model", "flux", "--rate", "1/s", "--slo=-1s"), "slo: got '-1s'"),
        (("--model", "no", "--rate", "1/s", "--slo", "1s"), "no"),
        (("--demand", "/no/such"), "/no/such: No such file or directory; wanted [[demand]]"),
        (("--demand", FOLDER), "examples: not a file but a folder; wanted [[demand]]"),
        (("--demand", DEMANDS, "--price", FOLDER), "a folder; wanted [gpu_hour] with a price"),
        (
            ("--model", "flux", "--rate", "1/s", "--slo=9s", "--hardware=l4,t4", "--price=1"),
            "price: got one number for 2 kinds of GPU, wanted one kind, or a file",
        ),
        (("--model", "flux", "--rate", "1/s", "--slo", "9s", "--price", "-1"), "price: got -1.0"),
        (("--demand", ""), "argument --demand: got '', wanted"),
        (("--model", ""), "argument --model: got '', wanted"),
        (("--model", "flux", "--rate", ""), "argument --rate: got '', wanted"),
        (("--model", "flux", "--rate", "1/s", "--slo", ""), "argument --slo: got '', wanted"),
        (("--demand", DEMANDS, "--batch", "4"), "got --batch 4 beside a file"),
        (("--demand", DEMANDS, "--percentile", "50"), "got --percentile 50.0 beside a file"),
        (("--demand", DEMANDS, "--model", "flux"), "got --model flux beside a file"),
        (("--model", "flux", "--rate", "1/s", "--slo", "9s", "--hardware", "h100-sxm,x9"), "x9"),
        (("--model", "flux", "--rate", "1/s", "--slo", "9s", "--hardware", ","), "hardware: got"),
        (("--model", "flux", "--rate", "1/s", "--slo", "9s", "--percentile", "100"), "percentile"),
        (("--model", "flux", "--rate", "1/s", "--slo", "9s", "--percentile", "nan"), "percentile"),
        (("--model", "llama-3.1-8b", "--rate", "1/s", "--slo", "9s", "--height", "9"), "height"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(capsys, words, said):
    code, out, err = run(capsys, *words)

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"d\.toml: got no \[\[demand\]\]"),
        ("demand = 3", r"d\.toml: got no \[\[demand\]\]"),
        ("a = [", r"d\.toml: no TOML: .*; wanted \[\[demand\]\] with model, rate and slo"),
        (f"percentile = {'9' * 5000}", r"d\.toml: no TOML: .*; wanted"),
        (f"percentile = {'9' * 400}\n{DEMAND}", r"d\.toml, demand 1: percentile: got 999"),
        (
            f"{DEMAND}name = 3\n",
            r"d\.toml, demand 1: name: got 3, wanted a text of one line, 1 to 60",
        ),
        (f"{DEMAND}name = ''\n", r"d\.toml, demand 1: name: got '', wanted a text of one line"),
        (
            f'{DEMAND}name = "a\\nb"\n',
            r"d\.toml, demand 1: name: got 'a.*, wanted a text of one line",
        ),
        (f"{DEMAND}name = '{'a' * 61}'\n", r"d\.toml, demand 1: name: got 'aaa"),
        (
            f"{DEMAND}{DEMAND}",
            r"d\.toml, demand 2: name: got 'flux', which is that of demand 1, wanted",
        ),
        (f"more = 1\n{DEMAND}", r"d\.toml: got 'more'"),
        (f"{DEMAND}gpus = 4\n", r"d\.toml, demand 1: .*gpus"),
        (DEMAND.replace('"6/min"', "6"), r"d\.toml, demand 1: rate: got 6, wanted a text"),
        (f"{DEMAND}height = -1\n", r"d\.toml, demand 1: height: got -1"),
        (f"{DEMAND}percentile = 0\n", r"d\.toml, demand 1: percentile: got 0"),
    ],
)
def test_a_file_of_demands_says_what_is_wrong_and_where(text, said):
    with pytest.raises(InputError, match=said):
        read_demands(text, "d.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got no .gpu_hour."),
        ("[gpu_hour]\nh100-sxm = -2", "h100-sxm: got -2"),
        ("[gpu_hour]\nh100-sxm = true", "h100-sxm: got True"),
        ("[gpu_hour]\nx9 = 2", "x9"),
        (
            "[gpu_hour]\nb200 = 1e300",
            r"b200: got 1e\+300, wanted more than 0 and less than 1,000,000",
        ),
        ("[gpu_hour]\nb200 = 2\nB200 = 3", "p.toml: B200: got two prices for b200, wanted one"),
        (
            "currency = 3\n[gpu_hour]\nb200 = 2",
            "currency: got 3, wanted a text of one line, 1 to 16",
        ),
        ('currency = "a\\nb"\n[gpu_hour]\nb200 = 2', "currency: got .*, wanted a text of one line"),
        ("currency = 'a very long name of money'\n[gpu_hour]\nb200 = 2", "currency: got 'a very"),
        ("source = 3\n[gpu_hour]\nb200 = 2", "source: got 3, wanted a text"),
        (
            "curency = 'EUR'\n[gpu_hour]\nb200 = 2",
            "p.toml: unknown key 'curency': did you mean curr",
        ),
        ("a = [", r"p\.toml: no TOML: .*; wanted \[gpu_hour\] with a price"),
    ],
)
def test_a_file_of_prices_says_what_is_wrong(text, said):
    with pytest.raises(InputError, match=said):
        read_prices(text, "p.toml")


def test_rates_and_times_have_units():
    assert [read_rate(text) for text in ("1/s", "30/min", "72/h", "86400/day")] == [1, 0.5, 0.02, 1]
    times = [read_time("slo", text) for text in ("2s", "2 min", "0.5 h", "20 ms")]
    assert times == [2, 120, 1800, 0.02]
    assert read_share(99.9) == pytest.approx(0.999)
    assert math.isinf(wait(1, 2.0, 1.0, 0.5))


def shown(found):
    """Everything that is written of a fleet, in each of the three ways."""
    parts = [*capacity_shown.parts(found)]
    return [terminal(parts), document(parts), web("Capacity", parts)]


def cells(found):
    """The first fleet's row, by the names of its columns."""
    table = capacity_shown.fleets(found.answers[0], found)
    head, first = table.head, table.rows[0]
    return dict(zip(head, first, strict=True))


def test_a_number_is_the_price_of_the_only_kind(capsys):
    words = ["capacity", "--model", "flux", "--rate", "5/min", "--slo", "60s", "--price", "1.9"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "1 GPU in all, 1.9 an hour" in said
    assert cli.main([*words, "--engine", "xdit"]) == 0
    assert "nobody has run" not in capsys.readouterr().out


def test_kinds_without_a_price_are_said():
    some = Prices(currency="EUR", gpu_hour={"h100-sxm": 1.0}, source="a made-up list")
    none = Prices(currency="EUR", gpu_hour={"l40s": 1.0})

    for page in shown(fleet(hardware=("h100-sxm", "b200"), prices=some)):
        assert page.count("no price for b200: the fewest GPUs come first") == 1
        assert "prices: a made-up list" in page
    for page in shown(fleet(prices=none)):
        assert page.count("no price for h100-sxm: the fewest GPUs come first") == 1
    for page in (*shown(fleet(prices=some)), *shown(fleet())):
        assert "no price" not in page


def test_a_row_has_the_interval_of_a_request_and_how_well_it_is_known():
    found = fleet(rate=5.0, share=0.999999999)
    row, (one,) = cells(found), found.answers[0].fleets

    assert row["service"].startswith(f"{one.estimate.latency_s:.3g} s ± ")
    assert row["99.9999999 % in"] == f"{one.response_s:.3g} s"
    assert row["basis"] == "calibrated"
    assert row["at most"].endswith("/s")
    assert one.to_dict()["service_interval_s"] == one.estimate.to_dict()["latency_interval_s"]
    assert capacity_shown.asked(found.answers[0].demand).endswith("99.9999999 % within 10 s")


def test_many_gpus_and_much_money_have_no_exponents():
    found = fleet(rate=2000.0, prices=Prices(currency="EUR", gpu_hour={"h100-sxm": 900.0}))
    row = cells(found)

    assert row["replicas"] == f"{found.gpus:,}"
    assert row["an hour"] == f"{found.cost_per_hour:,.0f} EUR"
    assert row["busy"] == "> 99 %"
    assert row["at most"].startswith("2,0")
    assert capacity_shown.asked(found.answers[0].demand).startswith("a: flux.1-dev, 2,000/s, ")
    assert all("e+" not in page for page in shown(found))


def test_a_fleet_that_an_interval_would_make_late_is_named():
    alone = fleet(rate=0.001).answers[0].fleets[0].estimate
    tight = fleet(rate=0.001, slo=alone.latency_s + alone.half_width_s / 2)

    for page in shown(tight):
        assert "h100-sxm could miss 3." in page
        assert "of a request" in page
    for page in shown(fleet(slo=60.0)):
        assert "could miss" not in page


def test_rates_keep_one_unit_and_the_one_asked_for_is_marked():
    drawn, _, page = shown(fleet(rate=5.0))

    assert "the axis of rates is logarithmic" in drawn
    (labels,) = [line.split() for line in drawn.splitlines() if line.strip().startswith("0.625/s")]
    assert labels == ["0.625/s", "5/s", "40/s"]
    for label in ("0.625/s", "asked: 5/s", "40/s"):
        assert f">{label}</text>" in page


def test_a_curve_that_ends_early_keeps_its_rates_in_place(monkeypatch):
    """Eight times this rate takes more replicas than are counted."""
    monkeypatch.setattr("planner.fleet.queueing.MOST_SERVERS", 100)
    found = fleet(rate=5.0)
    text, _, page = shown(found)

    assert len(curve(found.answers[0].fleets[0])) < 13
    assert ">0.625/s</text>" in page
    assert ">asked: 5/s</text>" in page
    places = [float(place) for place in re.findall(r'class="seen" cx="([\d.]+)%"', page)]
    assert places[0] == 0
    assert places[6] == pytest.approx(100 * 3 / 5, abs=0.01)
    (labels,) = [line for line in text.splitlines() if line.strip().startswith("0.625/s")]
    assert labels.split() == ["0.625/s", "5/s", "20/s"]
    assert labels.index("5/s", 22) > len(labels) // 2


@pytest.mark.parametrize("priced", [True, False])
def test_kinds_that_are_compared_by_their_number_point_at_prices(priced, capsys):
    prices = ("--price", f"{FOLDER}/prices.toml") if priced else ()
    words = ("--model", "flux", "--rate", "30/min", "--slo", "30s", *prices)
    for hardware in ("h100-sxm,l40s", "h100-sxm"):
        out = run(capsys, *words, "--hardware", hardware)[1]
        assert ("--price FILE tells it" in out) is (not priced and "," in hardware)


def test_what_capacity_finds_by_itself_is_not_asked_for(capsys):
    words = ("--model", "llama-3.1-8b", "--rate", "5/s")
    for option, said in {
        "--concurrency=64": "wanted --rate: how many requests are served at once is found",
        "--gpus=8": "how many GPUs it takes is found (recommend is told)",
        "--plan=tp8": "the best plan is found (estimate is told)",
    }.items():
        assert_refused(
            *run(capsys, *words, option), f"argument {option.partition('=')[0]}: wanted", said
        )
