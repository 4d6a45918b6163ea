"""What is shown of a machine is complete, self-contained and safe to put in a page."""

from xml.etree import ElementTree as ET

import pytest
import testpastes as pastes

from topology.base import InputError
from topology.base.page import web
from topology.base.table import document
from topology.base.table import terminal as in_terminal
from topology.catalogue import find_hardware
from topology.drawing.picture import svg
from topology.drawing.report import parts, summary
from topology.machine import machine_of
from topology.readers import read_topology
from topology.readers.detect import detect, machine_from, snapshot

MACHINES = {
    "paste": read_topology(pastes.GLUED_AND_CUT),
    "xml": read_topology(pastes.switched_xml()),
    "graphs": read_topology(pastes.GRAPHS),
    "cluster": machine_of(find_hardware("gb200"), 18),
    "mesh": read_topology(pastes.cube_mesh()),
    "frame": read_topology('<system><cpu numaid="0"/></system>'),
    "wide": read_topology(pastes.square("NV6", 16)),
}
every_machine = pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))


def terminal(machine):
    return in_terminal(parts(machine), 200)


@every_machine
def test_the_terminal_shows_every_gpu_and_note(machine):
    text = terminal(machine)

    assert all(gpu.name in text for gpu in machine.gpus)
    assert all(note in " ".join(text.split()) for note in (*machine.assumptions, *machine.warnings))


@every_machine
def test_the_drawing_is_xml_without_links_or_scripts(machine):
    drawing = svg(machine)
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(drawing).iter()}

    assert tags <= {"svg", "title", "path", "rect", "text"}
    assert drawing.count('"middle">GPU') == len(machine.gpus)


@every_machine
def test_the_page_and_the_markdown_say_the_same(machine):
    page, text = web("", parts(machine)), document(parts(machine))

    assert summary(machine) in text
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert all(line in text for line in machine.warnings)


def test_names_from_a_text_cannot_break_the_page():
    text = pastes.RANGES.replace("mlx5_bond_0", "a/b-c")
    nasty = text.replace("GPU Affinity", "") + "GPU 0: NVIDIA <script>alert(1)</script>\n"
    pasted = "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n" + nasty.partition("GPU 0")[2]
    page = web("", parts(read_topology(pasted)))

    assert "<script>" not in page


def test_nccl_view_marks_staged_pairs():
    text = terminal(read_topology(pastes.PAIRS))

    assert "NVL 48" in text  # four links of 12 GB/s
    assert "PHB* 24" in text


def gpu(**more):
    return {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80e9,
        "lanes": 16,
        "most_lanes": 16,
        **more,
    }


def test_a_snapshot_of_nvml_becomes_a_machine():
    """Four GPUs on two sockets, eighteen NVLinks each to switches."""
    seen = {
        "gpus": [gpu(bus=f"0000000{i}:00:00.0", numa=i // 2, generation=5) for i in range(4)],
        "pairs": [
            {"a": a, "b": b, "level": 40 if a // 2 == b // 2 else 50, "peer": 0}
            for a in range(4)
            for b in range(a + 1, 4)
        ],
        "nvlinks": [
            {"gpu": g, "remote": f"switch{n}", "kind": 2} for g in range(4) for n in range(18)
        ],
    }
    machine = machine_from(seen)

    assert {(p.kind, p.count, p.bandwidth) for p in machine.pairs} == {("NVSWITCH", 18, 450e9)}
    assert [g.numa for g in machine.gpus] == [0, 0, 1, 1]
    assert {peer.state for peer in machine.peers} == {"OK"}
    assert sum(node.kind == "cpu" for node in machine.nodes) == 2


def test_a_snapshot_with_bridges_counts_links_once():
    seen = {
        "gpus": [gpu(name="NVIDIA GeForce RTX 3090", bus=str(i)) for i in range(2)],
        "pairs": [{"a": 0, "b": 1, "level": 30, "peer": 0}],
        "nvlinks": [
            {"gpu": g, "remote": str(1 - g), "kind": 0} for g in range(2) for _ in range(4)
        ],
    }
    machine = machine_from(seen)

    assert [(p.kind, p.count, p.bandwidth) for p in machine.pairs] == [("NVLINK", 4, 56.25e9)]


def test_a_snapshot_may_be_nearly_empty():
    machine = machine_from({"gpus": [{"name": None}, {}]})

    assert len(machine.gpus) == 2
    with pytest.raises(InputError, match="no GPU"):
        machine_from({})


def test_detection_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)

    with pytest.raises(InputError, match="nvidia-ml-py"):
        snapshot()


class Nvml:
    """Bindings of one card that stop answering at the call of that name."""

    NVMLError = RuntimeError

    def __init__(self, lost):
        self.lost = lost

    def __getattr__(self, name):
        if name == "nvmlDeviceGetNvLinkState":
            raise AttributeError(name)  # bindings of some age

        def ask(*_):
            if name == self.lost:
                raise self.NVMLError("GPU is lost")
            return {"nvmlDeviceGetCount": 1, "nvmlDeviceGetName": b"NVIDIA L4"}.get(name)

        return ask


@pytest.mark.parametrize("lost", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_a_gpu_that_is_lost_while_it_is_asked_is_one_line(lost, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Nvml(lost))

    with pytest.raises(InputError, match="got the error 'GPU is lost' from NVML, wanted a list"):
        snapshot()


def test_what_nvml_cannot_say_is_left_out(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Nvml("nvmlShutdown"))

    assert detect().gpus[0].hardware == "l4"
    assert detect(hardware=find_hardware("l4"), pcie_generation=3).edges[0].generation == 3
    with pytest.raises(InputError, match="this machine says that GPU0 is NVIDIA L4: wanted l4"):
        detect(hardware=find_hardware("h100-sxm"))
    with pytest.raises(InputError, match="pcie_generation: got 9"):
        detect(pcie_generation=9)


def test_an_assumed_rate_of_nics_is_listed_and_not_read():
    names = "\tGPU0\tGPU1\tNIC0"
    paste = f"{names}\nGPU0\t X \tPHB\tPIX\nGPU1\tPHB\t X \tSYS\nNIC0\tPIX\tSYS\t X "
    machine = read_topology(paste, hardware=find_hardware("l40s"))
    links = {(link["a"], link["b"]): link["read"] for link in machine.to_dict()["links"]}

    assert "NICs of 25 GB/s, as in the usual server of l40s" in machine.assumptions
    assert links == {("GPU0", "GPU1"): True, ("GPU0", "NIC0"): False, ("GPU1", "NIC0"): False}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("l40s", "as on 8 L40S that were measured: ai-dynamo/aiconfigurator#1346"),
        ("rtx-4090", "the driver refuses it on consumer cards"),
        ("rtx-3090", "the driver refuses it without a bridge"),
        ("a10g", "taken as off on such cards"),
    ],
)
def test_why_peers_have_no_access_is_what_the_catalogue_says(name, why):
    machine = read_topology(pastes.square("PHB", 2), hardware=find_hardware(name))

    said = f"no peer access for 1 of 1 GPU pairs ({why}): copies go through the host"
    assert said in machine.warnings


def test_one_is_not_several():
    machine = read_topology(pastes.square("PHB", 2), hardware=find_hardware("l40s"))

    assert summary(machine).startswith("2 GPUs (l40s), 0 NICs")
    assert summary(machine_of(find_hardware("l4"))).startswith("8 GPUs (l4), 1 NIC,")
