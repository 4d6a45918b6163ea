"""Inner axes sit on neighbouring ranks, so that they get the fast links."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.request.plan import Plan
from planner.strategies import parse_plan, strategies
from topology.base import TopologyError
from topology.catalogue import find_hardware

H100 = find_hardware("h100-sxm")


@pytest.mark.parametrize(
    ("plan", "nodes"),
    [
        ("tp8", {"tp": 1}),
        ("cfg2.ulysses4", {"cfg": 1, "ulysses": 1}),
        ("cfg2.ulysses8", {"cfg": 2, "ulysses": 1}),
        ("ring2.ulysses2.tp4", {"ring": 2, "ulysses": 1, "tp": 1}),
        ("ulysses16", {"ulysses": 2}),
        ("ring4.tp8", {"ring": 4, "tp": 1}),
        ("tp8.ring4", {"tp": 4, "ring": 1}),  # eight ranks, four apart: two on every host
        ("single", {}),
    ],
)
def test_on_eight_gpus_a_host(plan, nodes):
    found = parse_plan(plan).fabrics(H100)

    assert {name: fabric.nodes for name, fabric in found.items()} == nodes


def test_a_job_may_be_spread_thinner():
    """Eight GPUs over two hosts leave four neighbours on each."""
    found = parse_plan("ring2.ulysses4").fabrics(H100, nodes=2)

    assert {name: fabric.nodes for name, fabric in found.items()} == {"ring": 2, "ulysses": 1}
    assert parse_plan("ulysses8").fabrics(H100, nodes=2)["ulysses"].nodes == 2


def test_a_rack_of_nvlink_is_one_node():
    assert parse_plan("ulysses8.tp8").fabrics(find_hardware("gb200"))["ulysses"].nodes == 1


@pytest.mark.parametrize(("ranks", "hosts", "joined"), [(16, 4, 16), (16, 8, 16), (72, 18, 72)])
def test_hosts_of_one_rack_that_are_counted_are_joined_by_nvlink(ranks, hosts, joined):
    rack = find_hardware("gb200")

    assert rack.island(ranks, hosts) == rack.island(ranks) == joined
    assert rack.fabric(ranks, hosts).network is None


def test_hosts_of_two_racks_are_joined_by_a_network_between_racks():
    rack = find_hardware("gb200")

    assert rack.island(128, 32) == rack.island(128) == 64
    with pytest.raises(TopologyError, match="got 5 a node, wanted a whole number up to 4"):
        rack.island(20, 4)


def test_bridged_pairs_leave_their_link_between_pairs():
    """H100 NVL has NVLink between two neighbours; between pairs there is PCIe."""
    found = parse_plan("ulysses4.tp2").fabrics(find_hardware("h100-nvl"))

    assert found["tp"].link == "nvlink"
    assert found["ulysses"].link == "pcie"
    assert found["tp"].bandwidth > found["ulysses"].bandwidth


def test_groups_beside_each_other_share_the_network():
    """Of ring4 over four hosts, eight groups run at once: each has an eighth of the NICs."""
    found = parse_plan("ring4.tp8").fabrics(H100)["ring"].network
    whole = H100.nic_bandwidth.value * H100.nics

    assert found.bandwidth == pytest.approx(whole / 8)


@pytest.mark.parametrize(("plan", "nodes"), [("tp8", 3), ("tp6", 4), ("tp16", 1)])
def test_what_does_not_fit_the_hosts_is_refused(plan, nodes):
    with pytest.raises(TopologyError, match="a node, wanted a whole number up to 8"):
        parse_plan(plan).fabrics(H100, nodes=nodes)


@st.composite
def plans_of_powers(draw):
    names = draw(st.lists(st.sampled_from(list(strategies())), unique=True, min_size=1, max_size=3))
    return Plan(tuple((name, 2 ** draw(st.integers(1, 3))) for name in names))


@given(plan=plans_of_powers(), name=st.sampled_from(["h100-sxm", "l40s", "gb200", "h100-nvl"]))
def test_every_axis_has_all_its_ranks(plan, name):
    found = plan.fabrics(find_hardware(name))

    assert {axis: fabric.ranks for axis, fabric in found.items()} == dict(plan.axes)
    assert all(fabric.ranks % fabric.nodes == 0 for fabric in found.values())
    assert all((fabric.network is None) == (fabric.nodes == 1) for fabric in found.values())
    assert math.prod(fabric.ranks for fabric in found.values()) == plan.gpus
