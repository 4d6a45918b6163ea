"""A GPU that no catalogue knows is one file, which every command and function takes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run

import planner
from topology.base import InputError
from topology.catalogue import all_devices, all_hardware, find_hardware
from topology.machine import machine_of
from topology.readers import read_topology

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "my_gpu.toml"
TEXT = EXAMPLE.read_text(encoding="utf-8")


def put(folder, text, name="own.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def like(name):
    """The file that says of a GPU of the catalogue what the catalogue says."""
    tables = (ROOT / "topology" / "data" / f"{kind}.toml" for kind in ("devices", "hardware"))
    device, node = (
        re.search(
            rf"^\[{name}\]\n(.*?)(?=^\[(?!{name}\.)|\Z)", path.read_text(), re.MULTILINE | re.DOTALL
        )[1]
        for path in tables
    )
    device = device.replace(f"[{name}.peaks]", "[device.peaks]")
    return f"[device]\n{device}\n[hardware]\n{re.sub('device = .*', '', node)}"


def test_the_example_is_read_and_drawn():
    own = find_hardware(EXAMPLE)

    assert (own.name, own.device.name) == (str(EXAMPLE), str(EXAMPLE))
    assert (own.gpus, own.device.peak("fp8").value) == (4, 900e12)
    assert own.device.l2.source.startswith("half of")
    assert find_hardware(str(EXAMPLE)) == own
    assert len(machine_of(own).gpus) == 4


def test_a_gpu_beside_its_processor_is_as_fast_as_its_memory():
    """A token of one request takes as long as its weights take to read, and little more."""
    spark = ROOT / "examples" / "dgx_spark.toml"
    plan = planner.estimate("llama-3.1-8b", gpus=1, hardware=spark, plan="single")
    weights = 2 * 7.5e9  # B, of all but the embedding, in 16 bits

    assert 0.75 < weights / 273e9 / plan.step_s < 1


@pytest.mark.parametrize("name", ["h100-sxm", "l40s", "gb200", "t4", "v100-sxm"])
def test_a_copy_of_the_catalogue_prices_as_its_generation(name, tmp_path):
    """Whatever has no kernel parameters of its own costs what the catalogue's GPU does."""
    own = find_hardware(put(tmp_path, like(name)))
    known = all_hardware()[name]
    link = (known.link_bandwidth, known.nic_bandwidth, known.exchange)
    precision = known.device.peaks[0][0]

    assert (own.link_bandwidth, own.nic_bandwidth, own.exchange) == link
    assert own.device.peaks == known.device.peaks
    assert own.fabric(2) == known.fabric(2)
    seconds = [
        planner.matmul(4096, 4096, 4096, hardware=one, precision=precision, profile="none")
        for one in (own.name, name)
    ]
    assert seconds[0] == seconds[1]
    at_once = [
        planner.collective("all_reduce", 2**20, 4, hardware=one, profile="none")
        for one in (own.name, name)
    ]
    assert at_once[0] == at_once[1]


def test_a_node_of_ones_own_with_a_gpu_of_the_catalogue(tmp_path):
    node = TEXT[TEXT.index("[hardware]") :].replace("gpus = 4", 'gpus = 4\ndevice = "l40s"')
    own = find_hardware(put(tmp_path, node))

    assert own.device == all_devices()["l40s"]
    assert own.network == "roce"


def test_python_takes_the_file_as_a_path():
    plan = planner.estimate("flux.1-dev", gpus=2, hardware=EXAMPLE, plan="ulysses2")

    assert plan.to_dict()["hardware"] == str(EXAMPLE)
    assert planner.recommend("flux.1-dev", gpus=2, hardware=EXAMPLE).to_dict()["plans"]
    assert planner.collective("all_gather", 2**20, gpus=4, hardware=EXAMPLE) > 0
    assert planner.matmul(512, 512, 512, hardware=EXAMPLE, precision="fp8") > 0
    assert planner.attention(8, 512, 512, 64, hardware=EXAMPLE) > 0
    pasted = planner.read_topology("     GPU0 GPU1\nGPU0  X   PIX\nGPU1 PIX   X", hardware=EXAMPLE)
    assert {gpu.hardware for gpu in pasted.gpus} == {str(EXAMPLE)}


@pytest.mark.parametrize(
    "command",
    [
        ("recommend", "--model", "flux.1-dev", "--gpus", "2", "--hardware"),
        ("estimate", "--model", "flux.1-dev", "--gpus", "2", "--plan", "ring2", "--hardware"),
        ("simulate", "--model", "flux.1-dev", "--gpus", "2", "--plan", "ring2", "--hardware"),
        ("capacity", "--model", "flux.1-dev", "--rate", "6/min", "--slo", "60s", "--hardware"),
        ("collectives", "--gpus", "4", "--bytes", "1MiB", "--hardware"),
        ("topology", "show"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_every_command_takes_a_file_from_outside(command, tmp_path):
    path = put(tmp_path, TEXT)

    code, out, err = run(*command, path, "--format", "json")

    assert (code, err) == (0, "")
    assert path in json.dumps(json.loads(out))


LINE = 'compute_capability = "9.0"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('memory = "48 GiB"', "", "device: got no memory, wanted kind, source"),
        ('memory = "48 GiB"', 'memory = "48"', "device.memory: '48' is not a quantity in B"),
        ('memory = "48 GiB"', 'memory = "48 B"', "device.memory: got 48, wanted 1e\\+08 to"),
        ('memory_bandwidth = "1.8 TB/s"', 'memory_bandwidth = "0 TB/s"', "bandwidth: got 0"),
        ('memory_bandwidth = "1.8', 'memory_bandwith = "1.8', "did you mean memory_bandwidth"),
        ('kind = "assumed"', 'kind = "guessed"', "'guessed' is not one of datasheet"),
        ('source = "a usual server with PCIe 5.0 x16"', 'source = " "', "has no source"),
        ('architecture = "hopper"', 'architecture = "hoper"', "did you mean hopper"),
        ('architecture = "hopper"', 'architecture = "ada"', r"got 9.0 \(ada\), wanted one of"),
        (LINE, 'compute_capability = "9.9"', "got 9.9"),
        (LINE, "compute_capability = [9]", "compute_capability: got"),
        ('bf16 = "450 TFLOP/s"\nfp16 = "450 TFLOP/s"', "", "peaks: got fp8, wanted bf16 or fp16"),
        ('fp8 = "900', 'fp4 = "900', "device.peaks: unknown key 'fp4'"),
        ("[device.peaks]", "[device.peak]", "did you mean peaks"),
        ("gpus = 4", "gpus = true", "hardware.gpus: got True, wanted a whole number"),
        ("gpus = 4", 'gpus = 4\ndevice = "l40s"', "got a name beside a table"),
        ('multiprocessors = "66"', "multiprocessors = 66.5", "multiprocessors: got 66.5, wanted a"),
        ("multicast = false", "multicast = true", "multicast: got true with pcie, wanted nvswitch"),
        ("domain = 4", "domain = 3", "domain: got 3 GPUs that share pcie, wanted a divisor"),
        ("peer_to_peer = true", 'peer_to_peer = "no"', "wanted true or false"),
        ("pcie_generation = 5", "pcie_generation = 9", "wanted a whole number from 1 to 6"),
        ('network = "roce"', "network = {}", "hardware.network"),
        ("[hardware]", "[hardwares]", "did you mean hardware"),
        ("[hardware]", "[hardware", "TOML: "),
        ("gpus = 4", "gpus = 1" + "0" * 5000, "TOML: got a number"),
        (TEXT, "hardware = 3", "hardware: got 3, wanted a table"),
        (TEXT, "", "got no hardware, wanted hardware"),
        (TEXT, "\0", "TOML: "),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_that_names_the_place(old, new, message, tmp_path):
    assert old in TEXT
    path = put(tmp_path, TEXT.replace(old, new))

    code, out, err = run("collectives", "--gpus", "2", "--hardware", path)

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("planner: hardware ")
    assert re.search(message, err), err


def test_what_is_no_file_of_hardware_is_refused(tmp_path):
    for name, message in (
        (str(tmp_path / "none.toml"), "No such file"),
        (str(tmp_path), "not a file but a folder"),
        ("h100", "did you mean h100-sxm"),
        (put(tmp_path, TEXT, "two\nlines.toml"), "wanted a path of printable characters"),
        (put(tmp_path, TEXT, "\x1b[31mred.toml"), "wanted a path of printable characters"),
    ):
        with pytest.raises(InputError, match=message):
            find_hardware(name)
    with pytest.raises(InputError, match="got hardware, wanted a machine: give it as hardware"):
        planner.read_topology(EXAMPLE)


def test_a_file_that_changes_is_read_again(tmp_path):
    path = put(tmp_path, TEXT)
    before = find_hardware(path).gpus
    put(tmp_path, TEXT.replace("gpus = 4", "gpus = 8"))

    assert (before, find_hardware(path).gpus) == (4, 8)


@pytest.mark.parametrize("name", ["gpu.toml", "GPU.toml"])
@pytest.mark.parametrize("changed", [False, True])
def test_a_machine_of_ones_own_gpus_is_read_again_beside_the_file_that_they_are_of(
    tmp_path, name, changed
):
    file = tmp_path / name
    file.write_text(EXAMPLE.read_text())
    machine = read_topology("     GPU0 GPU1\nGPU0  X   PIX\nGPU1 PIX   X", hardware=file)
    written = machine.to_dict()
    if changed:
        written["gpus"][0]["numa"] = 1  # then rows are read, not the graph

    text = json.dumps(written)
    again = read_topology(text, hardware=file)

    assert [gpu.hardware for gpu in again.gpus] == [str(file)] * 2
    assert (again == replace(machine, name="machine")) is not changed
    with pytest.raises(InputError, match=r"GPU0: unknown hardware .* the file that --hardware"):
        read_topology(text)
