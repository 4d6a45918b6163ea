"""The same GPUs over their links: a slower one never prices lower, and what that rests on."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.collectives import OPS, basis, choose, collective_time
from costmodels.collectives.choice import over_pcie
from costmodels.collectives.tables import library
from topology.catalogue import Fabric, find_hardware, pcie_bandwidth

SIZES = 2.0 ** (np.arange(4, 33 * 2) / 2)
SLOTS = {"volta": 3, "turing": 3, "ampere": 4, "ada": 4, "hopper": 5, "blackwell": 5}
BRIDGES = {"volta": 150e9, "turing": 50e9, "ampere": 56.25e9, "hopper": 300e9}  # a GPU


def links(architecture, ranks):
    """One node of GPUs over NVLink, a switch, two sockets, and the host's memory."""
    generation = SLOTS[architecture]
    near = Fabric(
        architecture=architecture,
        ranks=ranks,
        link="pcie",
        bandwidth=pcie_bandwidth(generation),
        pcie_generation=generation,
    )
    across = replace(near, crosses_sockets=True)
    found = {
        "peers": near,
        "across": across,
        "staged": replace(near, peer_to_peer=False),
        "staged across": replace(across, peer_to_peer=False),
    }
    if architecture in BRIDGES:
        found["nvlink"] = replace(near, link="nvlink", bandwidth=BRIDGES[architecture])
    return found


ORDERS = (
    ("nvlink", "peers"),
    ("peers", "across"),
    ("peers", "staged"),
    ("across", "staged across"),
    ("staged", "staged across"),
)


@pytest.mark.parametrize("op", OPS)
def test_a_slower_link_never_prices_lower(op):
    """Blackwell has no GPU with both NVLink and peers over PCIe: each is as measured."""
    for architecture, ranks in product(SLOTS, (2, 3, 4, 8)):
        known = links(architecture, ranks)
        times = {name: collective_time(op, SIZES, fabric) for name, fabric in known.items()}

        for fast, slow in ORDERS:
            if fast in times:
                assert np.all(times[fast] <= times[slow] * (1 + 1e-9)), (fast, slow)


@given(st.sampled_from(sorted(BRIDGES)), st.sampled_from(OPS), st.floats(1.0, 1e10))
def test_the_law_holds_between_the_sizes_that_are_compared(architecture, op, size):
    known = links(architecture, 2)
    times = [collective_time(op, size, known[name]) for name in ("nvlink", "peers", "staged")]

    assert times[0] <= times[1] * 1.02
    assert times[1] <= times[2] * 1.02


def test_small_messages_of_a_bridge_are_the_fastest():
    """Links 0-2 and 1-3 of four RTX A6000: 1 to 64 KiB over NV4 against PCIe and staging."""
    known = links("ampere", 2)
    small = 2.0 ** np.arange(10, 17)
    bridge, peers, staged = (
        collective_time("all_reduce", small, known[name]) for name in ("nvlink", "peers", "staged")
    )

    assert np.all(bridge < peers)
    assert np.all(peers < staged)


def test_a_kernel_is_launched_by_its_gpu_whatever_the_link():
    """Curves of other cards start no earlier than these GPUs' own faster link does."""
    for architecture in ("ampere", "hopper", "turing"):
        for name in ("ring_ll", "ring_simple", "pairwise_ll", "pairwise_simple"):
            known = links(architecture, 2)
            ways = [known[way] for way in ("nvlink", "peers", "staged")]
            found = [library().get(fabric, name) for fabric in ways]
            starts = [(one.curve.launch, one.curve.step) for one in found]
            carried = [one.carried for one in found]
            for i, (before, after) in enumerate(pairwise(starts)):
                if carried[i + 1]:
                    assert after[0] >= before[0]
                    assert after[1] >= before[1]


def test_staged_copies_were_measured_on_turing_and_ada():
    """2 x RTX 2080 Ti, 2 x RTX 4090 and L40S; others are taken to be like them."""
    fabric = find_hardware("rtx-2080-ti").fabric(2)

    assert not fabric.peer_to_peer
    assert basis("all_reduce", 2.0**20, fabric) == Basis.CALIBRATED
    assert basis("all_reduce", 2.0**20, find_hardware("rtx-3090").fabric(2)) == Basis.DATASHEET


@pytest.mark.parametrize(("gigabytes", "table"), [(11.09, "broadcast"), (11.14, "reduce")])
def test_a_staged_broadcast_crosses_each_slot_once(gigabytes, table):
    """2 x RTX 2080 Ti without peers, 1 GiB: 11.1 GB/s (an AutoDL user's public nccl-tests)."""
    time = collective_time(table, 2.0**30, find_hardware("rtx-2080-ti").fabric(2))

    assert 2**30 / time / 1e9 == pytest.approx(gigabytes, rel=0.03)


@pytest.mark.parametrize(
    ("op", "milliseconds"),
    [
        ("all_reduce", 134.33),
        ("all_gather", 79.115),
        ("broadcast", 48.458),
        ("reduce", 48.281),
        ("all_to_all", 58.597),
    ],
)
def test_staged_copies_of_a_pair_share_its_uplink(op, milliseconds):
    """2 x RTX 2080 Ti on one switch without peers, 512 MiB (an AutoDL user's public nccl-tests).

    A broadcast has the uplink for itself each way; in the others both GPUs send.
    """
    pair = find_hardware("rtx-2080-ti").fabric(2).behind_one_uplink()

    assert collective_time(op, 2.0**29, pair) * 1e3 == pytest.approx(milliseconds, rel=0.03)


def test_two_staged_cards_on_one_switch_are_slower_than_on_two_sockets():
    """2 x RTX 4090, 1 GiB: 479 and 281 ms (a public nccl-tests log of one server)."""
    apart = replace(find_hardware("rtx-4090").fabric(2), crosses_sockets=True)
    times = [
        collective_time("all_reduce", 2.0**30, one)
        for one in (find_hardware("rtx-4090").fabric(2).behind_one_uplink(), apart)
    ]

    assert times[0] / times[1] == pytest.approx(479 / 281, rel=0.2)
    assert times == pytest.approx([0.479, 0.281], rel=0.17)


def test_peers_exchange_no_faster_than_root_complexes_let_them():
    """8 x A40 and patched 8 x RTX 4090: all-to-all of peers is no faster than staged copies."""
    node = find_hardware("a40").fabric(8)
    staged = replace(node, peer_to_peer=False, exchange=0.0)
    size = 2.0**28

    peers, host = (collective_time("all_to_all", size, one) for one in (node, staged))
    assert peers >= host
    rings = [collective_time("all_reduce", size, one) for one in (node, staged)]
    assert rings[0] < rings[1] / 4


def test_pcie_beneath_a_bridge_is_that_of_the_slots():
    below = over_pcie(find_hardware("h100-nvl").fabric(2))

    assert (below.link, below.bandwidth, below.multicast) == ("pcie", 63e9, False)


def test_sizes_beyond_the_range_are_extrapolated_up_to_four_times():
    node = find_hardware("h100-sxm").fabric(8)
    largest = library().get(node, "ring_simple").largest

    found = [basis("all_gather", largest * factor, node) for factor in (1, 2, 2.5, 4, 4.5)]
    assert found == [
        Basis.CALIBRATED,
        Basis.CALIBRATED,
        Basis.EXTRAPOLATED,
        Basis.EXTRAPOLATED,
        Basis.ASSUMED,
    ]


def test_a_bound_choice_is_named_after_what_is_used():
    assert choose("all_reduce", 4096.0, links("ampere", 2)["peers"])[0] == "ring"
