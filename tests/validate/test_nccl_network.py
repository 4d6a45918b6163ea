"""What a log says of its links, in the words people use over it and in NCCL's own lines."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topology.catalogue import find_hardware
from validate.nccl_tests import LogOptions, compare_all
from validate.nccl_tests.links import (
    LinksText,
    read_environment,
    read_inside,
    read_line,
    read_network,
)
from validate.nccl_tests.log import read_log

ROW = "  1073741824  268435456  float  sum  -1  8000.0  134.2  251.6  0  8000.0  134.2  251.6  0\n"
H100 = "# collective: AllReduce\n# gpu: H100 SXM5 80GB\n# gpus_total: 16\n# gpus_per_node: 8\n"


def compared(head, **more):
    (found,) = compare_all(head + ROW, LogOptions(**more))
    return found


def network(head):
    """The one note on a network."""
    return next(line for line in compared(head).notes if "network" in line)


@pytest.mark.parametrize(
    ("text", "kind", "nics", "gigabits"),
    [
        ("8x HDR InfiniBand 200G (ConnectX-6)", "infiniband", 8, 200),
        ("HDR InfiniBand", "infiniband", 0, 200),
        ("8 x NDR 400G", "infiniband", 8, 400),
        ("NDR200 IB, 4 HCAs", "infiniband", 4, 200),
        ("EDR", "infiniband", 0, 100),
        ("RoCE CX7 8x400G (GPUDirect-RDMA)", "roce", 8, 400),
        ("RoCE 2 SR-IOV 100G VFs", "roce", 2, 100),
        ("RoCE single shared RDMA NIC for 8 GPUs", "roce", 1, None),
        ("4 x 100 Gbps EFA", "efa", 4, 100),
        ("AWS EFA v2 3200 Gb/s per node (32x100G)", "efa", 32, 100),
        ("HPE Slingshot 11, 2 NIC/node, aws-ofi-nccl", "slingshot", 2, 200),
        ("GPUDirect-TCPXO 8x200G", "tcpxo", 8, 200),
        ("GPUDirect-TCPX 4x200G", "tcpx", 4, 200),
        ("TCP/IP over Ethernet or IPoIB", "ethernet", 0, None),
        ("25G Ethernet sockets", "ethernet", 0, 25),
        ("none", None, 0, None),
        ("not stated (IB/RoCE)", None, 0, None),
    ],
)
def test_words_for_a_network(text, kind, nics, gigabits):
    found = read_network(text)

    assert (found.kind, found.nics) == (kind, nics)
    assert found.rates == (() if gigabits is None else (gigabits * 10**9 / 8,))


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("EFA, 3200 Gbps", 400e9),
        ("InfiniBand, 200 GB/s per node", 200e9),
        ("RoCE 3.2 Tb/s per node", 400e9),
    ],
)
def test_a_rate_of_all_nics_of_a_node(text, total):
    assert read_network(text).total == pytest.approx(total)


def test_alternatives_are_kept_and_the_usual_one_is_taken():
    assert read_network("RoCE 8x400G/800G per node").rates == (50e9, 100e9)
    head = H100.replace("H100 SXM5 80GB", "B300") + "# link_inter: RoCE 8x400G/800G per node\n"
    assert "8 NICs of 800 Gbit/s" in network(head)


def test_what_the_header_says_stands_before_the_catalogue():
    hdr = H100 + "# link_inter: 4x HDR InfiniBand 200G\n"

    assert network(hdr) == "network of the log: infiniband, 4 NICs of 200 Gbit/s a node"
    slow, usual = compared(hdr), compared(H100)
    assert (slow.nodes, usual.nodes) == (2, 2)  # from the GPUs of each
    assert slow.rows[0].predicted_s > 2 * usual.rows[0].predicted_s
    assert any("the log says nothing of its network" in line for line in usual.notes)


def test_what_is_taken_as_usual_is_said():
    assert network(H100 + "# link_inter: RoCE\n").endswith("(number and rate as usual there)")
    assert network(H100 + "# link_inter: RoCE 1 NIC\n").endswith("a node (rate as usual there)")


def test_few_gpus_use_the_nics_beside_them():
    head = H100.replace("gpus_per_node: 8", "gpus_per_node: 1") + "# link_inter: 8x NDR 400G\n"

    assert "infiniband, 1 NIC of 400 Gbit/s" in network(head)


def test_kinds_that_depend_on_the_machine():
    efa = H100.replace("H100 SXM5", "A100-SXM4") + "# link_inter: AWS EFA 400 Gb/s (4x100G)\n"
    google = H100.replace("80GB\n", "80GB (a3-ultragpu-8g)\n") + "# link_inter: RoCE 8x400G\n"

    assert "efa_v1, 4 NICs" in network(efa)
    assert "gib, 8 NICs" in network(google)
    assert "efa, 32 NICs" in network(H100 + "# link_inter: EFA v2 3200 Gb/s per node\n")


def test_a_switch_for_racks_keeps_its_number_of_nics():
    head = "# collective: AllReduce\n# gpu: GB200\n# gpus_total: 128\n# nodes: 2\n"

    assert "64 NICs of 400 Gbit/s" in network(head + "# link_inter: RoCE 8x400G\n")


@pytest.mark.parametrize(
    ("text", "sockets"),
    [
        ("NCCL_IB_DISABLE=1 NCCL_NET_GDR_READ=1", True),
        ("NCCL_NET=Socket", True),
        ("NCCL_IB_DISABLE=0", False),
        ("env (1): 1 = no NCCL env, TCP sockets; 4 = NCCL_NET=AWS-Libfabric", True),
        ("env (4): 1 = no NCCL env, TCP sockets; 4 = NCCL_NET=AWS-Libfabric", False),
    ],
)
def test_variables_that_leave_only_sockets(text, sockets):
    assert read_environment(text, LinksText()).sockets == sockets


def test_sockets_take_one_port():
    assert "ethernet, 1 NIC" in network(H100 + "# link_inter: TCP/IP over Ethernet\n")


@pytest.mark.parametrize(
    ("lines", "kind", "nics"),
    [
        (["NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"],
         "roce", 2),
        (["NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_3:1/IB/SHARP"], "infiniband", 2),
        (["NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>"], "ethernet", 1),
        (["NCCL INFO NET/OFI Selected Provider is efa (found 32 nics)"], "efa", 32),
        (["NCCL INFO NET/OFI Selected Provider is cxi (found 2 nics)"], "slingshot", 2),
        (["NCCL INFO Using network FasTrak"], "tcpxo", 0),
        (["NCCL INFO NET/IB : Using [0]mlx5_0:1/IB", "NCCL INFO Using network Socket"],
         "ethernet", 1),
        (["NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM"], None, 0),
    ],
)  # fmt: skip
def test_lines_of_nccl(lines, kind, nics):
    said = LinksText()
    for line in lines:
        said = read_line(f"host:12:34 [0] {line}", said)

    assert (said.kind, said.nics) == (kind, nics)


def test_links_inside_a_node():
    head = "# collective: AllReduce\n# gpu: RTX 4090\n# gpus_total: 2\n# nodes: 1\n"
    peers = compared(head + "# link_intra: PCIe 4.0 x16, P2P enabled by a patched driver\n")
    staged = compared(head + "# link_intra: PCIe, no P2P (GeForce) -> SHM; cross-socket\n")

    assert peers.rows[0].predicted_s < staged.rows[0].predicted_s / 3
    assert peers.notes[0] == "the log says of its nodes: PCIe 4, 31.5 GB/s, peer access"
    assert "copies through the host, over two sockets" in staged.notes[0]
    mesh = read_inside("NVLink3 4-GPU full mesh (NV4 per pair, no NVSwitch)", LinksText())
    assert (mesh.mesh, mesh.pcie) == (True, False)


def test_remarks_hold_for_every_table_of_a_log():
    text = H100 + "# link_inter: RoCE 2x100G\n" + ROW + "# size  count\n" + ROW

    assert [log.links.nics for log in read_log(text)] == [2, 2]


def test_a_machine_of_the_caller_stands_before_the_header():
    from planner.request.subset import read_machine

    text = 'hosts = 2\nhardware = "h100-sxm"\n[network]\nkind = "roce"\nnics = 8\n'
    where = read_machine(text, detect=False, hardware="", pcie_generation=None, nodes=0)
    found = compared(H100 + "# link_inter: 1x HDR InfiniBand 200G\n", subset=where)

    assert not any("network" in line for line in found.notes)


@example(text="\u00b9")  # a digit, and no number
@given(st.text(max_size=60))
def test_any_remark_is_a_network_or_nothing(text):
    found = read_network(text)

    assert found.nics >= 0
    assert all(np.isfinite(rate) for rate in (*found.rates, found.total))
    compare_all(H100 + f"# link_inter: {text.splitlines()[0] if text.split() else ''}\n" + ROW,
                LogOptions())  # fmt: skip


def test_a_rate_is_that_of_the_hardware_where_only_the_count_is_told():
    node = find_hardware("h100-sxm")

    assert f"2 NICs of {node.nic_bandwidth.value * 8 / 1e9:g} Gbit/s" in network(
        H100 + "# link_inter: RoCE 2 NICs\n"
    )
