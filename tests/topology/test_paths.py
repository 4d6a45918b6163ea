"""Path types, peer access and ways come out as NCCL and the law of the smallest cut have them."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random

import networkx as nx
import pytest
import testpastes as pastes
from growth import calls
from machinetexts import matrix

from topology.base.page import web
from topology.catalogue import Siblings, all_hardware, find_hardware, link_rates
from topology.drawing import parts
from topology.machine import concerns, fabric, machine_of, survey_of
from topology.machine.paths import (
    PathType,
    gpudirect,
    nccl_bandwidth,
    nccl_peers,
    path_types,
    refused_pairs,
    socket_rate,
)
from topology.machine.rings import best_ring
from topology.machine.routes import (
    NVLINK,
    SYSTEM,
    adjacency,
    host_route,
    host_routes,
    routes,
)
from topology.readers import read_topology

NCCL = link_rates().nccl
over_pcie = replace(SYSTEM, edges=SYSTEM.edges - {"c2c"})


def test_nccl_totals_are_its_own():
    # NCCL 2.30 topo.h: 12 x 20, 18 x 20.6, 18 x 40.1 GB/s
    totals = {"a100-sxm-80gb": 240e9, "h100-sxm": 370.8e9, "b200": 721.8e9}
    for name, wanted in totals.items():
        speeds = nccl_bandwidth(machine_of(find_hardware(name)), NCCL)

        assert speeds["GPU0", "GPU7"] == pytest.approx(wanted)


def test_nccl_rates_pcie_by_generation():
    # NCCL 2.30 topo.h: x16 of Gen3, Gen4, Gen5 = 12, 24, 48 GB/s
    assert [NCCL.pcie_rate(generation, 16) for generation in (3, 4, 5)] == [12e9, 24e9, 48e9]
    assert NCCL.pcie_rate(4, 8) == 12e9
    assert NCCL.pcie_rate(0, 16) == 12e9  # unknown counts as Gen3


@pytest.mark.parametrize(
    ("chip", "wanted"),
    [
        ("AuthenticAMD 175 1", 16e9),
        ("GenuineIntel 6 85", 10e9),
        ("GenuineIntel 6 143", 22e9),
        ("GenuineIntel 6 207", 40e9),
        ("arm", 6e9),
        ("", 10e9),
    ],
)
def test_nccl_rates_sockets_by_processor(chip, wanted):
    assert socket_rate(NCCL, chip) == wanted


def test_the_cube_mesh_reaches_far_gpus_over_a_peer():
    machine = read_topology(pastes.cube_mesh())
    types = path_types(machine)

    assert types["GPU0", "GPU4"] == PathType.NVL
    assert types["GPU0", "GPU5"] == PathType.NVB
    # GPU0-GPU4 has two links of 20 GB/s, GPU4-GPU5 one; GPU0-GPU1 one, GPU1-GPU5 two
    assert nccl_bandwidth(machine, NCCL)["GPU0", "GPU5"] == 20e9


def test_node_is_phb_to_nccl():
    types = path_types(read_topology(pastes.NO_LEADING_TAB))

    assert types["GPU0", "GPU1"] == PathType.PIX
    assert types["GPU0", "GPU2"] == PathType.PHB
    assert types["GPU1", "GPU1"] == PathType.LOC


def test_nics_behind_a_peer_are_pxn():
    types = path_types(read_topology(pastes.EMPTY_AFFINITY))

    assert types["GPU0", "NIC0"] == PathType.PXB
    assert types["GPU1", "NIC0"] == PathType.PXN


def test_a_nic_nearby_is_not_reached_through_a_peer():
    types = path_types(read_topology("GPU0 GPU1 NIC0\nGPU0 X NV12 PIX\nGPU1 NV12 X PXB\n"))

    assert types["GPU0", "NIC0"] == PathType.PIX
    assert types["GPU1", "NIC0"] == PathType.PXB


def test_consumer_cards_beyond_the_catalogue_have_no_peer_access():
    names = "GPU 0: NVIDIA GeForce RTX 3080\nGPU 1: NVIDIA GeForce RTX 3080\n"
    machine = read_topology(names + pastes.square("PIX", 2))

    assert [pair[:2] for pair in refused_pairs(machine)] == [("GPU0", "GPU1")]


def test_peer_access_ends_where_the_driver_says():
    bridged = read_topology(pastes.PAIRS, hardware=find_hardware("rtx-3090"))

    told = read_topology(pastes.PEERS_ONLY)
    over_host = {pair[:2] for pair in refused_pairs(bridged)}
    refused = {pair[:2] for pair in refused_pairs(told)}

    assert ("GPU0", "GPU2") not in over_host  # NVLink
    assert ("GPU0", "GPU1") in over_host
    assert ("GPU0", "GPU1") not in refused
    assert ("GPU0", "GPU2") in refused


def test_nccl_stages_beyond_its_level():
    machine = read_topology(pastes.NO_LEADING_TAB)

    assert nccl_peers(machine)["GPU0", "GPU1"].allowed
    assert nccl_peers(machine)["GPU0", "GPU2"].reason == "PHB is beyond level PXB"


@pytest.mark.parametrize("count", [2, 3])
def test_two_gpus_on_amd_may_always_talk(count):
    gpus = [pastes.pci_xml(f"0{i}", "gpu", pastes.gpu_xml(i, 80)) for i in range(count)]
    cpus = [pastes.cpu_xml(i, gpu, vendor="AuthenticAMD") for i, gpu in enumerate(gpus)]
    peers = nccl_peers(read_topology(pastes.topology_xml(*cpus)))

    assert peers["GPU0", "GPU1"].allowed == (count == 2)


def test_gpudirect_needs_a_shared_switch():
    machine = read_topology(pastes.switched_xml())
    direct = gpudirect(machine)

    assert direct["GPU0", "NIC0"].allowed
    assert not direct["GPU0", "NIC1"].allowed
    types = path_types(machine)
    nearest = min(types["GPU3", nic.name] for nic in machine.nics)
    assert [nic.name for nic in machine.nics if types["GPU3", nic.name] == nearest] == ["NIC3"]


def test_worries_are_named():
    lines = "\n".join(concerns(read_topology(pastes.ALL_SYS, hardware=find_hardware("rtx-4090"))))

    assert "no peer access for 6 of 6 GPU pairs" in lines
    assert "6 of 6 GPU pairs meet only across processors (SYS): GPU0, GPU1 | GPU2, GPU3" in lines
    assert "1 of 1 NICs share no switch with a GPU" in lines
    assert "NVLink joins only GPU0, GPU2 | GPU1, GPU3" in "\n".join(
        read_topology(pastes.PAIRS).warnings
    )
    assert not concerns(machine_of(find_hardware("h100-sxm")))


# Ways


def test_a_way_is_as_wide_as_the_smallest_cut_of_a_tree():
    """Over PCIe there is one way, so that its narrowest link is the smallest cut."""
    for name in all_hardware():
        machine = machine_of(find_hardware(name))
        graph = adjacency(machine)
        tree = nx.Graph()
        for edge in machine.edges:
            if edge.kind in ("pcie", "host", "socket"):
                tree.add_edge(edge.a, edge.b, bandwidth=edge.bandwidth.value)
        for peer in range(1, len(machine.gpus)):
            path = routes(graph, "GPU0", over_pcie)[f"GPU{peer}"]
            cut = nx.minimum_cut_value(tree, "GPU0", f"GPU{peer}", "bandwidth")

            assert graph.bandwidth(path) == cut, name


def test_routes_are_widest_then_shortest():
    graph = adjacency(read_topology(pastes.cube_mesh()))
    over_nvlink = routes(graph, "GPU0", NVLINK)

    assert over_nvlink["GPU3"] == ("GPU0", "GPU3")
    assert "GPU5" not in over_nvlink
    assert all(graph.edge(a, b) for a, b in pairwise(host_route(graph, "GPU0", "GPU5")))


def test_ways_from_one_gpu_are_those_to_each_of_the_others():
    machine = read_topology(pastes.PAIRS)
    graph = adjacency(machine)
    names = [gpu.name for gpu in machine.gpus]
    for start in names:
        ways = host_routes(graph, start, names)

        assert {end: ways[end] for end in names} == {
            end: host_route(graph, start, end) for end in names
        }


def test_a_host_of_many_gpus_is_drawn_as_its_pairs_grow():
    """GPUs in nested switches over four sockets: paths are looked for once a GPU, not once a pair.

    Four times the GPUs have 16 times the pairs to read; a path for each pair would take 64 times as
    many calls.
    """
    kinds = {4: "PIX", 16: "PXB", 64: "NODE", 256: "SYS"}

    def draw(gpus):
        text = matrix(gpus, lambda a, b: next(k for n, k in kinds.items() if a // n == b // n))
        return web("", parts(read_topology(text, hardware=find_hardware("rtx-4090"))))

    pages = []
    large = calls(lambda gpus: pages.append(draw(gpus)), 66)

    assert "and 60 more" in pages[0]
    assert large < 32 * calls(draw, 16)


# What people measured: who wins, and roughly by how much


def test_without_peer_access_two_gpus_share_their_uplink_twice():
    """Two 4090s under one switch are about half as fast as on ports of their own (nccl 1309)."""
    kind = find_hardware("rtx-4090")
    under_one = fabric(read_topology(pastes.square("PIX", 2), hardware=kind), [0, 1])
    apart = fabric(read_topology(pastes.square("SYS", 2), hardware=kind), [0, 1])

    assert under_one.bandwidth == apart.bandwidth / 2
    assert (under_one.chain, apart.chain) == (apart.bandwidth, 0)  # a broadcast has it for itself
    assert apart.crosses_sockets
    assert not under_one.crosses_sockets


def test_with_peer_access_the_switch_is_as_fast():
    kind = find_hardware("rtx-pro-6000")
    machine = read_topology(pastes.square("PIX", 2), hardware=kind)

    assert fabric(machine, [0, 1]).bandwidth == 63e9


def test_the_ring_goes_through_the_bridges():
    machine = read_topology(pastes.PAIRS)
    ring = best_ring(survey_of(machine), ["GPU0", "GPU1", "GPU2", "GPU3"])

    assert [set(ring.order[:2]), set(ring.order[2:])] == [{"GPU0", "GPU2"}, {"GPU1", "GPU3"}]
    assert ring.rate == 31.5e9  # two steps over PCIe, each alone on its ports


@pytest.mark.parametrize("name", ["h100-nvl", "rtx-pro-6000", "l40s", "v100-sxm", "t4"])
def test_the_order_of_names_does_not_change_the_best_ring(name):
    machine = machine_of(find_hardware(name))
    names = [f"GPU{i}" for i in (3, 0, 5, 1, 6, 2)]

    assert (
        best_ring(survey_of(machine), names).rate
        == best_ring(survey_of(machine), sorted(names)).rate
    )


def test_groups_that_run_at_once_share_uplinks():
    machine = machine_of(find_hardware("rtx-pro-6000"))  # two GPUs to a switch
    alone, beside = fabric(machine, [0, 2]), fabric(machine, [0, 2], beside=[[1, 3]])

    assert alone.siblings is None
    assert beside.siblings is not None
    assert beside.siblings.passed == beside.siblings.exchanged == alone.bandwidth / 2
    assert fabric(machine, [0, 1], beside=[[2, 3]]).siblings is None


def test_copies_of_groups_at_once_share_the_memory_of_their_processor():
    machine = machine_of(find_hardware("l40s"))  # four GPUs to each of two processors
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    half = fabric(machine, range(4), beside=[range(4, 8)])

    assert fabric(machine, pairs[0], beside=pairs[1:]).siblings == Siblings(
        passed=inf, exchanged=inf, staging=4
    )
    assert half.siblings == Siblings(passed=inf, exchanged=inf, staging=4)
    assert fabric(machine, range(8)).siblings is None


def test_groups_that_run_at_once_share_nics():
    machine = machine_of(find_hardware("h100-sxm"), 2)
    others = [[rank, rank + 8] for rank in range(1, 8)]
    shared = fabric(machine, [0, 8], beside=others).network

    assert shared == find_hardware("h100-sxm").group(2, stride=8, island=8).network


def test_half_a_board_is_still_switched():
    machine = read_topology(pastes.square("NV18", 5), hardware=find_hardware("h200-sxm"))

    assert fabric(machine, range(4)).link == "nvswitch"
    assert fabric(machine, range(5)).multicast


def test_the_weakest_gpu_sets_the_pace_of_a_group():
    machine = read_topology(pastes.DEGRADED)

    assert fabric(machine, range(4)).bandwidth == 16 * 25e9
    assert fabric(machine, [0, 1, 3]).bandwidth == 18 * 25e9


def test_a_chain_of_bridges_is_no_ring():
    chain = "GPU0 GPU1 GPU2\nGPU0 X NV4 PHB\nGPU1 NV4 X NV4\nGPU2 PHB NV4 X\n"
    machine = read_topology(chain, hardware=find_hardware("rtx-3090"))

    assert fabric(machine, range(3)).link == "pcie"
    assert not fabric(machine, range(3)).peer_to_peer
    assert fabric(machine, [0, 1]).link == "nvlink"


def test_mig_slices_do_not_talk():
    product = "NVIDIA A100 80GB PCIe"
    text = f"GPU 0: {product}\n  MIG 1g.10gb Device 0: (UUID: x)\nGPU 1: {product}\n"
    machine = read_topology(text + pastes.square("PIX", 2))

    assert refused_pairs(machine) == (("GPU0", "GPU1", "MIG slices have no peer access"),)
    assert not fabric(machine, [0, 1]).peer_to_peer


BRIDGED = [
    # places by socket, root and switches; NVLink bridges; a group, and the others that send
    (
        ("0000", "1101", "0011", "0110", "0111", "0001", "1100", "0001"),
        ("27", "06", "47", "03"),
        "25617",
        ("034",),
    ),
    (
        ("0011", "0110", "0001", "0101", "0001", "1000", "0111", "0010"),
        ("67", "01", "12", "04"),
        "241",
        ("03567",),
    ),
    (
        ("1010", "1001", "0111", "0000", "1000", "1011", "1110", "1000"),
        ("45", "56", "02", "13"),
        "631",
        ("02", "457"),
    ),
    (("0010", "0111", "0100", "0100"), ("02", "23"), "302", ()),
]


@pytest.mark.parametrize(("places", "bridges", "group", "beside"), BRIDGED)
def test_the_numbers_of_gpus_do_not_change_the_links_of_a_group(places, bridges, group, beside):
    def described(order):
        def label(a, b):
            ends = sorted((order[a], order[b]))
            if f"{ends[0]}{ends[1]}" in bridges:
                return "NV4"
            steps = enumerate(zip(places[ends[0]], places[ends[1]], strict=True))
            alike = next((depth for depth, (one, other) in steps if one != other), 4)
            return ("SYS", "NODE", "PHB", "PXB", "PIX")[alike]

        machine = read_topology(matrix(len(order), label))
        groups = [[order.index(int(gpu)) for gpu in each] for each in (group, *beside)]
        return fabric(machine, groups[0], groups[1:])

    count = len(places)
    first = described(list(range(count)))
    for seed in range(12):
        order = Random(seed).sample(range(count), count)
        assert described(order) == first, order
