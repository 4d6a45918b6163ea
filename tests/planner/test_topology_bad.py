"""Machines that cannot be, and options that contradict them: one line, exit code 2."""

import json

import pytest
from machinetexts import matrix

from planner.command.cli import main

PAIR = matrix(2, lambda a, b: "SYS")
TOLD = "GPU 0: NVIDIA L4 (UUID: GPU-1)\nGPU 1: NVIDIA L4 (UUID: GPU-2)\n\n" + PAIR
DIGITS = "9" * 5000


def written(**gpu):
    first = {"name": "GPU0", "hardware": "l4", **gpu}
    link = {"a": "GPU0", "b": "GPU1", "kind": "SYS"}
    return json.dumps({"gpus": [first, {"name": "GPU1", "hardware": "l4"}], "links": [link]})


def unlinked(gpus):
    rows = [{"name": f"GPU{at}", "hardware": "h100-sxm"} for at in range(gpus)]
    return json.dumps({"gpus": rows, "links": []})


def cluster(hosts=2, nics=8, bandwidth="50 GB/s"):
    return (
        f'hosts = {hosts}\nhardware = "h100-sxm"\n'
        f'[network]\nnics = {nics}\nnic_bandwidth = "{bandwidth}"\n'
    )


def refused(capsys, *words):
    """Run a command that must fail on its input, and give the line it says."""
    code = main([*map(str, words)])
    said = capsys.readouterr()

    assert code == 2
    assert said.out == ""
    assert said.err.startswith("planner: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (written(hardware=[]), "JSON: GPU0: hardware: got '[]', wanted a name of the catalogue"),
        (written(hardware={}), "JSON: GPU0: hardware: got '{}', wanted a name of the catalogue"),
        (written(hardware="l4x"), "hardware 'l4x': did you mean l4"),
        (written(memory_bytes="24 GB"), "GPU0: memory_bytes: got '24 GB', wanted bytes"),
        (written(memory_bytes=10**400), "GPU0: memory_bytes: got '1000"),
        (written(memory_bytes=float("nan")), "memory_bytes: got 'nan', wanted bytes"),
        (written(memory_bytes=float("inf")), "memory_bytes: got 'inf', wanted bytes"),
        (written(memory_bytes=-1), "memory_bytes: got '-1', wanted bytes"),
        (written(memory_bytes=True), "memory_bytes: got 'True', wanted bytes"),
        (
            written(pcie_generation=99),
            "GPU0: pcie_generation: got 99, wanted a whole number from 1",
        ),
        (written(numa="x"), "JSON: numa: got 'x', wanted a whole number or null"),
        (unlinked(8), "JSON: links: got none beside 8 GPUs, wanted those they have"),
        (f'{{"gpus": [{DIGITS}], "links": []}}', "JSON: got a number of thousands of digits"),
        (cluster(hosts=DIGITS), "TOML: got a number of thousands of digits"),
        (cluster(hosts=100_000), "hosts is '100000': expected a whole number from 1 to 16384"),
        (cluster(nics=100_000), "nics is '100000': expected a whole number from 1 to 256"),
        (cluster(bandwidth="1e-300 B/s"), "nic_bandwidth: '1e-300 B/s': wanted a bandwidth from"),
        (cluster(bandwidth="1e300 B/s"), "nic_bandwidth: '1e300 B/s': wanted a bandwidth from"),
        (cluster(bandwidth="fast"), "nic_bandwidth: 'fast' is not a quantity in B/s"),
    ],
)
def test_machines_that_cannot_be_are_refused_by_every_command(text, line, tmp_path, capsys):
    path = tmp_path / "machine"
    path.write_text(text)

    assert line in refused(capsys, "topology", "show", path)
    assert line in refused(capsys, "collectives", "--topology", path)


@pytest.mark.parametrize("generation", [99, -1, 0, 7, DIGITS])
def test_no_command_takes_a_pcie_generation_that_is_none(generation, tmp_path, capsys):
    path = tmp_path / "topo.txt"
    path.write_text(PAIR)
    option = f"--pcie-generation={generation}"
    for words in (
        ("topology", "show", path, "--hardware", "l4"),
        ("topology", "show", "l4"),
        ("topology", "detect"),
        ("collectives", "--topology", path, "--hardware", "l4"),
        ("collectives",),
        ("recommend", "--model", "llama-3.1-8b"),
    ):
        assert "--pcie-generation: got" in refused(capsys, *words, option)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("topology", "show", "FILE", "--hardware", "rtx-4090"),
         "hardware: got rtx-4090, but topo.txt says that GPU0 is NVIDIA L4: wanted l4, or none"),
        (("collectives", "--topology", "FILE", "--hardware", "rtx-4090"), "wanted l4, or none"),
        (("topology", "show", "l4", "--hardware", "rtx-4090"),
         "hardware: got rtx-4090 beside l4, wanted one of the two"),
        (("topology", "show", "l4", "--hardware", "bogus"), "unknown hardware 'bogus'"),
        (("topology", "show", "FILE", "--hardware", "bogus"), "unknown hardware 'bogus'"),
        (("collectives", "--detect", "--hardware", "bogus"), "unknown hardware 'bogus'"),
        (("collectives", "--topology", "FILE", "--hardware", "bogus"), "unknown hardware 'bogus'"),
        (("topology", "detect", "--hardware", "bogus"), "unknown hardware 'bogus'"),
        (("collectives", "--detect", "--topology", "FILE"), "detect: got a topology too"),
        (("collectives", "--topology", "l4"), "got the name l4, wanted a file, or --hardware l4"),
        (("topology", "detect", "FILE"), "topology detect: got "),
        (("topology", "list", "l4"), "topology list: got 'l4', wanted no name"),
        (("topology", "show", "h100-sx"), "did you mean h100-sxm?"),
        (("topology", "show", "FILE", "--nodes", "0"), "nodes: got 0"),
        (("topology", "show", "FILE", "--nodes", "9999"), "nodes: got 9999"),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(words, line, tmp_path, capsys):
    path = tmp_path / "topo.txt"
    path.write_text(TOLD)

    assert line in refused(capsys, *(path if word == "FILE" else word for word in words))


def test_a_kind_of_another_generation_than_the_file_has_is_refused(tmp_path, capsys):
    path = tmp_path / "system.xml"
    path.write_text(
        '<system><cpu numaid="0"><pci busid="1" class="0x030200">'
        '<gpu dev="0" sm="80" rank="0"/></pci></cpu></system>'
    )

    line = refused(capsys, "topology", "show", path, "--hardware", "h100-pcie")
    assert "got h100-pcie, of compute capability 9.0" in line
    assert "says that GPU0 has 8" in line
    assert main(["topology", "show", str(path), "--hardware", "a100-pcie-80gb"]) == 0


def test_a_kind_fills_in_for_the_gpus_that_a_file_does_not_know(tmp_path, capsys):
    path = tmp_path / "topo.txt"
    path.write_text(TOLD.replace("GPU 1: NVIDIA L4", "GPU 1: NVIDIA Unheard 9"))
    code = main(["topology", "show", str(path), "--hardware", "rtx-4090", "--format", "json"])
    gpus = json.loads(capsys.readouterr().out)["gpus"]

    assert code == 0
    assert [gpu["hardware"] for gpu in gpus] == ["l4", "rtx-4090"]


def test_mixed_gpus_are_read_back_from_json(tmp_path, capsys):
    path = tmp_path / "mixed.json"
    path.write_text(written(hardware="rtx-4090"))
    main(["topology", "show", str(path), "--format", "json"])
    gpus = json.loads(capsys.readouterr().out)["gpus"]

    assert [gpu["hardware"] for gpu in gpus] == ["rtx-4090", "l4"]


def test_a_file_of_one_host_can_be_repeated(tmp_path, capsys):
    path = tmp_path / "topo.txt"
    path.write_text(TOLD)
    main(["topology", "show", str(path), "--nodes", "4", "--format", "json"])

    assert json.loads(capsys.readouterr().out)["nodes"] == 4


def test_a_cluster_too_large_to_list_says_so(tmp_path, capsys):
    path = tmp_path / "cluster.toml"
    path.write_text(cluster(hosts=16384, nics=256))

    assert main(["topology", "show", str(path)]) == 0
    capsys.readouterr()
    assert "devices and links" in refused(capsys, "topology", "show", path, "--format", "json")
