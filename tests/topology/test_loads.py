"""Bytes over links: what leaves GPUs reaches GPUs, and an exchange is a shift by every distance."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.catalogue import Moves, all_hardware, find_hardware
from topology.machine import machine_of, survey_of
from topology.machine.loads import (
    doubling_loads,
    exchange_loads,
    loads_of,
    ring_loads,
    shift_loads,
    stage_loads,
    switch_loads,
    tree_loads,
    two_trees,
)
from topology.readers import read_topology

CLUSTER = (Path(__file__).parents[2] / "examples" / "cluster.toml").read_text(encoding="utf-8")
ROUTES = [ring_loads, tree_loads, doubling_loads, exchange_loads, shift_loads]
PLACES = {
    "a node of NVSwitch": (machine_of(find_hardware("h100-sxm")), range(8)),
    "some GPUs of two nodes": (machine_of(find_hardware("a100-sxm-40gb"), 2), [1, 2, 9, 10]),
    "a cube of NVLinks": (machine_of(find_hardware("v100-sxm")), range(8)),
    "bridged pairs": (machine_of(find_hardware("h100-nvl")), [0, 1, 2, 5]),
    "cards without peers": (machine_of(find_hardware("l40s")), [0, 1, 4, 7]),
    "an NVLink domain": (machine_of(find_hardware("gb200"), 3), range(12)),
    "leaf switches": (read_topology(CLUSTER), range(0, 128, 16)),
    "unequal nodes": (machine_of(find_hardware("h100-sxm"), 2), [0, 1, 8]),
}


@pytest.mark.parametrize("loads", ROUTES)
def test_what_leaves_gpus_reaches_gpus(loads):
    for name, (machine, ranks) in PLACES.items():
        found = loads(survey_of(machine), list(ranks), 6.0)

        for part in ("GPU", "NIC", "spine", "switch", "root"):
            out = sum(sent for link, sent in found.items() if part in link.a)
            into = sum(sent for link, sent in found.items() if part in link.b)
            assert out == pytest.approx(into), (name, part)


@given(
    st.sampled_from(sorted(all_hardware())),
    st.integers(1, 2),
    st.sets(st.integers(0, 7), min_size=2),
    st.sampled_from(ROUTES),
)
def test_every_part_passes_on_what_it_takes_in(hardware, nodes, seats, loads):
    """Switches, roots and NICs keep nothing, and a GPU has as much at the end as it sent."""
    machine = machine_of(find_hardware(hardware), nodes)
    ranks = sorted(seat % machine.gpu_count for seat in seats)
    left = Counter()
    for link, sent in loads(survey_of(machine), list(dict.fromkeys(ranks)), 6.0).items():
        if link.b != "memory":
            left[link.a] -= sent
            left[link.b] += sent

    assert {part: more for part, more in left.items() if abs(more) > 1e-9} == {}


@pytest.mark.parametrize("name", PLACES)
def test_an_exchange_is_a_shift_by_every_distance(name):
    machine, ranks = PLACES[name]
    survey, ranks = survey_of(machine), list(ranks)
    shifts = Counter()
    for offset in range(1, len(ranks)):
        shifts.update(shift_loads(survey, ranks, 6.0 / (len(ranks) - 1), offset))

    assert dict(exchange_loads(survey, ranks, 6.0)) == pytest.approx(dict(shifts))


def test_every_gpu_of_a_ring_sends_its_part_once():
    found = ring_loads(survey_of(machine_of(find_hardware("h100-sxm"))), range(8), 6.0)

    assert sorted(found.values()) == [6.0] * 16


def test_a_host_sends_one_ring_over_all_of_its_nics():
    found = ring_loads(survey_of(machine_of(find_hardware("h100-sxm"), 4)), range(32), 8.0)
    nics = {link: part for link, part in found.items() if "host2/NIC" in f"{link.a} {link.b}"}
    away = [part for link, part in nics.items() if link.b == "network"]
    up = [part for link, part in nics.items() if "switch" in link.a]

    assert away == up == [1.0] * 8


def test_a_shift_with_ends_leaves_the_last_rank_out():
    survey = survey_of(machine_of(find_hardware("h100-sxm")))
    around, open_ended = (shift_loads(survey, range(4), 1.0, ends=ends) for ends in (False, True))

    assert sum(around.values()) - sum(open_ended.values()) == 2.0


def out_of(loads, part):
    """Bytes that leave a part of a machine, and that reach it."""
    out = sum(sent for link, sent in loads.items() if link.a == part)
    return out, sum(sent for link, sent in loads.items() if link.b == part)


def test_a_tree_over_four_hosts_is_two_trees_of_half():
    """By hand, 8 bytes, a GPU a host: 1 and 3 hang on 2, 2 on 0; mirrored 2 and 0 on 1, 1 on 3."""
    survey = survey_of(machine_of(find_hardware("h100-sxm"), 4))
    loads = tree_loads(survey, [0, 8, 16, 24], 8.0)

    sent = {link.a: load for link, load in loads.items() if link.b == "network"}
    assert sent == {"host0/NIC0": 8.0, "host1/NIC0": 16.0, "host2/NIC0": 16.0, "host3/NIC0": 8.0}
    assert out_of(loads, "network") == (48.0, 48.0)


def test_a_host_of_a_tree_is_a_chain_whose_ends_are_spread():
    """By hand: seven of eight edges carry 8 bytes up and 8 down; two hosts send each other all."""
    survey = survey_of(machine_of(find_hardware("h100-sxm"), 2))
    loads = tree_loads(survey, range(16), 8.0)

    assert out_of(loads, "host0/GPU3") == (14.0 + 1.0, 14.0 + 1.0)
    assert out_of(loads, "host1/NIC5") == (1.0 + 1.0, 1.0 + 1.0)
    assert out_of(loads, "network") == (16.0, 16.0)


def test_two_trees_reach_all_hosts_and_no_host_is_busy_in_both():
    for hosts in range(1, 40):
        inner = []
        for tree in two_trees(hosts):
            above = dict(tree)
            assert len(above) == len(tree) == hosts - 1, hosts
            roots = {host for host in range(hosts) if host not in above}
            assert len(roots) == 1, hosts
            for host in range(hosts):
                met = [host]
                while met[-1] in above:
                    assert above[met[-1]] not in met, hosts
                    met.append(above[met[-1]])
                assert met[-1] in roots, hosts
            assert max(Counter(above.values()).values(), default=0) <= 2, hosts
            inner.append({host for host, count in Counter(above.values()).items() if count == 2})

        assert not set.intersection(*inner), hosts


def test_a_switch_adds_and_replicates():
    survey = survey_of(machine_of(find_hardware("h100-sxm"), 2))
    gathered = switch_loads(survey, range(8), 1.0, 7.0)
    added = tree_loads(survey, range(16), 8.0, switched=True)

    assert out_of(gathered, "NVLink") == (56.0, 8.0)
    assert out_of(added, "NVLink") == (128.0, 128.0)
    assert out_of(added, "host0/NIC2") == (1.0 + 1.0, 1.0 + 1.0)


def test_stages_send_once_to_a_host_and_on_from_there():
    """By hand: 4 bytes to the other host on the NIC beside a GPU, 14 to the seven beside it."""
    survey = survey_of(machine_of(find_hardware("h100-sxm"), 2))
    loads = stage_loads(survey, range(16), 14.0, 4.0)

    assert out_of(loads, "host0/GPU0") == (18.0, 18.0)
    assert out_of(loads, "network") == (64.0, 64.0)


@pytest.mark.parametrize("inward", [True, False])
def test_what_has_a_root_leaves_or_reaches_that_alone(inward):
    """Three others get a third each; a ring of four has three edges then."""
    survey = survey_of(machine_of(find_hardware("h100-sxm")))
    exchanged, around = (
        loads_of(survey, range(4), Moves(route=route, sent=3.0, root=2, inward=inward))
        for route in ("exchange", "ring")
    )
    towards = slice(None, None, -1 if inward else 1)

    assert out_of(exchanged, "GPU2")[towards] == (3.0, 0.0)
    assert out_of(exchanged, "GPU0")[towards] == (0.0, 1.0)
    assert out_of(around, "GPU2")[towards] == (3.0, 0.0)
    assert out_of(around, "NVLink") == (9.0, 9.0)


@given(st.integers(2, 9), st.integers(1, 8))
def test_trees_from_every_rank_bring_each_all_others(hosts, sent):
    survey = survey_of(machine_of(find_hardware("h100-sxm"), hosts))
    loads = doubling_loads(survey, range(0, 8 * hosts, 8), float(sent))

    for host in range(hosts):
        assert out_of(loads, f"host{host}/NIC0") == pytest.approx((2 * sent, 2 * sent))
    assert out_of(loads, "network") == pytest.approx((hosts * sent, hosts * sent))
