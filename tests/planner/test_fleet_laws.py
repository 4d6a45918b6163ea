"""Fleets by what may fail, by growth and by the hours of a day: laws and known answers."""

import json
from dataclasses import replace
from math import ceil, inf

import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.fleet.answers import GROWTH
from planner.fleet.demand import Demand, Prices
from planner.fleet.demand_file import read_demands, read_hours, read_prices
from planner.fleet.fleet import capacity
from planner.fleet.replica_rates import ready
from planner.fleet.spares import nodes_of, spares
from planner.request.request import Request
from topology.base import InputError

pytestmark = pytest.mark.usefixtures("searched_once")

KINDS = ("h100-sxm", "b200")
PRICES = Prices(currency="EUR", gpu_hour={"h100-sxm": 2.0}, node_hour={"b200": 40.0})
SPARES = ("", "replica", "node")
CHAT = Request(model="llama-3.1-8b", engine="vllm", input_tokens=256, output_tokens=64)
DEMAND = Demand(name="a", request=Request(model="flux.1-dev"), rate_per_s=1.0, slo_s=10.0)


def best(prices=None, kinds=("h100-sxm",), **changed):
    (answer,) = capacity([replace(DEMAND, **changed)], kinds, prices).answers
    return answer.fleets[0]


@pytest.mark.parametrize("gpus", [1, 2, 3, 8, 16])
def test_what_stands_by_for_a_node_is_enough_whichever_fails(gpus):
    """Replicas spread over their nodes as evenly as can be, of which the fullest fails."""
    for needed in range(1, 20):
        width, holds = ceil(gpus / 8), max(1, 8 // gpus)
        places = nodes_of(needed, "node", gpus, 8) // width
        replicas = needed + spares(needed, "node", gpus, 8)

        assert replicas <= places * holds, needed
        assert replicas - ceil(replicas / places) >= needed, needed
        assert places == ceil(needed / holds) + 1, needed


DEMANDS = st.builds(
    Demand,
    name=st.just("a"),
    request=st.sampled_from([DEMAND.request] * 4 + [CHAT]),
    rate_per_s=st.floats(0.01, 40.0),
    slo_s=st.floats(2.0, 60.0),
    share=st.floats(0.5, 0.999),
    spare=st.sampled_from(["", "replica", "node"]),
    headroom=st.floats(0.0, 0.8),
)
MORE = {
    "rate_per_s": st.floats(1.0, 8.0).map(lambda times: lambda rate: rate * times),
    "slo_s": st.floats(0.1, 1.0).map(lambda times: lambda slo: slo * times),
    "share": st.floats(0.0, 1.0).map(lambda part: lambda share: share + part * (0.999 - share)),
    "headroom": st.floats(0.0, 1.0).map(lambda part: lambda room: room + part * (0.8 - room)),
    "spare": st.sampled_from([1, 2]).map(
        lambda more: lambda spare: SPARES[min(SPARES.index(spare) + more, 2)]
    ),
}
"""What asks for more, by what a demand says."""


@given(
    DEMANDS,
    st.sampled_from([*MORE]).flatmap(lambda name: st.tuples(st.just(name), MORE[name])),
    st.sampled_from([None, PRICES]),
    st.sampled_from(KINDS),
)
@settings(max_examples=8, deadline=None)
def test_more_that_is_asked_for_never_takes_less(demand, change, prices, kind):
    """Of requests, of them in time, of time, of room and of what may fail."""
    name, rises = change
    more = replace(demand, **{name: rises(getattr(demand, name))})
    few, many = (capacity([one], [kind], prices).answers[0] for one in (demand, more))

    for fleet in many.fleets:
        (same,) = few.fleets
        least, most = (one.gpus if prices is None else one.cost_per_hour for one in (same, fleet))
        assert least <= most


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_what_may_fail_takes_more(rate):
    none, one, node = (best(rate_per_s=rate, spare=spare) for spare in ("", "replica", "node"))

    assert one.replicas == none.replicas + 1
    assert none.gpus < one.gpus <= node.gpus
    assert one.needed == node.needed == none.replicas
    assert none.response_s == one.response_s == node.response_s
    assert one.utilisation < none.utilisation


def test_growth_is_what_a_fleet_of_that_rate_takes():
    one = best(spare="replica", headroom=0.2)

    assert tuple(one.growth) == GROWTH
    for times, scaled in one.growth.items():
        assert scaled.gpus == best(spare="replica", headroom=0.2, rate_per_s=times).gpus
    assert one.growth[1.0].gpus == one.gpus
    assert replace(one.demand, growth_per_month=1.0).months_to(4.0) == pytest.approx(2.0)


def test_the_busiest_hour_rules_and_the_day_is_paid():
    hours = (0.0, *(0.5,) * 22, 1.0)
    flat, day = best(PRICES), best(PRICES, hours_per_s=hours)
    by_hour = day.hours

    assert day.gpus == flat.gpus == by_hour[-1].gpus
    assert by_hour[0].replicas == 1
    assert by_hour[1] == day.growth[0.5]
    assert day.busy(0.5) == pytest.approx(day.utilisation / 2)
    assert day.cost_per_thousand == pytest.approx(flat.cost_per_thousand * 24 / 12)


@pytest.mark.parametrize("rate", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("spare", ["", "node"])
def test_one_replica_fewer_is_late_and_percentiles_rise(rate, spare):
    one = best(rate_per_s=rate, spare=spare, slo_s=8.0)
    smaller, seen = one.smaller, one.percentiles_s

    assert smaller.gpus == one.needed * one.estimate.gpus - 1
    assert smaller.response_s > 8.0 or smaller.most_rate_per_s < rate
    assert one.estimate.latency_s <= seen["p50"] <= seen["p95"] == one.response_s <= seen["p99"]


def test_where_one_replica_will_do_it_is_said_why_not_of_fewer_gpus():
    one = best(rate_per_s=0.001, slo_s=2.0)

    assert (one.needed, one.estimate.gpus > 1) == (1, True)
    assert "a request, 2 s are wanted" in one.smaller.reason


def test_a_cheap_kind_gives_way_to_one_that_takes_fewer_gpus():
    """One h100 at 2 an hour is cheaper than a node of 11; where six are needed a node is."""
    prices = replace(PRICES, node_hour={"b200": 11.0})

    def answer(rate):
        return capacity([replace(DEMAND, rate_per_s=rate)], KINDS, prices).answers[0]

    ((rate, kind),) = answer(0.7).break_even
    below, above = answer(0.97 * rate).fleets, answer(1.03 * rate).fleets

    assert kind == above[0].estimate.hardware == "b200"
    assert below[0].estimate.hardware == "h100-sxm"
    assert below[0].gpus < 6 <= above[1].gpus


def test_a_language_model_has_a_price_of_its_tokens():
    demand = Demand(name="a", request=CHAT, rate_per_s=100.0, slo_s=5.0, spare="replica")
    (one,) = capacity([demand], ["h100-sxm"], PRICES).answers[0].fleets

    per_token = one.cost_per_hour / 3600 / (100.0 * 64)
    assert one.cost_per_million_tokens == pytest.approx(1e6 * per_token, rel=0.05)
    assert one.smaller.most_rate_per_s < 100.0
    assert one.memory_bytes > one.estimate.memory_bytes
    assert one.memory_free_bytes > 0


def test_power_is_that_of_all_gpus_and_memory_adds_up():
    """An H100 draws 700 W and has 80 GB; a request a second takes a thousand seconds of it."""
    one = best(spare="node")

    assert one.power_w == 700.0 * one.gpus
    assert one.energy_per_thousand_kwh == pytest.approx(one.power_w / 3600)
    assert 0 < one.memory_free_bytes < 85e9
    assert one.memory_bytes == one.estimate.memory_bytes


def test_nodes_are_paid_whole():
    one = best(PRICES, ("b200",), rate_per_s=5.0)

    assert one.gpus % 8
    assert one.cost_per_hour == 40.0 * ceil(one.gpus / 8)


def test_a_file_says_of_each_demand_what_may_fail_and_when_requests_come(tmp_path):
    counts = [0] * 12 + [3600] * 12
    (tmp_path / "day.csv").write_text("hour,requests\n" + "\n".join(f"x,{n}" for n in counts))
    text = f"""
[[demand]]
model = "flux"
hours = "{tmp_path / "day.csv"}"
slo = "10 s"
spare = "node"
headroom = 0.25
growth_per_month = 0.1
"""
    (file := tmp_path / "d.toml").write_text(text)
    code, table, _ = run("capacity", "--demand", str(file))
    _, raw, _ = run("capacity", "--demand", str(file), "--format", "json")
    (answer,) = json.loads(raw)["answers"]
    asked = {"spare": "node", "headroom": 0.25, "growth_per_month": 0.1, "hours": counts}
    found = planner.capacity(model="flux", slo="10 s", **asked)

    assert code == 0
    assert found.to_dict()["answers"] == [answer]
    assert answer["demand"]["rate_per_s"] == 1.0
    assert len(answer["hours"]) == 24
    assert answer["fleets"][0]["spare_replicas"] > 0
    assert [one["times"] for one in answer["fleets"][0]["growth"]] == [*GROWTH]
    for said in (
        "a node to spare, 25 % headroom",
        "single, 6 to spare, on",
        "x4: 4/s",
        "month",
        "would do",
        "Load by the hour; a full bar is ",
    ):
        assert said in table


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('rate = "1/s"\nspare = "nodes"', "spare: got 'nodes', wanted 'replica' or 'node'"),
        ('rate = "1/s"\nheadroom = 1', "headroom: got 1, wanted more than 0 and less than 1"),
        ('rate = "1/s"\nheadroom = "20 %"', "headroom: got '20 %'"),
        ('rate = "1/s"\ngrowth_per_month = -0.1', "growth_per_month: got -0.1, wanted more"),
        (f'rate = "1/s"\nhours = {[1] * 24}', "rate: got one beside hours, wanted a rate"),
        ("", "rate: got none, wanted a rate"),
        ("hours = [1, 2, 3]", "hours: got 3 hours, wanted requests of 24 hours"),
        ("hours = 3", "hours: got 3, wanted requests of 24 hours"),
        (f"hours = {[0] * 24}", "hours: got no requests, wanted some"),
        (f"hours = {[-1, *[1] * 23]}", "hours: got -1 in hour 1, wanted requests, from 0"),
        (f"hours = [nan, {str([1] * 23)[1:]}", "hours: got nan in hour 1"),
        (f"hours = {[1e-320] * 24}", "hours: got no requests, wanted some"),
        ('hours = "/no/such.csv"', "hours: got '/no/such.csv', No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(line, said):
    with pytest.raises(InputError, match=r"d\.toml, demand 1: ") as caught:
        read_demands(f'[[demand]]\nmodel = "flux"\nslo = "9 s"\n{line}\n', "d.toml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_hours_and_prices_say_what_they_lack(tmp_path):
    (file := tmp_path / "day.csv").write_text("hour,count\n0,1\n")
    with pytest.raises(InputError, match="got no column requests, wanted one"):
        read_hours(str(file))
    both = "[gpu_hour]\nb200 = 1\n[node_hour]\nb200 = 8\n"
    with pytest.raises(InputError, match="b200: got a price of a GPU and one of a node"):
        read_prices(both, "p.toml")
    with pytest.raises(InputError, match="node_hour: got 3, wanted prices by kind"):
        read_prices("node_hour = 3", "p.toml")


def test_of_a_fleet_of_larger_replicas_the_smaller_one_may_have_others():
    """Two GPUs that share requests serve what one does not."""
    request = Request(model="llama-3.1-70b", precision="fp8", engine="vllm", output_tokens=128)
    demand = Demand(name="a", request=replace(request, slo_tpot=0.05), rate_per_s=5.0)
    (one,) = capacity([demand], ["b200"]).answers[0].fleets
    smaller = one.smaller

    assert (str(one.estimate.plan), one.needed) == ("tp2", 1)
    assert (smaller.plan, smaller.gpus) == ("single", 1)
    assert 0 < smaller.most_rate_per_s < 5.0


def test_what_a_replica_is_asked_is_in_the_data_with_the_usual_sizes():
    """Asked again in full, an estimate takes as long."""
    found = best().to_dict()
    asked = {**found["request"], "plan": found["plan"]}

    assert found["request"]["height"] == 1024
    assert planner.estimate(**asked).latency_s == found["service_s"]


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_percentiles_are_those_of_other_draws_of_many_requests(load, monkeypatch):
    """Of a replica at half of what it takes in time, and at nine tenths."""
    demand = replace(DEMAND, request=CHAT, slo_s=1.0, rate_per_s=1.0)
    most = capacity([demand], ["h100-sxm"]).answers[0].fleets[0].most_rate_per_s
    demand = replace(demand, rate_per_s=load * most)
    (one,) = capacity([demand], ["h100-sxm"]).answers[0].fleets
    replica = ready(demand, one.estimate)
    monkeypatch.setattr("planner.request.lengths.SEED", 99)
    other, _ = replica.engines.within(demand.rate_per_s, 1.0, inf, 24_000)

    assert one.needed == 1
    for name, seconds in one.percentiles_s.items():
        assert seconds == pytest.approx(other.request.at(float(name[1:]) / 100), rel=0.05)
