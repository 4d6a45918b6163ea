"""Catalogue nodes as graphs agree with the catalogue, and clusters with arithmetic."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from growth import TRIES, seconds
from machinetexts import two_sockets

from topology.base import InputError
from topology.catalogue import all_hardware, find_hardware
from topology.machine import fabric, machine_of, repeated
from topology.machine.flows import bisection_bandwidth, to_networkx
from topology.readers import read_topology

every_hardware = pytest.mark.parametrize("name", list(all_hardware()))
# In these the first GPUs are not those that are joined best.
MESHES = {("v100-sxm", 2)}


@every_hardware
def test_groups_of_a_catalogue_node_are_what_the_catalogue_says(name):
    for ranks in (1, 2, 4, 8):
        kind = find_hardware(name)
        nodes = -(-ranks // kind.gpus)
        wanted, got = kind.fabric(ranks), fabric(machine_of(kind, nodes), range(ranks))

        assert (got.link, got.architecture, got.nodes) == (
            wanted.link,
            wanted.architecture,
            wanted.nodes,
        ), ranks
        assert (got.multicast, got.peer_to_peer) == (wanted.multicast, wanted.peer_to_peer), ranks
        assert got.crosses_sockets == wanted.crosses_sockets, ranks
        assert got.pcie_generation == wanted.pcie_generation, ranks
        if (name, ranks) not in MESHES:
            assert got.bandwidth == pytest.approx(wanted.bandwidth), ranks
            assert got.direct == pytest.approx(
                wanted.direct, rel=1 if name == "v100-sxm" else 1e-6
            ), ranks
        else:
            assert got.bandwidth < wanted.bandwidth, ranks


@every_hardware
def test_groups_over_two_nodes_are_what_the_catalogue_says(name):
    kind = find_hardware(name)
    if kind.domain > kind.gpus:
        return  # one NVLink domain
    wanted = kind.fabric(2 * kind.gpus, 2)
    got = fabric(machine_of(kind, 2), range(2 * kind.gpus))

    assert got.nodes == 2
    assert got.network == wanted.network


def test_the_gpus_of_a_grace_share_its_coherent_link():
    shares = {
        name: {e.bandwidth.value for e in machine_of(kind).edges if e.kind == "c2c"}
        for name, kind in all_hardware().items()
    }

    assert {name: share for name, share in shares.items() if share} == {
        "gh200": {450e9},
        "gb200": {225e9},
        "gb300": {225e9},
    }


@every_hardware
def test_every_gpu_pair_appears_once(name):
    table = machine_of(find_hardware(name), 2).to_dict()
    count = find_hardware(name).gpus
    pairs = Counter(frozenset((row["a"], row["b"])) for row in table["links"])

    assert table["nodes"] == 2
    assert len(table["gpus"]) == 2 * count
    assert set(pairs.values()) == {1}
    gpus = {row["name"] for row in table["gpus"]}
    assert sum({row["a"], row["b"]} <= gpus for row in table["links"]) == count * (count - 1)
    json.dumps(table, allow_nan=False)


def test_every_number_has_a_source():
    for name in sorted(all_hardware()):
        for edge in machine_of(find_hardware(name)).edges:
            assert edge.bandwidth.value > 0, name
            assert edge.bandwidth.source, name


def test_the_mesh_of_a_dgx1_has_six_links_a_gpu():
    machine = machine_of(find_hardware("v100-sxm"))
    links = Counter()
    for edge in machine.edges:
        if edge.kind == "nvlink":
            links.update({edge.a: edge.count, edge.b: edge.count})

    assert set(links.values()) == {6}


def test_bridges_join_neighbours():
    pairs = [p for p in machine_of(find_hardware("h200-nvl")).pairs if p.kind == "NVLINK"]

    assert len(pairs) == 12  # two bridges of four
    assert {p.count for p in pairs} == {6}


def test_switched_halves_exchange_what_their_gpus_can_send():
    # 4 x 450 GB/s over NVSwitch; copies do not take the link between sockets beside it
    assert bisection_bandwidth(machine_of(find_hardware("h100-sxm"))) == 4 * 450e9


@pytest.mark.parametrize("nodes", [1, 2, 4, 5, 18])
def test_halves_of_a_rack_exchange_what_their_gpus_can_send(nodes):
    machine = machine_of(find_hardware("gb200"), nodes)

    assert bisection_bandwidth(machine) == (2 * nodes if nodes < 5 else nodes // 2 * 4) * 900e9


def test_halves_that_nvlink_does_not_join_exchange_over_pcie():
    # two bridges of four: what joins them are two links of 63 GB/s
    assert bisection_bandwidth(machine_of(find_hardware("h200-nvl"))) == pytest.approx(
        126e9, rel=0.001
    )
    assert bisection_bandwidth(machine_of(find_hardware("l40s"))) == 67.2e9


def test_halves_of_a_cube_mesh_exchange_over_its_links():
    machine = machine_of(find_hardware("v100-sxm"))
    across = [
        pair.bandwidth
        for pair in machine.pairs
        if pair.kind == "NVLINK" and (pair.a < "GPU4") != (pair.b < "GPU4")
    ]

    assert bisection_bandwidth(machine) <= sum(across)


def test_halves_of_a_cluster_exchange_what_their_nics_can_send():
    # 8 of 16 nodes, 8 NICs of 50 GB/s each
    assert bisection_bandwidth(machine_of(find_hardware("h100-sxm"), 16)) == 8 * 8 * 50e9


def test_a_rack_is_one_nvlink_domain():
    rack = machine_of(find_hardware("gb200"), 18)

    assert fabric(rack, range(72)).nodes == 1
    assert fabric(rack, range(72)).hosts == 18
    assert fabric(rack, range(72)).bandwidth == 900e9
    two = fabric(machine_of(find_hardware("gb200"), 36), range(144))
    assert (two.nodes, two.network.nics, two.network.bandwidth) == (2, 72, 72 * 50e9)


def test_a_thousand_nodes_stay_small():
    machine = machine_of(find_hardware("h100-sxm"), 1024)

    assert len(machine.edges) < 100
    assert fabric(machine, range(8192)).network.bandwidth == 400e9


def test_networkx_gets_every_part_and_link():
    machine = machine_of(find_hardware("b200"), 2)
    graph = to_networkx(machine)

    assert graph.number_of_edges() == len(machine.all_edges())
    assert Counter(kind for _, kind in graph.nodes(data="kind"))["gpu"] == 16
    assert graph["host1/GPU3"]["host1/NVSwitch"]["bandwidth"] == 900e9
    assert graph["host0/NIC2"]["leaf0.rail2"]["kind"] == "network"


CLUSTER = """
name = "two racks"
hosts = 16
hardware = "h100-sxm"
[network]
kind = "roce"
nics = 8
nic_bandwidth = "200 Gbit/s"
rails = 4
hosts_per_leaf = 4
oversubscription = 2.0
"""


def test_clusters_are_read_from_toml():
    machine = read_topology(CLUSTER)
    leaf = [e for e in machine.network_edges() if e.b == "spine"]

    assert (machine.name, machine.hosts, machine.cluster.kind) == ("two racks", 16, "roce")
    # 4 leaves x 4 rails; 4 hosts x 2 NICs x 25 GB/s into each, half of it out
    assert {(len(leaf), e.bandwidth.value) for e in leaf} == {(16, 100e9)}
    # 8 NICs of 25 GB/s a node fit through 4 uplinks of 100 GB/s
    assert fabric(machine, range(128)).network.bandwidth == 200e9
    # half of the hosts are two leaves: 2 x 4 x 100 GB/s
    assert bisection_bandwidth(machine) == 800e9


def test_the_example_is_read():
    machine = read_topology(Path(__file__).parents[2] / "examples" / "cluster.toml")

    assert (machine.hosts, machine.hardware, machine.cluster.nics) == (16, "h100-sxm", 8)
    # half of the nodes, at half of their 8 x 50 GB/s
    assert bisection_bandwidth(machine) == 8 * 8 * 50e9 / 2


def test_a_pasted_host_can_be_repeated():
    text = (
        "hosts = 2\ntopology = '''\n\tGPU0\tGPU1\tNIC0\nGPU0\tX\tPIX\tPIX\nGPU1\tPIX\tX\tPIX\n'''\n"
    )
    machine = read_topology(text + "[network]\nnic_bandwidth = '12.5 GB/s'\n")

    assert machine.to_dict()["nodes"] == 2
    assert fabric(machine, range(4)).network.bandwidth == 12.5e9


def test_racks_join_hosts_by_nvlink():
    machine = read_topology('hosts = 4\nhardware = "gb200"\n[rack]\nhosts = 2\n')

    assert [fabric(machine, range(n)).nodes for n in (4, 8, 16)] == [1, 1, 2]


def test_any_machine_can_be_repeated():
    host = read_topology("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n")
    several = repeated(host, 3)

    assert several.hosts == 3
    assert several.assumptions[-1].startswith("NICs of 100 Gbit/s")
    assert fabric(several, [0, 2, 4]).network.bandwidth == 12.5e9


BAD = [
    ("hosts = 0\nhardware = 'l4'", "hosts is '0'"),
    ("hosts = 2", "expected either hardware or topology"),
    ("hosts = 2\nhardware = 'h100'", "unknown hardware 'h100': did you mean h100-sxm"),
    ("hosts = 2\nhardware = 'l4'\nracks = 3", "unknown key in cluster 'racks': did you mean rack"),
    ("hosts = 2\nhardware = 'l4'\n[network]\nkind = 'token ring'", "unknown network 'token ring'"),
    ("hosts = 2\nhardware = 'l4'\n[network]\nnic_bandwidth = 'fast'", "'fast' is not a quantity"),
    ("hosts = 2\nhardware = 'l4'\n[network]\noversubscription = 0.5", "expected 1 to 1000"),
    ("hosts = 2\nhardware = 'l4'\n[network]\nrails = true", "rails is 'True'"),
    ("hosts = 2\nhardware = 'l4'\nnetwork = 4", "expected a table \\[network\\]"),
    ("hosts = \nhardware = 'l4'", "TOML"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_clusters_are_one_line(text, message):
    with pytest.raises(InputError, match=message):
        read_topology(text + "\n")


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "different GPUs"),
        ([0, 0], "different GPUs"),
        ([0, 99], "no GPU 99"),
        ([-1, 0], "no GPU -1"),
        ([0, 1, 8], "1 to 2 GPUs on its nodes"),
    ],
)
def test_impossible_groups_are_refused(ranks, message):
    with pytest.raises(InputError, match=message):
        fabric(machine_of(find_hardware("h100-sxm"), 2), ranks)


def test_no_nodes_is_an_error():
    with pytest.raises(InputError, match="expected at least 1"):
        machine_of(find_hardware("l4"), 0)
    with pytest.raises(InputError, match="expected 1 to"):
        repeated(machine_of(find_hardware("l4")), 0)


def test_pairs_can_be_looked_up_both_ways():
    table = machine_of(find_hardware("l4")).pairs_by_ends

    assert table["GPU3", "GPU1"] is table["GPU1", "GPU3"]


@pytest.mark.parametrize("name", ["h100-sxm", "gb200", "l40s", "h100-nvl"])
@pytest.mark.parametrize("hosts", [1, 2, 18, 36])
def test_whole_hosts_are_described_without_a_walk(name, hosts):
    """A range of all GPUs of hosts is the same group as the list of them."""
    machine = machine_of(find_hardware(name), 36)
    ranks = range(hosts * len(machine.gpus))

    assert fabric(machine, ranks) == fabric(machine, list(ranks))


def test_a_thousand_nodes_cost_no_time():
    """1,024 nodes of 8: links and price together take little more than those of one node."""
    from costmodels.collectives import collective_time

    machine = machine_of(find_hardware("h100-sxm"), 1024)
    collective_time("all_reduce", 2.0**30, fabric(machine, range(8)))  # reads the tables

    def price(gpus):
        return collective_time("all_reduce", 2.0**30, fabric(machine, range(gpus)))

    assert any(seconds(price, 8192) < 5 * seconds(price, 8) + 0.01 for _ in range(TRIES))
    assert fabric(machine, range(8192)).nodes == 1024
    assert 1e-3 < price(8192) < 1


def test_an_exchange_shares_what_a_ring_does_not():
    """Pairs under switches: a ring crosses an uplink once, an exchange of eight twelve times."""
    machine = read_topology(two_sockets(), hardware=find_hardware("a100-pcie-80gb"))
    links = fabric(machine, range(8))

    assert links.bandwidth == pytest.approx(31.5e9)
    assert links.exchange == pytest.approx(31.5e9 * 7 / 12)


def test_hosts_of_some_gpus_keep_less_of_an_exchange_than_links_promise():
    """L40: what published Ulysses times leave, less over two sockets than inside one."""
    kind = find_hardware("l40")
    machine = read_topology(two_sockets(), hardware=kind)
    inside, over = fabric(machine, range(4)), fabric(machine, range(8))

    assert inside.exchange == kind.exchange_rate(4) < 31.5e9
    assert over.exchange == kind.exchange_rate(8, across=True) < inside.exchange
    assert fabric(machine, range(2)).exchange == 0
    assert kind.fabric(8).exchange == over.exchange
