"""What commands and NCCL's own lines turn off, and what is then priced."""

import pytest

from validate.nccl_tests.compare import LogOptions, compare_all, links_of
from validate.nccl_tests.log import read_log

ROW = "1073741824 268435456 float sum -1 8000.0 134.22 {bus} 0 8000.0 134.22 {bus} 0\n"
TWO = ROW.format(bus="134.22")


def fabric(head, gpu, gpus=2):
    (log,) = read_log(f"# gpu: {gpu}\n# gpus: {gpus}\n{head}\n# all_reduce_perf\n{TWO}")
    return links_of(log, LogOptions())


@pytest.mark.parametrize(
    "head",
    [
        "NCCL_P2P_DISABLE=1 ./build/all_reduce_perf -b 1G -g 2",
        "mpirun -x NCCL_P2P_DISABLE=1 \\",
        "export NCCL_P2P_DISABLE=1",
        "h:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
        "h:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    ],
)
@pytest.mark.parametrize("gpu", ["NVIDIA A40", "H100 SXM5"])
def test_peers_that_are_off_copy_through_the_host(head, gpu):
    found, _, notes = fabric(head, gpu)

    assert (found.link, found.peer_to_peer, found.multicast) == ("pcie", False, False)
    assert any("copies through the host" in note for note in notes)


@pytest.mark.parametrize(
    "head",
    [
        "we can set NCCL_P2P_DISABLE=1 to see what NVLink is worth",
        "NCCL_P2P_DISABLE=0 ./build/all_reduce_perf",
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ],
)
def test_prose_and_other_values_change_nothing(head):
    assert fabric(head, "NVIDIA A40")[0] == fabric("", "NVIDIA A40")[0]


def test_channels_show_peers_that_a_driver_usually_refuses():
    line = "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"

    assert not fabric("", "RTX 4090")[0].peer_to_peer
    assert fabric(line, "RTX 4090")[0].peer_to_peer


def test_one_staged_channel_of_a_ring_over_bridges_stages_all():
    lines = "\n".join(
        f"h:1:1 [0] NCCL INFO Channel 00 : {a}[0] -> {b}[1] via {way}/direct"
        for a, b, way in ((0, 1, "P2P"), (1, 2, "SHM"))
    )

    assert not fabric(lines, "A100 80GB PCIe", gpus=4)[0].peer_to_peer
    assert fabric(lines, "H100 SXM5", gpus=4)[0].link == "nvswitch"


def test_multicast_may_be_off():
    found, _, notes = fabric("mpirun -x NCCL_NVLS_ENABLE=0 all_reduce_perf", "H100 SXM5", gpus=8)

    assert (found.link, found.multicast) == ("nvswitch", False)
    assert "the log says of its nodes: NVLink without SHARP" in notes


def test_a_variable_holds_for_its_own_command_unless_it_is_exported():
    runs = f"NCCL_P2P_DISABLE=1 ./all_reduce_perf -g 2\n{TWO}./all_reduce_perf -g 2\n{TWO}"
    text = "# gpu: NVIDIA A40\n" + runs
    first, second = (links_of(log, LogOptions())[0] for log in read_log(text))
    assert (first.peer_to_peer, second.peer_to_peer) == (False, True)

    both = read_log(text.replace("NCCL_P2P_DISABLE=1 ", "export NCCL_P2P_DISABLE=1\n"))
    assert [links_of(log, LogOptions())[0].peer_to_peer for log in both] == [False, False]


def test_without_peers_and_shared_memory_every_gpu_takes_its_own_nics():
    head = (
        "mpirun -x NCCL_P2P_DISABLE=1 -x NCCL_SHM_DISABLE=1 -x NCCL_IB_GID_INDEX=3 "
        "-x NCCL_IB_HCA=mlx5_0\\,mlx5_1\\,mlx5_2\\,mlx5_3 all_reduce_perf\n# nodes: 2"
    )
    (found,) = compare_all(
        f"# gpu: RTX PRO 6000 Blackwell\n# gpus: 8\n{head}\n{ROW.format(bus='234.88')}",
        LogOptions(),
    )
    (log,) = read_log(f"# gpu: RTX PRO 6000 Blackwell\n# gpus: 8\n{head}\n{TWO}")
    links, _, notes = links_of(log, LogOptions())

    assert (found.gpus, found.nodes) == (8, 2)
    assert (links.nodes, links.network.kind, links.network.nics) == (8, "roce", 1)
    assert "GPUs of a node talk over its roce, 4 NICs" in notes[-1]


@pytest.mark.parametrize(
    ("line", "kind", "nics", "gigabits"),
    [
        ("NET/OFI Running on p4d.24xlarge platform, LogOptions NCCL_TOPO_FILE", "efa_v1", 4, 100),
        ("# instances: 2 x p5en.48xlarge", "efa", 16, 200),
        ("machineType: a4-highgpu-8g", "gib", 8, 400),
        ("mpirun -x NCCL_NET=gIB all_reduce_perf", "gib", 8, 400),
        ("mpirun -x NCCL_IB_HCA=mlx5_0,mlx5_1 all_reduce_perf", "infiniband", 2, 400),
        ("mpirun -x NCCL_IB_HCA=mlx5 all_reduce_perf", "infiniband", 8, 400),
    ],
)
def test_networks_that_a_machine_or_a_variable_gives_away(line, kind, nics, gigabits):
    gpu = "A100-SXM4-40GB" if "p4d" in line else "H100 80GB HBM3"
    found = fabric(f"# nodes: 2\n{line}", gpu, gpus=16)[0].network

    assert (found.kind, found.nics) == (kind, nics)
    assert found.bandwidth / found.nics == gigabits * 10**9 / 8


def test_efa_beside_old_gpus_is_of_the_first_generation():
    line = "h:1:1 [0] NCCL INFO NET/OFI LogOptions provider_filter to efa"

    assert fabric(f"# nodes: 2\n{line}", "A100-SXM4-40GB", gpus=16)[0].network.kind == "efa_v1"
    assert fabric(f"# nodes: 2\n{line}", "H100 SXM5", gpus=16)[0].network.kind == "efa"


def test_a_forced_protocol_is_priced_and_said():
    head = "# gpu: H100 SXM5\n# gpus: 8\n"
    small = "1024 256 float sum -1 20.0 0.05 0.09 0 20.0 0.05 0.09 0\n"
    run = "NCCL_PROTO={}  ./all_reduce_perf -b 1K\n"
    plain, simple = (
        compare_all(head + text + small, LogOptions())[0]
        for text in ("./all_reduce_perf -b 1K\n", run.format("Simple"))
    )

    assert (plain.rows[0].protocol, simple.rows[0].protocol) == ("LL", "Simple")
    assert simple.rows[0].predicted_s > plain.rows[0].predicted_s
    assert "the log leaves NCCL the protocol Simple" in simple.notes
    assert "protocol" not in " ".join(plain.notes)
