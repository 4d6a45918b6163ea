"""XML of NCCL and nvidia-smi gives the tree it nests, the links it lists, and what is slow."""

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
import testpastes as pastes
from testpastes import cpu_xml, gpu_xml, link_xml, net_xml, pci_xml, topology_xml

from topology.base import InputError
from topology.base.table import document
from topology.catalogue import all_hardware, find_hardware
from topology.drawing import parts
from topology.drawing.report import tree
from topology.machine import fabric, machine_of
from topology.machine.paths import PathType, path_types
from topology.readers import read_topology


def kind(machine, a, b):
    return next(p for p in machine.pairs if {p.a, p.b} == {a, b})


def test_nested_switches_nvswitches_and_nics():
    machine = read_topology(pastes.switched_xml())
    types = path_types(machine)

    assert [gpu.hardware for gpu in machine.gpus] == ["h100-sxm"] * 4
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 1, 1]
    # 4 + 5 + 4 + 5 links to four NVSwitches
    peers = [kind(machine, "GPU0", f"GPU{i}") for i in (1, 2, 3)]
    assert {(pair.kind, pair.count) for pair in peers} == {("NVSWITCH", 18)}
    assert kind(machine, "GPU2", "NIC2").kind == "PIX"
    assert kind(machine, "GPU2", "NIC2").bandwidth == 50e9  # the NIC, not the 63 GB/s of its slot
    assert kind(machine, "GPU2", "NIC3").kind == "PHB"
    assert types["GPU0", "NIC3"] == PathType.PXN
    assert machine.nics[1].device == "mlx5_1"
    assert not machine.warnings


def test_direct_nvlinks_are_read_once_from_both_ends():
    buses = [f"0000:{i}1:00.0" for i in range(3)]
    gpus = [
        pci_xml(bus, "gpu", gpu_xml(i, 80, *(link_xml(b, 4) for b in buses if b != bus)))
        for i, bus in enumerate(buses)
    ]
    machine = read_topology(topology_xml(*(cpu_xml(i, gpu) for i, gpu in enumerate(gpus))))

    assert Counter((p.kind, p.count, p.bandwidth) for p in machine.pairs) == {
        ("NVLINK", 4, 100e9): 3
    }


def test_rows_per_peer_that_stand_for_switches_are_not_added_up():
    buses = [f"0000:{i}1:00.0" for i in range(4)]
    gpus = [
        pci_xml(
            bus, "gpu", gpu_xml(i, 100, *(link_xml(b, 18, switch=True) for b in buses if b != bus))
        )
        for i, bus in enumerate(buses)
    ]
    machine = read_topology(topology_xml(cpu_xml(0, *gpus)))

    assert {(p.kind, p.count, p.bandwidth) for p in machine.pairs} == {("NVSWITCH", 18, 900e9)}


def test_links_to_oneself_are_left_out_with_a_warning():
    looped = gpu_xml(0, 80, link_xml("0001:00:00.0", 12))
    text = topology_xml(
        cpu_xml(0, pci_xml("0001:00:00.0", "gpu", looped, speed="", width=0)),
        cpu_xml(1, pci_xml("0002:00:00.0", "gpu", gpu_xml(1, 80), speed="", width=0)),
    )
    machine = read_topology(text)

    assert kind(machine, "GPU0", "GPU1").kind == "SYS"
    assert any("lead back to itself" in line for line in machine.warnings)
    assert any("no link speed" in line for line in machine.assumptions)


def test_coherent_links_reach_the_processor():
    c2c = '<c2c bw="40000" count="10"/>'
    text = topology_xml(
        cpu_xml(
            0,
            pci_xml("0008:01:00.0", "gpu", gpu_xml(0, 90, c2c)),
            pci_xml("0000:02:00.0", "nic", net_xml("mlx5_0", 0, 400000)),
            vendor="arm",
        )
    )
    machine = read_topology(text)
    edge = next(edge for edge in machine.edges if edge.kind == "c2c")

    assert edge.bandwidth.value == 400e9  # ten links of 40,000 MB/s
    assert "C2C 400 GB/s" in "\n".join(tree(machine))
    link = {"a": "GPU0", "b": "CPU0", "kind": "C2C", "bandwidth_bytes_per_s": 400e9}
    assert (
        link.items()
        <= next(row for row in machine.to_dict()["links"] if row["kind"] == "C2C").items()
    )
    again = read_topology(json.dumps(machine.to_dict()))
    assert [e.bandwidth.value for e in again.links_of("GPU0", "c2c")] == [400e9]
    assert path_types(machine)["GPU0", "NIC0"] == PathType.P2C


def test_the_link_of_an_idle_gpu_does_not_rule():
    """NVIDIA/nccl#2202: a GB10 shows 2.5 GT/s; its wireless port says nothing of it either."""
    text = topology_xml(
        cpu_xml(
            0,
            pci_xml("000f:01:00.0", "gpu", gpu_xml(0, 121), speed="2.5 GT/s PCIe"),
            pci_xml("0009:01:00.0", "nic", net_xml("wlan0", 0, 10000), speed="5.0 GT/s PCIe"),
            vendor="arm",
        )
    )
    machine = read_topology(text)

    assert [edge.generation for edge in machine.links_of("GPU0", "pcie")] == [5]
    assert [edge.generation for edge in machine.links_of("NIC0", "pcie")] == [2]


def test_a_frame_without_gpu_elements_counts_gpus_by_class():
    text = topology_xml(
        *(
            cpu_xml(
                s,
                *(pci_xml(f"000{4 * s + i}:00:00.0", "gpu", speed="16 GT/s") for i in range(4)),
                pci_xml(f"010{s}:00:00.0", "nic", speed="16 GT/s"),
            )
            for s in (1, 0)
        )
    )
    machine = read_topology(text)
    meshed = read_topology(text, hardware=find_hardware("v100-sxm"))

    assert Counter(p.kind for p in machine.pairs if p.b.startswith("GPU")) == {"PHB": 12, "SYS": 16}
    assert [gpu.bus for gpu in machine.gpus][:2] == ["0000:00:00.0", "0001:00:00.0"]
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Counter(p.kind for p in meshed.pairs if p.b.startswith("GPU"))["NVLINK"] == 16
    assert not any(p.read for p in meshed.pairs if p.kind == "NVLINK")


def test_a_frame_without_gpus_is_filled_by_the_kind():
    switch = '<pci busid="0000:{0}5:00.0"><pci busid="0000:{0}f:00.0" link_speed="32 GT/s"/></pci>'
    text = topology_xml(
        *(cpu_xml(s, *(switch.format(2 * s + i) for i in range(2))) for s in (0, 1))
    )

    empty = read_topology(text)
    filled = read_topology(text, hardware=find_hardware("gb200"))

    assert not empty.gpus
    assert any("no GPU in the file" in line for line in empty.warnings)
    assert [gpu.numa for gpu in filled.gpus] == [0, 0, 1, 1]
    assert fabric(filled, range(4)).link == "nvswitch"


def test_slow_uplinks_and_narrow_ports_are_named():
    gpu = pci_xml("0000:02:00.0", "gpu", gpu_xml(0, 90), width=8)
    text = topology_xml(cpu_xml(0, pci_xml("0000:01:00.0", "switch", gpu, speed="5.0 GT/s PCIe")))
    machine = read_topology(text)

    assert any("generation 2, what hangs on it at 5" in line for line in machine.warnings)
    assert any("8 PCIe lanes" in line for line in machine.warnings)


def test_ports_on_several_processors_are_one_nic():
    gpus = [pci_xml(f"0000:0{i}:00.0", "gpu", gpu_xml(i, 89)) for i in range(2)]
    text = topology_xml(*(cpu_xml(i, gpus[i], net_xml("veth0", 1, 10000)) for i in range(2)))
    machine = read_topology(text)

    assert len(machine.nics) == 1
    assert machine.nics[0].virtual
    assert {kind(machine, f"GPU{i}", "NIC0").kind for i in range(2)} == {"PHB"}


def test_hosts_are_told_apart_by_their_hash():
    links = [link_xml("fffffff:ff:ff.0", 18, switch=True)]
    text = topology_xml(
        *(
            cpu_xml(0, pci_xml(f"000{h}:01:00.0", "gpu", gpu_xml(h, 100, *links)), host=f"0x{h}")
            for h in (1, 2)
        )
    )
    machine = read_topology(text)

    assert machine.to_dict()["nodes"] == 2
    assert [(p.kind, p.count) for p in machine.pairs] == [("NVSWITCH", 18)]
    assert fabric(machine, range(2)).nodes == 1  # one NVLink domain


def test_graphs_tell_the_paths_that_nccl_took():
    machine = read_topology(pastes.GRAPHS)

    assert len(machine.gpus) == 3
    assert machine.nccl_graphs[0].name == "ring"
    assert machine.nccl_graphs[0].channels == 2
    assert {(p.kind, p.bandwidth, p.read) for p in machine.pairs} == {("SYS", 24e9, False)}


def test_graphs_as_lines():
    lines = ["ring id=0 nchannels=16 speedintra=45 typeintra=NVL", "tree id=1 nchannels=8"]
    machine = read_topology("\n".join(lines))
    found = [(graph.name, graph.channels, graph.intra) for graph in machine.nccl_graphs]

    assert found == [("ring", 16, 45e9), ("tree", 8, 0.0)]


def test_nvidia_smi_xml_gives_kind_memory_and_ports():
    text = pastes.smi_xml(
        pastes.smi_gpu_xml("00000000:01:00.0", "NVIDIA RTX A6000", 49140, lanes="8x"),
        pastes.smi_gpu_xml("00000000:02:00.0", "NVIDIA RTX A6000", 49140, now=1, state="P8"),
    )
    machine = read_topology(text)

    assert [gpu.hardware for gpu in machine.gpus] == ["rtx-a6000"] * 2
    assert machine.gpus[0].memory == 49140 * 2**20
    assert machine.pairs[0].bandwidth == 15.75e9  # eight lanes of the fourth generation
    assert "GPU0 runs on 8 of 16 PCIe lanes" in machine.warnings
    assert not any("generation 1" in line for line in machine.warnings)  # idle, not slow


def test_nvidia_smi_xml_names_slow_links_and_mig():
    slow = pastes.smi_gpu_xml("1", "NVIDIA H100 80GB HBM3", 81559, now=1, mig="Enabled")
    machine = read_topology(pastes.smi_xml(slow))

    assert "1 runs at PCIe generation 1 of 4" in machine.warnings
    assert machine.gpus[0].mig


def test_unknown_products_keep_their_name_and_architecture():
    machine = read_topology(pastes.smi_xml(pastes.smi_gpu_xml("1", "NVIDIA RTX A4000", 16376)))

    assert machine.gpus[0].hardware is None
    assert machine.gpus[0].architecture == "ampere"
    assert "NVIDIA RTX A4000 is not in the catalogue" in machine.assumptions[0]


def test_xml_between_other_lines_keeps_its_line_numbers():
    text = "$ cat topo.xml\n" + pastes.GRAPHS.replace('nchannels="2"', 'nchannels="two"') + "\n$ "

    with pytest.raises(ValueError, match="XML line 3: channels or speeds"):
        read_topology(text)


TEXTS = [text for text in vars(pastes).values() if isinstance(text, str) and "GPU0" in text]
XML = [pastes.switched_xml(), pastes.GRAPHS, pastes.smi_xml(pastes.smi_gpu_xml("1", "L4", 1))]
PASTED = f"hosts = 1\nhardware = 'v100-sxm'\ntopology = '''\n{pastes.DEGRADED}'''\n"
FILES = ["hosts = 1\nhardware = 'h20'", PASTED]


def test_what_was_written_is_read_again():
    """The same machine, of every form of text and of all hardware that has a name."""
    read = []
    for text in (*TEXTS, pastes.cube_mesh(), *XML, *FILES):
        with suppress(InputError):
            read.append(read_topology(text))
    assert len(read) > len(TEXTS)
    for machine in (*read, *map(machine_of, all_hardware().values())):
        again = read_topology(json.dumps(machine.to_dict()))
        assert again == replace(machine, name="machine")


def test_rows_that_somebody_changed_count_before_the_graph():
    written = read_topology(pastes.PAIRS, hardware=find_hardware("rtx-a6000")).to_dict()
    written["links"][0]["bandwidth_bytes_per_s"] = 1e9
    again = read_topology(json.dumps(written))

    assert (again.pairs[0].bandwidth, again.pairs[0].basis) == (1e9, "told")


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("edges", {"b": "nowhere"}),
        ("edges", {"count": 0}),
        ("edges", {"kind": "rope"}),
        ("edges", {"bandwidth": {"value": 1e30, "kind": "derived", "source": "x"}}),
        ("gpus", {"name": "GPU1"}),
        ("gpus", {"capability": "80"}),
        ("gpus", {"host": 1}),
        ("nodes", {"colour": "red"}),
    ],
)
def test_a_graph_that_could_not_have_been_written_is_refused(part, changed):
    written = read_topology(pastes.PAIRS).to_dict()
    written["graph"][part][0] |= changed
    with pytest.raises(InputError, match="JSON: graph: "):
        read_topology(json.dumps(written))


def test_names_in_files_of_ours_cannot_write_to_a_terminal():
    text = json.dumps(read_topology(pastes.PAIRS).to_dict())
    machine = read_topology(text.replace("GPU0", "GPU\\u001b[2J"))

    assert machine.gpus[0].name == "GPU\\x1b[2J"
    assert "\x1b" not in document(parts(machine))
