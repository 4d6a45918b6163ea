"""Every form of nvidia-smi topo that people paste gives the GPUs, NICs and links it shows."""

from collections import Counter

import pytest
import testpastes as pastes
from testpastes import cpu_xml, gpu_xml, link_xml, pci_xml, topology_xml

from topology.catalogue import find_hardware
from topology.machine import fabric
from topology.readers import read_topology


def links(machine):
    """Count the links between GPUs by kind and number of NVLinks."""
    gpus = {gpu.name for gpu in machine.gpus}
    return Counter((p.kind, p.count) for p in machine.pairs if {p.a, p.b} <= gpus)


def between(machine, a, b):
    return next(p for p in machine.pairs if {p.a, p.b} == {a, b})


# name, text, GPUs, NICs, NUMA nodes, links between GPUs
FORMS = [
    ("hgx", pastes.HGX, 8, 0, [0] * 8, {("NVSWITCH", 18): 28}),
    ("coloured", pastes.COLOURED, 2, 0, [0, 0], {("NVLINK", 6): 1}),
    ("stripped colours", pastes.STRIPPED, 2, 0, [None, None], {("NODE", 1): 1}),
    ("no leading tab", pastes.NO_LEADING_TAB, 3, 0, [0] * 3, {("PIX", 1): 1, ("NODE", 1): 2}),
    ("glued and cut", pastes.GLUED_AND_CUT, 4, 2, [0, 1, None, None], {("NVSWITCH", 18): 6}),
    ("markdown", pastes.MARKDOWN, 4, 2, [None] * 4, {("NVSWITCH", 18): 6}),
    ("legacy", pastes.LEGACY, 3, 1, [None] * 3, {("PIX", 1): 1, ("PXB", 1): 2}),
    ("numa range", pastes.RANGES, 2, 1, [None, None], {("NVLINK", 4): 1}),
    ("empty affinity", pastes.EMPTY_AFFINITY, 2, 1, [None, None], {("NVLINK", 12): 1}),
    ("odd spacing", pastes.ODD_SPACING, 2, 0, [0, 0], {("NODE", 1): 1}),
    ("numa words", pastes.NUMA_WORDS, 3, 0, [0, 0, 1], {("PIX", 1): 1, ("SYS", 1): 2}),
    ("log prefix", pastes.PREFIXED, 2, 0, [None, None], {("PHB", 1): 1}),
    ("peers below", pastes.WITH_PEERS, 2, 0, [0, 0], {("PHB", 1): 1}),
    ("peers only", pastes.PEERS_ONLY, 4, 0, [None] * 4, {("NODE", 1): 6}),
    ("one bridge", pastes.ONE_BRIDGE, 3, 0, [0] * 3, {("NVLINK", 4): 1, ("NODE", 1): 2}),
    ("many nics", pastes.MANY_NICS, 1, 2, [0], {}),
    ("windows", pastes.ONE_GPU_IN_WINDOWS, 1, 0, [None], {}),
    ("degraded", pastes.DEGRADED, 4, 0, [None] * 4, {("NVSWITCH", 18): 3, ("NVSWITCH", 16): 3}),
    ("all sys", pastes.ALL_SYS, 4, 1, [0, 0, 1, 1], {("SYS", 1): 6}),
    ("pairs", pastes.PAIRS, 4, 0, [None] * 4, {("NVLINK", 4): 2, ("PHB", 1): 4}),
    ("two sockets", pastes.TWO_SOCKETS, 4, 0, [0, 0, 1, 1],
     {("PIX", 1): 1, ("PXB", 1): 1, ("SYS", 1): 4}),
    ("dgx2", pastes.square("NV6", 16), 16, 0, [None] * 16, {("NVSWITCH", 6): 120}),
    ("four a100", pastes.square("NV4", 4), 4, 0, [None] * 4, {("NVLINK", 4): 6}),
    ("cube mesh", pastes.cube_mesh(), 8, 0, [None] * 8,
     {("NVLINK", 1): 8, ("NVLINK", 2): 8, ("SYS", 1): 12}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "gpus", "nics", "numa", "wanted"), [f[1:] for f in FORMS], ids=[f[0] for f in FORMS]
)
def test_reads_what_the_table_shows(text, gpus, nics, numa, wanted):
    machine = read_topology(text)

    assert [gpu.name for gpu in machine.gpus] == [f"GPU{i}" for i in range(gpus)]
    assert len(machine.nics) == nics
    assert [gpu.numa for gpu in machine.gpus] == numa
    assert links(machine) == wanted
    assert len(machine.pairs) == gpus * (gpus - 1) // 2 + gpus * nics


@pytest.mark.parametrize(
    "disguise",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "user@host:~$ nvidia-smi topo -m\n" + text + "\nuser@host:~$ \n",
        lambda text: "\n".join("> " + line for line in text.split("\n")),
        lambda text: text.replace("NODE", "NODE ").expandtabs(8),
    ],
    ids=["windows", "prompt", "quoted", "spaces"],
)
def test_disguises_change_nothing(disguise):
    for name, text, *_ in FORMS:
        assert links(read_topology(disguise(text))) == links(read_topology(text)), name


@pytest.mark.parametrize("text", [f[1] for f in FORMS], ids=[f[0] for f in FORMS])
def test_every_link_has_a_bandwidth_and_every_guess_a_line(text):
    machine = read_topology(text)

    assert all(pair.bandwidth > 0 for pair in machine.pairs)
    assert all(gpu.hardware or machine.assumptions for gpu in machine.gpus)
    assert not any("nest" in line for line in machine.assumptions)


def test_nic_names_come_from_the_legend():
    assert read_topology(pastes.RANGES).nics[0].device == "mlx5_bond_0"
    nics = read_topology(pastes.MARKDOWN).nics
    assert [(nic.device, nic.numa) for nic in nics] == [("mlx5_0", 0), ("mlx5_4", 1)]
    assert read_topology(pastes.LEGACY).nics[0].device == "mlx5_0"


def test_links_to_nics_are_read():
    machine = read_topology(pastes.EMPTY_AFFINITY)

    assert between(machine, "GPU0", "NIC0").kind == "PXB"
    assert between(machine, "GPU1", "NIC0").kind == "SYS"


def test_a_cut_paste_is_completed_and_says_so():
    machine = read_topology(pastes.GLUED_AND_CUT)
    said = {(p.a, p.b): p.read for p in machine.pairs}

    assert said["GPU1", "GPU3"]
    assert not said["GPU2", "GPU3"]
    assert "2 of 4 GPU rows; missing GPU2, GPU3" in machine.warnings[0]


def test_a_cut_row_is_filled_from_the_other_side():
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\nGPU1\tPIX\tX\tSYS\nGPU2\tSYS\tSYS\tX"
    machine = read_topology(text)

    assert between(machine, "GPU0", "GPU2").kind == "SYS"
    assert "line 2: row GPU0 has 2 of 3 cells" in machine.warnings


def test_rows_without_a_header_are_taken_in_order():
    machine = read_topology("GPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS")

    assert links(machine) == {("NVLINK", 4): 1}
    assert len(machine.nics) == 1
    assert "header line is missing" in machine.warnings[0]


def test_a_row_broken_by_the_terminal_is_joined():
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\n\tSYS\nGPU1\tPIX\t X \tSYS\nGPU2\tSYS\tSYS\t X"

    assert links(read_topology(text)) == {("PIX", 1): 1, ("SYS", 1): 2}


def test_cells_that_grew_together_are_parted():
    text = "GPU0 GPU1 GPU2\nGPU0 X NV12NV12 0-3\nGPU1 NV12X NV12 0-3\nGPU2 NV12NV12X0-3"

    assert links(read_topology(text)) == {("NVSWITCH", 12): 3}


def test_the_pcie_view_goes_beneath_nvlink():
    both = pastes.square("NV12", 2) + "\n\n$ nvidia-smi topo -mp\n" + pastes.square("SYS", 2)
    machine = read_topology(both)

    assert links(machine) == {("NVLINK", 12): 1}
    assert sum(node.kind == "cpu" for node in machine.nodes) == 2


def test_peer_states_are_kept_with_their_capability():
    machine = read_topology(pastes.WITH_PEERS)

    assert {(p.a, p.b, p.state, p.capability) for p in machine.peers} == {
        ("GPU0", "GPU1", "GNS", "r"),
        ("GPU1", "GPU0", "GNS", "r"),
    }
    assert any("no peer access for 1 of 1" in line for line in machine.warnings)


def test_the_product_comes_from_other_outputs():
    machine = read_topology(pastes.ONE_BRIDGE)

    assert {gpu.hardware for gpu in machine.gpus} == {"rtx-a6000"}
    assert between(machine, "GPU0", "GPU1").bandwidth == 4 * 14.0625e9


@pytest.mark.parametrize(("shown", "wanted"), [("26.562", 25e9), ("53.125", 50e9), ("20", 20e9)])
def test_rates_that_nvidia_smi_shows_count_line_code_in(shown, wanted):
    ports = "\n".join(f"\t Link {i}: {shown} GB/s" for i in range(2))
    text = f"GPU 0: NVIDIA New\n{ports}\nGPU 1: NVIDIA New\n{ports}\n"

    machine = read_topology(text)

    assert machine.pairs[0].bandwidth == 2 * wanted
    assert (machine.gpus[0].architecture == "blackwell") == (shown == "53.125")


def test_kinds_with_switches_have_them_where_a_text_shows_no_links():
    machine = read_topology("GPU 0: NVIDIA B200 (UUID: 1)\nGPU 1: NVIDIA B200 (UUID: 2)\n")

    assert links(machine) == {("NVSWITCH", 18): 1}
    assert not machine.pairs[0].read


def test_the_plain_table_names_kind_and_memory():
    table = """| GPU  Name          Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA L4               On  |   00000000:31:00.0 Off |                    0 |
| N/A   30C    P8      12W /  72W  |       1MiB /  23034MiB |      0%      Default |
|   1  NVIDIA L4               On  |   00000000:ca:00.0 Off |                    0 |
| N/A   30C    P8      12W /  72W  |       1MiB /  23034MiB |      0%      Default |
|                                  |                        |              Enabled |
"""
    machine = read_topology(table + pastes.square("SYS", 2))

    assert [gpu.hardware for gpu in machine.gpus] == ["l4", "l4"]
    assert machine.gpus[0].memory == 23034 * 2**20
    assert [gpu.mig for gpu in machine.gpus] == [False, True]


def test_a_list_of_gpus_shows_mig():
    text = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 1g.10gb     Device  0: (UUID: MIG-2)\n"
    )
    machine = read_topology(text)

    assert machine.gpus[0].mig
    assert machine.gpus[0].hardware == "h100-sxm"
    assert any("MIG" in line for line in machine.warnings)


def test_degraded_links_are_named():
    assert "GPU2 has 16 of 18 NVLinks up" in read_topology(pastes.DEGRADED).warnings


def test_hidden_nics_are_named():
    assert "9 NICs in the machine, 2 in the matrix" in read_topology(pastes.MANY_NICS).warnings


def test_labels_become_sockets_roots_and_switches():
    machine = read_topology(pastes.TWO_SOCKETS)
    kinds = Counter(node.kind for node in machine.nodes)

    # one switch above GPU0 and GPU1; one above two more for the PXB pair
    assert kinds == {"cpu": 2, "root": 2, "pcie_switch": 4}


def test_the_kind_of_gpu_decides_what_a_link_carries():
    # NVLink 4 has 25 GB/s a link, NVLink 5 has 50
    hopper, blackwell = (
        read_topology(pastes.HGX, hardware=find_hardware(n)) for n in ("h100-sxm", "b200")
    )

    assert hopper.pairs[0].bandwidth == 450e9
    assert blackwell.pairs[0].bandwidth == 900e9
    assert not any("GPU kind" in line for line in hopper.assumptions)


def test_two_gpus_of_a_switched_kind_have_switches():
    text = pastes.square("NV18", 2)

    assert links(read_topology(text)) == {("NVLINK", 18): 1}
    assert links(read_topology(text, hardware=find_hardware("h100-sxm"))) == {("NVSWITCH", 18): 1}


def test_pcie_generation_is_an_option():
    machine = read_topology(pastes.ODD_SPACING, pcie_generation=5)

    assert machine.pairs[0].bandwidth == 63e9
    assert not any("PCIe generation" in line for line in machine.assumptions)


def test_a_file_is_read_by_name(tmp_path):
    utf16 = tmp_path / "paste.txt"
    utf16.write_bytes(pastes.HGX.encode("utf-16"))

    machine = read_topology(utf16)

    assert machine.name == "paste.txt"
    assert links(machine) == {("NVSWITCH", 18): 28}
    assert read_topology(str(utf16)) == machine


MESHES = [("a100-sxm-80gb", 12, 4), ("a100-sxm-80gb", 12, 3), ("h100-sxm", 18, 4)]


@pytest.mark.parametrize(("kind", "every", "gpus"), MESHES)
def test_a_few_links_a_peer_are_a_mesh_even_of_gpus_that_usually_hang_on_switches(
    kind, every, gpus
):
    """All of a GPU's links are spread over its peers; a view of some GPUs shows the same counts."""
    each = every // (gpus - 1)
    for seen in range(2, gpus + 1):
        text = pastes.square(f"NV{each}", seen)
        told = read_topology(text, hardware=find_hardware(kind))
        assert links(told) == {("NVLINK", each): seen * (seen - 1) // 2}
        group = fabric(told, range(seen))
        assert (group.link, group.multicast) == ("nvlink", False)
        assert group.bandwidth == 25e9 * each * (seen - 1)


@pytest.mark.parametrize(("kind", "every", "gpus"), MESHES)
def test_a_whole_mesh_is_the_same_with_and_without_its_kind_and_in_xml(kind, every, gpus):
    each = every // (gpus - 1)
    buses = [f"0000:{i}1:00.0" for i in range(gpus)]
    level = {"a100-sxm-80gb": 80, "h100-sxm": 90}[kind]
    xml = topology_xml(
        *(
            cpu_xml(
                i,
                pci_xml(
                    bus, "gpu", gpu_xml(i, level, *(link_xml(b, each) for b in buses if b != bus))
                ),
            )
            for i, bus in enumerate(buses)
        )
    )
    text = pastes.square(f"NV{each}", gpus)
    known = find_hardware(kind)
    read = [read_topology(text), read_topology(text, hardware=known), read_topology(xml)]
    groups = [fabric(machine, range(gpus)) for machine in read]
    assert {(group.link, group.bandwidth, group.architecture) for group in groups} == {
        ("nvlink", 25e9 * every, known.device.architecture)
    }


def test_a_mesh_that_lost_a_link_stays_one():
    rows = pastes.square("NV4", 4).replace("GPU0\t X \tNV4", "GPU0\t X \tNV3")
    lame = rows.replace("GPU1\tNV4", "GPU1\tNV3")
    machine = read_topology(lame, hardware=find_hardware("a100-sxm-80gb"))
    assert links(machine) == {("NVLINK", 4): 5, ("NVLINK", 3): 1}
    assert fabric(machine, range(4)).bandwidth == 11 * 25e9


def test_most_of_the_links_of_a_gpu_are_a_switch_in_every_view():
    for kind, counts in (("a100-sxm-80gb", (12, 11, 8)), ("h100-sxm", (18, 16)), ("b200", (18,))):
        for count in counts:
            for seen in (2, 3, 8):
                text = pastes.square(f"NV{count}", seen)
                machine = read_topology(text, hardware=find_hardware(kind))
                assert {name for name, _ in links(machine)} == {"NVSWITCH"}


def test_a_second_paste_of_the_machine_adds_its_nics():
    bare = "     GPU0 GPU1\nGPU0  X   NV4\nGPU1 NV4   X\n"
    whole = "     GPU0 GPU1 NIC0\nGPU0  X   NV4 PIX\nGPU1 NV4   X  SYS\nNIC0 PIX SYS   X\n"
    other = whole.replace("NIC0", "NIC1")
    alone = read_topology(whole)

    for text in (bare + "\n" + whole, whole + "\n" + bare):
        assert read_topology(text).pairs == alone.pairs
    assert read_topology(whole + "\n" + other).pairs == alone.pairs
