"""Bytes over links: what leaves GPUs reaches GPUs, and an exchange is a shift by every distance."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.catalogue import all_hardware, find_hardware
from topology.machine import exchange_loads, machine_of, ring_loads, shift_loads, survey_of
from topology.readers import read_topology

CLUSTER = (Path(__file__).parents[2] / "examples" / "cluster.toml").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("loads", [ring_loads, exchange_loads, shift_loads])
def test_what_leaves_gpus_reaches_gpus(name, loads):
    machine, ranks = PLACES[name]
    found = loads(survey_of(machine), list(ranks), 6.0)

    for part in ("GPU", "NIC", "spine", "switch", "root"):
        out = sum(sent for link, sent in found.items() if part in link.a)
        into = sum(sent for link, sent in found.items() if part in link.b)
        assert out == pytest.approx(into), part


@given(
    st.sampled_from(sorted(all_hardware())),
    st.integers(1, 2),
    st.sets(st.integers(0, 7), min_size=2),
    st.sampled_from([ring_loads, exchange_loads, shift_loads]),
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
