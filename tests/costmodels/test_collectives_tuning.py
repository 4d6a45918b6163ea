"""What NCCL takes at which size, what cannot be forced, and what the tables must have."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.basis import Basis
from costmodels.collectives import NcclSettings, basis, choose, collective_time
from costmodels.collectives.choice import candidates
from costmodels.collectives.engines import load_engines
from costmodels.collectives.nccl_tuning import NcclView, cheapest
from costmodels.collectives.parameters import load_library
from costmodels.collectives.tables import engines, library, transports, tuning
from costmodels.collectives.transports import load_transports
from topology.base import BytesPerSecond, CatalogueError, InputError
from topology.catalogue import Fabric, Network, find_hardware

KIB, MIB = 2.0**10, 2.0**20

# Where measured time jumps (aiconfigurator-core 0.12 nccl_perf): the last size in the protocol of
# small messages and the first beyond it, NCCL 2.27.3 on A100 and 2.29.2 on the others.
JUMPS = [
    ("h100-sxm", 2, "all_reduce", 1, 2, "Simple"),  # 15 -> 28 us
    ("h100-sxm", 4, "all_gather", 2, 4, "Simple"),  # 19 -> 37 us
    ("h100-sxm", 8, "reduce_scatter", 4, 8, "LL128"),
    ("a100-sxm-80gb", 2, "all_reduce", 0.5, 1, "Simple"),  # 19 -> 41 us
    ("a100-sxm-80gb", 4, "all_gather", 1, 2, "Simple"),  # 23 -> 53 us
    ("b200", 4, "all_reduce", 4, 8, "LL128"),  # 36 -> 85 us
    ("b200", 8, "all_gather", 8, 16, "LL128"),  # 44 -> 104 us
    ("rtx-pro-6000", 2, "all_reduce", 0.5, 1, "Simple"),
    ("rtx-pro-6000", 8, "all_gather", 0.5, 1, "Simple"),  # 91 -> 75 us
]


@pytest.mark.parametrize(("name", "ranks", "op", "small", "large", "then"), JUMPS)
def test_protocols_change_where_measured_time_jumps(name, ranks, op, small, large, then):
    node = find_hardware(name).fabric(ranks)

    assert choose(op, small * MIB, node)[1] == "LL"
    assert choose(op, large * MIB, node)[1] == then


def test_the_switch_reduces_large_messages_of_eight_h100():
    node = find_hardware("h100-sxm").fabric(8)

    assert choose("all_reduce", 64 * MIB, node) == ("nvls", "Simple")
    assert choose("all_gather", 64 * MIB, node) == ("ring", "Simple")
    assert choose("all_reduce", 64 * MIB, find_hardware("a100-sxm-80gb").fabric(8))[0] == "ring"
    assert choose("all_reduce", 64 * MIB, find_hardware("h100-sxm").fabric(2))[0] == "ring"


def test_nodes_are_joined_by_trees():
    nodes = find_hardware("h100-sxm").fabric(16, nodes=2)

    assert choose("all_reduce", 8 * KIB, nodes) == ("tree", "LL")
    assert choose("all_reduce", 1024 * MIB, nodes) == ("nvls_tree", "Simple")
    assert choose("all_gather", 1024 * MIB, nodes) == ("ring", "Simple")


def test_a_rack_of_nvlink_is_one_node_of_many_hosts():
    """NCCL merges the hosts that NVLink joins, so that it does not see where one ends."""
    rack = find_hardware("gb200")
    chosen = [choose("all_reduce", MIB, rack.fabric(n), algorithm="ring") for n in range(3, 17)]

    assert choose("all_reduce", 8 * KIB, rack.fabric(8)) == ("ring", "LL")
    assert choose("all_reduce", 64 * MIB, rack.fabric(8)) == ("nvls", "Simple")
    assert set(chosen) == {("ring", "LL")}


def test_an_older_release_switches_earlier():
    """Before 2.21 NCCL credited Hopper's low-latency protocol with 88 instead of 141 GB/s."""
    node = find_hardware("h100-sxm").fabric(2)
    size = 1.2 * MIB

    assert choose("all_reduce", size, node)[1] == "LL"
    assert choose("all_reduce", size, node, settings=NcclSettings(nccl=(2, 20)))[1] == "Simple"


IMPOSSIBLE = [
    ("tree", "all_gather", "h100-sxm", 8, "serves all_reduce only"),
    ("ring", "all_to_all", "h100-sxm", 8, "serves all_reduce, all_gather"),
    ("pairwise", "all_reduce", "h100-sxm", 8, "serves all_to_all"),
    ("nvls", "all_reduce", "a100-sxm-80gb", 8, "multicasting NVLink switch"),
    ("nvls", "all_reduce", "h100-sxm", 2, "more than two GPUs"),
    ("multishot", "all_reduce", "a100-sxm-80gb", 8, "multicasting NVLink switch"),
    ("oneshot", "all_reduce", "l40s", 4, "read each other's memory"),
    ("oneshot", "all_reduce", "h100-sxm", 16, "inside one node, got several"),
    ("symmetric", "all_reduce", "rtx-pro-6000", 2, "NVLink between all"),
    ("nvls_tree", "all_reduce", "h100-sxm", 8, "several nodes, got 1"),
    ("collnet", "all_reduce", "l40", 16, "switches that reduce"),
    ("pat", "all_gather", "h100-sxm", 16, "one GPU a node, got 16 on 2"),
]


@pytest.mark.parametrize(("algorithm", "op", "name", "ranks", "reason"), IMPOSSIBLE)
def test_what_cannot_be_forced_says_why(algorithm, op, name, ranks, reason):
    with pytest.raises(InputError, match=reason) as caught:
        collective_time(op, MIB, find_hardware(name).fabric(ranks), algorithm=algorithm)

    assert str(caught.value).startswith(f"{op} by {algorithm}: ")
    assert "\n" not in str(caught.value)


def test_symmetric_kernels_need_their_release():
    node = find_hardware("h100-sxm").fabric(8)

    with pytest.raises(InputError, match=r"2\.27"):
        collective_time(
            "all_reduce", MIB, node, algorithm="symmetric", settings=NcclSettings(nccl=(2, 26))
        )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"op": "allreduce"}, "did you mean all_reduce"),
        ({"algorithm": "rings"}, "did you mean ring"),
        ({"launch": "graphs"}, "did you mean graph"),
    ],
)
def test_unknown_names_get_the_nearest(how, message):
    how = {"op": "all_reduce", "message_bytes": MIB, "fabric": find_hardware("l4").fabric(2)} | how

    with pytest.raises(InputError, match=message):
        collective_time(**how)


def test_settings_are_checked():
    with pytest.raises(InputError, match="launcher"):
        NcclSettings(launcher="threads")
    with pytest.raises(InputError, match=r"2\.18 or newer"):
        NcclSettings(nccl=(2, 4))
    with pytest.raises(InputError, match="did you mean vllm"):
        collective_time(
            "all_reduce",
            MIB,
            find_hardware("h100-sxm").fabric(8),
            settings=NcclSettings(engine="vlm"),
        )


@pytest.mark.parametrize(
    ("name", "ranks", "op", "size", "expected"),
    [
        ("h100-sxm", 4, "all_gather", MIB, Basis.CALIBRATED),
        ("h200-sxm", 8, "all_reduce", 64 * MIB, Basis.CALIBRATED),  # the same links
        ("h100-sxm", 3, "all_gather", MIB, Basis.CALIBRATED),  # between measured sizes
        ("h100-sxm", 8, "broadcast", 64 * MIB, Basis.DATASHEET),  # another operation
        ("v100-sxm", 8, "all_reduce", MIB, Basis.DATASHEET),  # another generation
        ("h100-sxm", 16, "all_reduce", MIB, Basis.DATASHEET),  # two nodes
        ("h100-sxm", 8, "all_reduce", 2.0**40, Basis.ASSUMED),  # beyond anything measured
    ],
)
def test_a_time_says_how_well_it_is_known(name, ranks, op, size, expected):
    assert basis(op, size, find_hardware(name).fabric(ranks)) is expected


def test_a_stream_pays_the_host():
    """Eager PyTorch pays 40 to 50 us a collective, however small."""
    node = find_hardware("h100-sxm").fabric(2)

    assert 40e-6 <= collective_time("all_reduce", 1024.0, node, launch="stream") <= 50e-6
    large = collective_time("all_reduce", 2.0**30, node)
    assert collective_time("all_reduce", 2.0**30, node, launch="stream") < large * 1.01


def test_one_process_for_all_gpus_has_a_higher_floor():
    """nccl-tests -g 8 on H100: 35 us, where one process a GPU gives 13 to 16."""
    node = find_hardware("h100-sxm").fabric(8)
    single = NcclSettings(launcher="single")

    assert collective_time("all_reduce", 64.0, node) == pytest.approx(15.6e-6, rel=0.05)
    assert collective_time("all_reduce", 64.0, node, settings=single) == pytest.approx(
        35e-6, rel=0.05
    )


def test_every_curve_is_physical_and_sourced():
    for name, fitted in library().curves.items():
        ceiling = 0.5 if name.endswith("_ll") else 1.0
        assert 0 < fitted.curve.efficiency <= ceiling, name
        assert fitted.curve.launch > 0, name
        assert fitted.source, name
        assert fitted.smallest <= fitted.largest, name
        if fitted.kind == "measured":
            assert 0 <= fitted.median_error <= fitted.worst_error, name
    assert all(source.source for source in (*transports().values(), *engines().values()))


def test_a_table_with_a_strange_field_is_refused():
    with pytest.raises(CatalogueError, match="lunch"):
        load_library({"hopper": {"nvlink": {"ring_ll": {"lunch": "1 us", "launch": "1 us"}}}})
    with pytest.raises(CatalogueError, match="carrier"):
        load_transports({"carrier": {"kind": "assumed"}})
    with pytest.raises(CatalogueError, match="slow"):
        load_engines(
            {
                "eager": {"host": "1 us", "gap": "1 us", "single": "1 us", "copy": {}},
                "mixing": {"sizes": [], "seconds": []},
                "slow": {},
            }
        )


def test_constants_of_old_releases_add_up():
    newest, older, oldest = (tuning().at(release) for release in ((2, 30), (2, 22), (2, 20)))

    assert newest["nvlink_tree"][2] == pytest.approx(4e-6)
    assert older["nvlink_tree"][2] == oldest["nvlink_tree"][2] == pytest.approx(28e-6)
    assert older["hopper_ll"] == newest["hopper_ll"] != oldest["hopper_ll"]


# Pairs of ranks on two nodes.


def hosts(name, ranks, nodes, nics, rate, kind="infiniband"):
    node = find_hardware(name).fabric(ranks // nodes, 1)
    network = Network(kind=kind, bandwidth=BytesPerSecond(nics * rate), nics=nics)
    return replace(node, ranks=ranks, nodes=nodes, network=network)


@pytest.mark.parametrize(
    ("fabric", "release", "channels"),
    [
        (hosts("gh200", 16, 4, 4, 25e9, "slingshot"), (2, 20), 2),
        (hosts("gh200", 32, 8, 4, 25e9, "slingshot"), (2, 20), 1),
        (hosts("h100-sxm", 10, 10, 1, 50e9), (2, 29), 2),
        (hosts("h100-sxm", 16, 2, 8, 50e9), (2, 29), 4),
        (hosts("h100-sxm", 80, 10, 8, 50e9), (2, 29), 1),
        (hosts("h100-sxm", 16, 2, 8, 50e9), (2, 28), 2),
    ],
)
def test_pairs_of_ranks_share_channels_where_there_are_many(fabric, release, channels):
    """NCCL's src/graph/paths.cc; NVIDIA/nccl#1272 saw it halve from 16 to 32 ranks."""
    assert NcclView(fabric=fabric, numbers=tuning().at(release)).pair_channels == channels


@pytest.mark.parametrize(("nodes", "bus"), [(4, 24.2e9), (8, 18.3e9)])
def test_a_ring_of_sends_is_as_fast_as_its_channels(nodes, bus):
    """NVIDIA/nccl#1272: 512 MiB by sendrecv on nodes of four GH200, NCCL 2.20."""
    fabric = hosts("gh200", 4 * nodes, nodes, 4, 25e9, "slingshot")
    seconds = collective_time("send_recv", 2.0**29, fabric, settings=NcclSettings(nccl=(2, 20)))

    assert 2.0**29 / seconds == pytest.approx(bus, rel=0.05)


@pytest.mark.parametrize(("ranks", "us"), [(16, 110), (32, 96), (64, 102), (128, 132)])
def test_small_exchanges_between_nodes_wait_for_one_round_not_for_each_peer(ranks, us):
    """pplx-kernels' README: torch's all-to-all of 256 x 7,392 B over InfiniBand, H100."""
    fabric = find_hardware("h100-sxm").fabric(ranks, ranks // 8)
    seconds = collective_time("all_to_all", 256 * 7392.0, fabric, launch="stream")

    assert seconds * 1e6 == pytest.approx(us, rel=0.3)


@pytest.mark.parametrize(
    ("nodes", "us"),
    [
        (2, {8: 151, 16: 202, 32: 270, 64: 470, 128: 751, 256: 1290, 1024: 4497, 8192: 34508}),
        (4, {8: 239, 16: 286, 32: 414, 64: 616, 128: 1044, 1024: 6460, 8192: 51285}),
        (8, {16: 374, 32: 508, 64: 709, 128: 1150, 256: 1955, 512: 3509, 8192: 52733}),
    ],
)
def test_trees_of_nodes_pass_on_a_wave_of_chunks_at_a_time(nodes, us):
    """NVIDIA/nccl-tests#309: all-reduce on one cluster of 8 x 8 H100; no fit has seen all of it."""
    fabric, then = find_hardware("h100-sxm").fabric(8 * nodes, nodes), NcclSettings(nccl=(2, 26))
    taken = collective_time("all_reduce", np.array([*us]) * MIB, fabric, settings=then)
    off = taken * 1e6 / np.array([*us.values()]) - 1

    assert np.max(np.abs(off)) < 0.11
    assert abs(np.mean(off)) < 0.05


@pytest.mark.parametrize(("size", "us"), [(16, 433), (32, 768), (64, 1475), (128, 2816)])
def test_the_wave_of_nodes_with_one_nic_is_that_of_one_gpu(size, us):
    """Table 84: 2 x 8 H200, which share 400 Gbit/s; a wave of eight would take 170 us a hop."""
    fabric, then = hosts("h200-sxm", 16, 2, 1, 50e9, "roce"), NcclSettings(nccl=(2, 27))

    seconds = collective_time("all_reduce", size * MIB, fabric, settings=then)
    assert seconds * 1e6 == pytest.approx(us, rel=0.12)


def test_flags_travel_with_small_parts_alone_between_nodes():
    """Polaris, 128 nodes (table 49): times jump beyond 16 KiB a peer, at 8 MiB on 512 GPUs."""
    fabric = hosts("a100-sxm-40gb", 512, 128, 2, 25e9, "ethernet")

    assert choose("all_to_all", 2.0**23, fabric)[1] == "LL"
    assert choose("all_to_all", 2.0**23 + 1, fabric)[1] == "Simple"


def test_sends_in_a_mesh_take_the_links_of_one_pair():
    """NVIDIA/nccl-tests#331: sendrecv at 72 GB/s over four links, all-reduce at 206 over twelve."""
    mesh = find_hardware("a100-sxm-80gb").fabric(4).over_nvlink()
    sent = 2.0**27 / collective_time("send_recv", 2.0**27, mesh)
    reduced = 1.5 * 2.0**27 / collective_time("all_reduce", 2.0**27, mesh)

    assert sent == pytest.approx(72.5e9, rel=0.05)
    assert reduced == pytest.approx(206.5e9, rel=0.05)


@pytest.mark.parametrize(
    ("kernel", "microseconds"),
    [
        ("oneshot", (13, 21, 30, 38, 53, 70)),
        ("twoshot", (15, 17, 20, 26, 29, 37)),
        ("multishot", (13, 16, 18, 21, 25, 31)),
    ],
)
def test_kernels_of_vllm_on_six_gpus_take_what_it_measured(kernel, microseconds):
    """vllm-project/vllm#24111, six H100: its two-shot waits longer the more peers there are."""
    sizes = [0.5 * MIB, MIB, 1.5 * MIB, 2 * MIB, 3 * MIB, 4 * MIB]
    node, settings = find_hardware("h100-sxm").fabric(6), NcclSettings(engine="vllm")
    for size, measured in zip(sizes, microseconds, strict=True):
        seconds = collective_time("all_reduce", size, node, algorithm=kernel, settings=settings)
        assert seconds * 1e6 == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(
    ("hardware", "gpus", "nodes"), [("h100-sxm", 8, 1), ("a100-sxm-80gb", 32, 4)]
)
def test_nccl_takes_what_it_believes_to_be_the_fastest_at_every_size(hardware, gpus, nodes):
    fabric = find_hardware(hardware).fabric(gpus, nodes=nodes)
    for op in ("all_reduce", "all_gather"):
        believed = [candidate for _, candidate in candidates(op, fabric, tuning().at((2, 29)))]
        steps = list(cheapest(believed))
        assert len(steps) > 1
        for size in 1.1 ** np.arange(250):
            taken = max((start, best) for start, best in steps if start <= size)[1]
            least = min(candidate.price(size) for candidate in believed)
            assert believed[taken].price(size) == pytest.approx(least, rel=1e-9)
