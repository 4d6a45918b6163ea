"""What people measured, told or set: bandwidths of pairs, peer states, variables, MIG slices."""

import json

import pytest
from machinetexts import crossed_pairs, matrix

from topology.base import TopologyError
from topology.catalogue import all_hardware, by_product, find_hardware, gpu_names
from topology.machine import concerns, environment_concerns, fabric, machine_of, survey_of
from topology.machine.paths import refused_pairs
from topology.readers import read_topology
from topology.readers.cluster import read_cluster

SERVER = machine_of(find_hardware("rtx-pro-6000"))
TOML = 'name = "box"\nhosts = 1\nhardware = "rtx-pro-6000"\n'


def edited(machine, a, b, value, **more):
    """Write a machine and change what one link carries."""
    table = machine.to_dict()
    for link in table["links"]:
        if {link["a"], link["b"]} == {a, b}:
            link.update({"bandwidth_bytes_per_s": value} | more)
    return json.dumps(table)


def pair(machine, a, b):
    return next(one for one in machine.pairs if {one.a, one.b} == {a, b})


def test_an_edited_bandwidth_stays_and_rules():
    told = read_topology(edited(SERVER, "GPU0", "GPU1", 6.5e9))

    assert (pair(told, "GPU0", "GPU1").bandwidth, pair(told, "GPU0", "GPU1").basis) == (
        6.5e9,
        "told",
    )
    assert fabric(told, (0, 1)).bandwidth == 6.5e9
    assert fabric(told, (0, 2)).bandwidth == fabric(SERVER, (0, 2)).bandwidth
    again = read_topology(json.dumps(told.to_dict()))
    assert again.pairs == told.pairs


def test_a_measured_copy_is_less_than_its_link():
    """A copy reaches 0.87 of a link (54.7 of 63 GB/s between two RTX PRO 6000)."""
    found = read_topology(edited(SERVER, "GPU0", "GPU1", 54.8e9, measured=True))

    assert fabric(found, (0, 1)).bandwidth == pytest.approx(63e9, rel=0.01)
    again = read_topology(json.dumps(found.to_dict()))
    assert pair(again, "GPU0", "GPU1").basis == "measured"


def test_a_faster_pair_widens_its_links():
    gen5 = read_topology(edited(machine_of(find_hardware("rtx-a6000")), "GPU0", "GPU1", 60e9))

    assert fabric(gen5, (0, 1)).bandwidth == 60e9


def test_a_slow_port_is_shared_by_all_that_cross_it():
    """A chipset slot at 6.5 GB/s: two flows out of it get half each."""
    table = json.loads(edited(SERVER, "GPU0", "GPU1", 6.5e9))
    for link in table["links"]:
        if "GPU0" in (link["a"], link["b"]) and link["b"].startswith("GPU"):
            link["bandwidth_bytes_per_s"] = 6.5e9
    known = survey_of(read_topology(json.dumps(table)))

    first = known.path("GPU0", "GPU1")[0]
    assert first == known.path("GPU0", "GPU5")[0]
    assert known.capacity[first] == 6.5e9


def test_measured_nvlink_counts():
    bridge = machine_of(find_hardware("h100-nvl"))
    slow = read_topology(edited(bridge, "GPU0", "GPU1", 150e9))

    assert fabric(slow, (0, 1)).bandwidth == 150e9
    switched = read_topology(edited(machine_of(find_hardware("h100-sxm")), "GPU0", "GPU1", 200e9))
    assert fabric(switched, (0, 1)).bandwidth == 200e9


def test_nothing_is_told_by_what_was_not_edited():
    for name in sorted(all_hardware()):
        machine = machine_of(find_hardware(name))
        again = read_topology(json.dumps(machine.to_dict()))

        assert {one.basis for one in again.pairs} <= {"kind"}, name


def test_lanes_and_peer_states_survive_writing():
    text = matrix(2, lambda a, b: "PHB") + "\n$ nvidia-smi topo -p2p p\n" + status("NS")
    machine = read_topology(text, hardware=find_hardware("rtx-a6000"))
    again = read_topology(json.dumps(machine.to_dict()))

    assert again.peers == machine.peers
    assert refused_pairs(again) == refused_pairs(machine) != ()


@pytest.mark.parametrize("value", [0, -1, "fast", True, 1e99])
def test_a_bandwidth_that_cannot_be_is_one_line(value):
    with pytest.raises(TopologyError, match="GPU0-GPU1: bandwidth_bytes_per_s is"):
        read_topology(edited(SERVER, "GPU0", "GPU1", value))


def test_a_file_gives_measured_pairs_and_labels():
    text = TOML + (
        '[[measured]]\nlabel = "SYS"\nbandwidth = "13.2 GB/s"\n'
        '[[measured]]\npair = ["GPU0", "GPU7"]\nbandwidth = "52 Gbit/s"\n'
    )
    machine = read_topology(text)

    assert pair(machine, "GPU0", "GPU4").bandwidth == 13.2e9
    assert pair(machine, "GPU0", "GPU7").bandwidth == 6.5e9
    assert pair(machine, "GPU0", "GPU1").basis == "kind"
    assert fabric(machine, (0, 4)).bandwidth == pytest.approx(13.2e9 / 0.87)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('[[measured]]\nlabel = "PXB"\nbandwidth = "1 GB/s"', "no such pair of GPUs, it has NODE"),
        ('[[measured]]\nbandwidth = "1 GB/s"', "expected a pair of GPUs or a label"),
        ('[[measured]]\nlabel = "SYS"\nbandwidth = "0 GB/s"', "wanted a bandwidth from 1 MB"),
        ('[[measured]]\nlabel = "SYS"\nbandwidth = "quick"', "quick"),
        ('[[measured]]\npair = ["GPU0"]\nbandwidth = "1 GB/s"', "expected a pair"),
    ],
)
def test_measured_tables_that_cannot_be_are_one_line(rows, said):
    with pytest.raises(ValueError, match=said):
        read_topology(TOML + rows)


REACHED = '[[measured]]\nop = "all_to_all"\nbus_bandwidth = "4 GB/s"\n'


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('[[measured]]\nop = "broadcast"\nbus_bandwidth = "1 GB/s"', "all_reduce or all_to_all"),
        (REACHED + "gpus = 99", "of 99 GPUs"),
        (REACHED + 'label = "SYS"', "expected op"),
        ('[[measured]]\nop = "all_to_all"', "measured: "),
    ],
)
def test_reached_tables_that_cannot_be_are_one_line(rows, said):
    with pytest.raises(ValueError, match=said):
        read_topology(TOML + rows)


def test_measured_must_be_tables():
    with pytest.raises(TopologyError, match="measured is"):
        read_cluster(TOML + "measured = 3")


def status(state):
    return f"\tGPU0\tGPU1\nGPU0\tX\t{state}\nGPU1\t{state}\tX\n"


@pytest.mark.parametrize(("letter", "heeded"), [("r", 1), ("w", 1), ("p", 1), ("a", 0), ("n", 0)])
def test_a_status_of_reads_writes_and_pcie_is_heeded(letter, heeded):
    text = f"$ nvidia-smi topo -p2p {letter}\n{status('NS')}"

    assert len(refused_pairs(read_topology(text, hardware=find_hardware("rtx-pro-6000")))) == heeded


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NCCL_P2P_LEVEL": "LOC"}, "peers are not used at all"),
        ({"NCCL_P2P_LEVEL": "0"}, "peers are not used at all"),
        ({"NCCL_P2P_LEVEL": "nvl"}, "over NVLink only"),
        ({"NCCL_P2P_DISABLE": "1"}, "go through the host"),
        ({"NCCL_SHM_DISABLE": "1"}, "talk over the network"),
    ],
)
def test_variables_that_hold_nccl_back_are_warned_of(variables, said):
    (line,) = environment_concerns(variables)

    assert said in line


def test_other_variables_are_no_concern():
    assert environment_concerns({"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}) == ()


def test_bridges_beside_slow_exchanges_get_the_level_that_keeps_to_them():
    bridged = read_topology(crossed_pairs(), hardware=find_hardware("rtx-a6000"))
    bare = read_topology(matrix(4, lambda a, b: "SYS"), hardware=find_hardware("rtx-a6000"))

    assert any("NCCL_P2P_LEVEL=NVL" in line for line in concerns(bridged))
    assert not any("NCCL_P2P_LEVEL" in line for line in concerns(bare))


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTX 5090 32GB", "rtx-5090"),
        ("DGX A100", "a100-sxm-40gb"),
        ("A100 SXM4 (ND96 v4)", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("V100-SXM2", "v100-sxm"),
        ("Tesla V100-PCIE-32GB", "v100-pcie"),
        ("RTX 2080 Ti 11GB", "rtx-2080-ti"),
        ("H100 SXM5 (NREL Kestrel, 4/node)", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GH200 120GB", "gh200"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA GeForce RTX 2080 SUPER", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A30", None),
    ],
)
def test_product_names_as_printed_and_as_written(product, name):
    assert by_product(gpu_names(), product) == name


def test_the_profile_of_a_slice_is_read_and_written():
    text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: x)\n  MIG 3g.40gb Device 0: (UUID: y)\n"
    machine = read_topology(text)

    assert (machine.gpus[0].mig, machine.gpus[0].slice) == (True, "3g.40gb")
    assert machine.gpus[0].memory == 40e9
    assert read_topology(json.dumps(machine.to_dict())).gpus[0].slice == "3g.40gb"
    both = read_topology(text + "  MIG 1g.10gb Device 1: (UUID: z)\n")
    assert (both.gpus[0].mig, both.gpus[0].slice) == (True, "")
