"""Requests that bring a machine: what is asked back, which GPUs are used, and cases from users."""

import json

import numpy as np
import pytest
import testpastes as pastes
from commands import run
from machinetexts import MIXED, crossed_pairs, far_apart, matrix, two_sockets

import planner
from costmodels.collectives import basis, collective_time
from planner.command.cli import main
from planner.request.subset import read_machine
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, InputError
from topology.catalogue import find_hardware
from topology.machine import fabric
from topology.readers import read_topology

pytestmark = pytest.mark.usefixtures("asked_once")

PAIR = matrix(2, lambda a, b: "PHB")
SLICES = (
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
    "  MIG 3g.40gb Device 0: (UUID: MIG-1)\n"
    "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n"
    "  MIG 3g.40gb Device 0: (UUID: MIG-2)\n\n"
) + matrix(2, lambda a, b: "PHB")


def estimated(model, plan, text, hardware, **more):
    gpus = parse_plan(plan).gpus
    return planner.estimate(model, gpus=gpus, plan=plan, topology=text, hardware=hardware, **more)


def links(text, hardware):
    """All GPUs of a machine as one group."""
    return read_machine(
        text, detect=False, hardware=hardware, pcie_generation=None, nodes=0
    ).fabric()


def ran(capsys, *words):
    code = main([*map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


# What is asked back, in one line.


def test_unnamed_gpus_are_asked_for(tmp_path, capsys):
    path = tmp_path / "topo.txt"
    path.write_text(crossed_pairs())
    code, out, err = ran(capsys, "recommend", "--model", "flux", "--topology", path)

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--hardware" in err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"gpus": 8}, "wanted at most 4"),
        ({"gpus": 3, "nodes": 2}, "over 2 nodes"),
        ({"topology": "nonsense"}, "nonsense"),
        ({"topology": "two lines\nof prose"}, "no topology in a text"),
        ({"detect": True}, "got a topology too"),
        ({"pcie_generation": 9}, "pcie_generation: got 9"),
        ({"hardware": "rtx-9090"}, "unknown hardware 'rtx-9090'"),
        ({"precision": "nvfp4"}, "no tensor cores for nvfp4"),
    ],
)
def test_bad_machines_are_one_line(more, said):
    asked = {"gpus": 4, "topology": crossed_pairs(), "hardware": "rtx-3090", "plan": "tp4"} | more
    with pytest.raises(InputError) as caught:
        planner.estimate("llama-3.1-8b", **asked)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_gpus_are_taken_where_no_number_is_asked_for(tmp_path, capsys):
    path = tmp_path / "topo.txt"
    path.write_text(crossed_pairs())
    code, out, _ = ran(
        capsys, "recommend", "--model", "llama-3.1-8b", "--topology", path,
        "--hardware", "rtx-3090", "--format", "json",
    )  # fmt: skip
    answer = json.loads(out)

    assert code == 0
    assert answer["request"]["gpus"] == 4
    assert any(note.startswith("assumed: PCIe generation") for note in answer["notes"])
    assert all(plan["placement"]["exact"] for plan in answer["plans"])


def test_the_order_of_gpus_is_printed_and_launched(tmp_path, capsys):
    path = tmp_path / "topo.txt"
    path.write_text(crossed_pairs())
    code, out, _ = ran(
        capsys, "estimate", "--model", "llama-3.1-8b", "--topology", path,
        "--hardware", "rtx-3090", "--plan", "pp2.tp2",
    )  # fmt: skip

    assert code == 0
    assert "CUDA_VISIBLE_DEVICES=0,2,1,3 vllm serve" in " ".join(out.split())


def test_few_of_many_gpus_are_chosen_without_listing_every_subset():
    # 7e5 ways to take 8 of 24; staged copies share the uplink of their switch, so two are best
    text = matrix(24, lambda a, b: "PIX" if a // 8 == b // 8 else "SYS")
    whole = read_machine(text, detect=False, hardware="l40s", pcie_generation=None, nodes=0)

    assert whole.on(8).local == tuple(range(4, 12))


def test_equal_rings_are_told_apart_by_what_crosses_a_socket():
    """Three of four GPUs: any three make as good a ring, the three of one socket the best pairs."""
    for lone in range(4):
        text = matrix(4, lambda a, b, lone=lone: "SYS" if lone in (a, b) else "PHB")
        whole = read_machine(
            text, detect=False, hardware="rtx-a6000", pcie_generation=None, nodes=0
        )

        assert lone not in whole.on(3).local


def test_a_subset_is_named():
    answer = planner.recommend(
        "llama-3.1-8b", gpus=2, topology=crossed_pairs(), hardware="rtx-3090"
    )

    assert answer.plans[0].placement.devices == (0, 2)
    assert answer.advice[0].startswith("use GPUs 0,2 of 4: CUDA_VISIBLE_DEVICES=0,2")


def test_catalogue_hardware_says_nothing_of_placement():
    found = planner.recommend("flux.1-dev", gpus=2)

    assert found.notes == ()
    assert "placement" not in found.plans[0].to_dict()
    assert not any("CUDA_VISIBLE_DEVICES" in line for line in found.advice)


# Different GPUs.


def test_the_slowest_of_mixed_gpus_rules():
    everything = planner.recommend("llama-3.1-8b", gpus=4, topology=MIXED)
    slow = planner.estimate("llama-3.1-8b", gpus=4, plan="tp4", topology=MIXED)

    assert slow.hardware == "rtx-4090"
    assert any("every rank waits for rtx-4090" in note for note in everything.notes)


def test_two_of_mixed_gpus_are_the_fast_ones():
    found = planner.estimate("llama-3.1-8b", gpus=2, plan="tp2", topology=MIXED)

    assert found.hardware == "rtx-5090"
    assert found.placement.devices == (0, 2)


def test_plans_fit_the_smallest_memory():
    """26 GB a GPU fit two cards of 32 GB, and not four of which two have 24."""
    one = planner.recommend("flux.1-dev", gpus=4, topology=MIXED)

    assert all(plan.memory_bytes < 25e9 for plan in one.plans)


@pytest.mark.parametrize(("gib", "fits"), [(24, False), (48, True)])
def test_the_memory_of_a_gpu_is_what_its_machine_says(gib, fits):
    """RTX 4090s that were rebuilt with 48 GB run what does not fit the usual card."""
    node = planner.read_topology(far_apart(2), hardware="rtx-4090").to_dict()
    for row in node["gpus"]:
        row["memory_bytes"] = gib * 2**30
    answer = planner.recommend("flux.1-dev", gpus=1, topology=json.dumps(node))

    assert bool(answer.plans) == fits
    assert any("48 GiB of memory as the machine says" in line for line in answer.notes) == fits


def test_slices_do_not_work_together():
    with pytest.raises(IllegalPlanError, match="MIG"):
        planner.estimate("llama-3.1-8b", gpus=2, plan="tp2", topology=SLICES)


# Several hosts.


def test_copies_of_a_machine_are_joined():
    found = planner.estimate(
        "llama-3.1-8b", gpus=8, plan="pp2.tp4", topology=matrix(4, lambda a, b: "NV4"),
        hardware="a100-sxm-80gb", nodes=2,
    )  # fmt: skip

    assert found.placement.hosts == 2
    assert found.placement.fabrics["pp"].nodes == 2
    assert found.placement.fabrics["tp"].nodes == 1


def test_both_nestings_are_tried_on_several_nodes():
    """Of two ways to nest over two nodes the cheaper one is ranked, the other is not."""
    answer = planner.recommend("hunyuanvideo", gpus=16, nodes=2, runtime="tensorrt")
    ranked = {str(one.plan): one.latency_s for one in answer.plans}
    kinds = (("ulysses2.ring8", "ring8.ulysses2"), ("ulysses8.ring2", "ring2.ulysses8"))
    for ways in kinds:
        times = {
            way: planner.estimate("hunyuanvideo", gpus=16, nodes=2, plan=way).latency_s
            for way in ways
        }
        best = min(times, key=lambda way: times[way])
        assert ranked[best] == pytest.approx(times[best])
        assert len(set(ways) & set(ranked)) == 1


# Cases from user reports (public threads, named by repository and number).


def test_bridged_h100_pcie_reach_a_quarter_of_an_sxm_node():
    """NVIDIA/nccl#1161: 2 x H100 PCIe with bridges, all-reduce at 115 to 116 GB/s."""
    pair = links(matrix(2, lambda a, b: "NV12"), "h100-pcie")
    rate = 2.0**31 / collective_time("all_reduce", 2.0**31, pair)

    assert rate == pytest.approx(115.9e9, rel=0.15)


def test_two_gpus_of_a_mesh_reach_what_the_mesh_does_of_their_links():
    """A bridge of H100 PCIe keeps two fifths of its links; SXM boards keep four, meshed or not."""
    four, pair = (links(matrix(n, lambda a, b: "NV6"), "h100-sxm") for n in (4, 2))
    rates = [
        2 * (n - 1) / n * 2.0**33 / collective_time("all_reduce", 2.0**33, group) / group.bandwidth
        for n, group in ((4, four), (2, pair))
    ]

    assert pair.direct == four.direct == pair.bandwidth
    assert rates[1] == pytest.approx(rates[0], rel=0.2)


@pytest.mark.parametrize(
    ("kind", "label", "size", "bus"),
    [("a100-sxm-80gb", "NV4", 2.0**27, 206.5e9), ("h100-sxm", "NV6", 2.0**33, 368e9)],
)
def test_four_gpus_joined_by_all_their_links_reach_what_a_switch_gives_rings(
    kind, label, size, bus
):
    """NVIDIA/nccl-tests#331: 4 x A100 with NV4, 206.5 GB/s; H100 as rings of eight (no NVLS)."""
    mesh = links(matrix(4, lambda a, b: label), kind)
    rate = 1.5 * size / collective_time("all_reduce", size, mesh)

    assert not mesh.multicast
    assert rate == pytest.approx(bus, rel=0.08)


SERVER = 'name = "box"\nhosts = 1\nhardware = "rtx-pro-6000"\n'
REACHED = '[[measured]]\nop = "all_to_all"\nbus_bandwidth = "4 GB/s"\n'


@pytest.mark.parametrize(("told", "within"), [(False, 0.1), (True, 0.3)])
def test_exchanges_of_eight_l20_are_as_fast_as_was_measured(told, within):
    """NVIDIA/nccl#1817: all-to-all at 6.13 GB/s, the mean over 8 B to 512 MiB."""

    def label(a, b):
        near = "PIX" if a // 2 == b // 2 else "NODE"
        return near if a // 4 == b // 4 else "SYS"

    node = links(matrix(8, label), "l20") if told else find_hardware("l20").fabric(8)
    sizes = 8.0 * 2.0 ** np.arange(27)
    rates = sizes * (7 / 8) / collective_time("all_to_all", sizes, node)

    assert np.mean(rates) == pytest.approx(6.13e9, rel=within)


def test_what_nccl_tests_reached_rules_the_pace_of_a_host():
    """Large messages take as long as was measured, small ones start as before; JSON keeps it."""
    machine, plain = read_topology(SERVER + REACHED), read_topology(SERVER)
    again = read_topology(json.dumps(machine.to_dict()), hardware=machine.hardware)
    count = len(machine.gpus)
    eight, usual, kept = (fabric(m, range(count)) for m in (machine, plain, again))
    rate = 2.0**30 * (count - 1) / count / collective_time("all_to_all", 2.0**30, eight)

    assert rate == pytest.approx(4e9, rel=0.02)
    assert collective_time("all_to_all", 8.0, eight) == pytest.approx(
        collective_time("all_to_all", 8.0, usual), rel=0.05
    )
    assert collective_time("all_reduce", 2.0**30, eight) == (
        collective_time("all_reduce", 2.0**30, usual)
    )
    assert [pace.bus for pace in kept.paces] == [4e9]
    for some in (eight, fabric(machine, range(4))):
        assert basis("all_to_all", 2.0**24, some) < basis("all_to_all", 2.0**24, usual)


def test_plans_that_exchange_over_pcie_are_said_to_be_uncertain_until_somebody_measured():
    asked = {"gpus": 4, "engine": "xdit"}
    usual = planner.recommend("flux.1-dev", hardware="l20", **asked)
    there = SERVER.replace("rtx-pro-6000", "l20") + REACHED
    known = planner.recommend("flux.1-dev", topology=there, **asked)

    assert any("may change places: how fast 4 GPUs exchange" in line for line in usual.advice)
    assert not any("may change places" in line for line in known.advice)


def test_a_pair_under_one_switch_is_slower_where_copies_are_staged():
    """NVIDIA/nccl#1309: 4090s without peer access; about half the speed there, here two thirds."""
    near = links(matrix(2, lambda a, b: "PIX"), "rtx-4090")
    far = links(matrix(2, lambda a, b: "SYS"), "rtx-4090")

    assert collective_time("all_reduce", 2.0**28, near) > 1.35 * collective_time(
        "all_reduce", 2.0**28, far
    )


def test_one_gpu_beats_a_pair_across_sockets():
    """NVIDIA/go-gpuallocator#17, vllm-project/vllm#1838: 8 x 4090, every two across sockets."""
    answer = planner.recommend(
        "flux.1-dev", gpus=2, topology=far_apart(), hardware="rtx-4090", precision="fp8"
    )
    split = [one for one in answer.plans if one.plan.degree("dp") == 1]

    assert answer.baseline.latency_s < min(one.latency_s for one in split)
    assert answer.plans[0].plan == parse_plan("dp2")
    assert any("use 1 GPU" in line for line in answer.advice)


def served(**more):
    """llama-3.1-8b on two RTX 4090 of two sockets: the answer, and latencies over one GPU's."""
    asked = {"input_tokens": 512, "output_tokens": 256, **more}
    answer = planner.recommend(
        "llama-3.1-8b", gpus=2, topology=far_apart(2), hardware="rtx-4090", **asked
    )
    one = answer.baseline.latency_s
    return answer, {str(plan.plan): plan.latency_s / one for plan in answer.plans}


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_pair_that_serves_many_is_slower_than_one_gpu(objective):
    """sgl-project/sglang#4723: tp2 of two 4090s yields less than one GPU.

    syv-ai/qwen38-27b-rtx3090#135: two 3090s decode 917 tokens/s for 64 at once, one 1,035.
    """
    answer, over_one = served(batch=64, objective=objective)

    assert answer.plans[0].plan == parse_plan("dp2")
    assert 1.0 < over_one["tp2"] < 1.6


def test_a_pair_that_launches_every_kernel_is_slower_than_one_gpu():
    """vllm-project/vllm#1838, of 2023, when vLLM had no CUDA graphs."""
    assert served(runtime="torch-eager")[1]["tp2"] > 1


def test_a_pair_is_faster_for_one_stream_with_graphs():
    """syv-ai/qwen38-27b-rtx3090#135: 60 against 46 tokens/s; the model, without drafts, up to 2."""
    answer, over_one = served()

    assert answer.plans[0].plan == parse_plan("tp2")
    assert 1.3 < 1 / over_one["tp2"] < 1.8
    many = served(objective="throughput", engine="vllm", concurrency=64)[0]
    assert [str(row.plan) for row in many.plans] == ["dp2", "pp2", "tp2"]


def test_nvlink_gains_little_for_one_stream_of_decoding():
    """noonghunna/club-3090#698: 2 x 3090, tp2 decode 1.85 and 3.83 % faster with a bridge."""
    bridged, plain = (
        estimated("qwen3-8b", "tp2", text, "rtx-3090", input_tokens=128, output_tokens=512)
        for text in (matrix(2, lambda a, b: "NV4"), PAIR)
    )
    gain = plain.step_s / bridged.step_s - 1

    assert 0 <= gain < 0.04


def test_replicas_serve_more_than_a_split_over_pcie():
    """noonghunna/club-3090 MULTI_CARD.md: four 3090, 4 replicas over tp4 by 2.1 to 3.4 times.

    With vLLM, as there; SGLang's cache is said to hold fewer, and pairs in a pipeline more of them.
    """
    topology = matrix(4, lambda a, b: "PHB")
    answer = planner.recommend(
        "qwen3-8b", gpus=4, topology=topology, hardware="rtx-3090", engine="vllm"
    )
    rates = {str(one.plan): one.throughput_per_s for one in answer.plans}

    assert 1.9 < rates["dp4"] / rates["tp4"] < 3.6
    assert any("for throughput use dp4" in line for line in answer.advice)


def test_four_v100_under_two_switches():
    """haohervchb/sglang-V100#2: a floor near 19 us, then bandwidth; 384 KiB in 84 us."""
    node = links(matrix(4, lambda a, b: "PXB"), "v100-sxm")
    measured = {4: 19.4, 32: 24.2, 128: 51.8, 384: 83.5}

    for size, micros in measured.items():
        assert collective_time("all_reduce", size * 1024.0, node) * 1e6 == pytest.approx(
            micros, rel=0.25
        )


def test_small_all_reduces_bind_decoding_over_pcie():
    """sgl-project/sglang#32479: 8 cards without peer access, 4 KB take 45 us."""
    node = links(two_sockets(pair="NODE"), "l40s")

    assert collective_time("all_reduce", 4096.0, node) == pytest.approx(45e-6, rel=0.2)
    found = estimated("llama-3.1-8b", "tp8", two_sockets(pair="NODE"), "l40s")
    assert found.breakdown_s["communication_exposed"] > 0.5 * found.latency_s


def test_two_by_two_doubles_four_l40():
    """xdit-project/xDiT#553: FLUX.1 on L40s; two by two over four GPUs is about twice as fast."""
    box = two_sockets()
    one = planner.recommend("flux.1-dev", gpus=1, topology=box, hardware="l40").baseline
    four = estimated("flux.1-dev", "ulysses2.ring2", box, "l40")

    assert 1.5 < one.latency_s / four.latency_s < 2.4


def test_an_exchange_over_two_sockets_loses_to_a_ring_across_where_copies_are_staged():
    """Public rule for eight cards on PCIe: Ulysses inside a socket, the ring across."""
    box = two_sockets()

    assert (
        estimated("flux.1-dev", "ulysses4.ring2", box, "l40s").latency_s
        < estimated("flux.1-dev", "ulysses8", box, "l40s").latency_s
    )


def test_peer_copies_are_not_collective_speed():
    """AWS g7e.12xlarge, 2 x RTX PRO 6000: peer copies 54.7 GB/s, collectives well below."""
    pair = links(matrix(2, lambda a, b: "PIX"), "rtx-pro-6000")

    assert 2.0**28 / collective_time("all_reduce", 2.0**28, pair) < 45e9


@pytest.mark.parametrize("text", [pastes.HGX, pastes.ALL_SYS, pastes.LEGACY])
def test_python_and_commands_assume_the_same_and_ask_for_the_same(text, tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(text)
    found = planner.read_topology(path)
    _, out, _ = run("topology", "import", str(path))

    assert found.assumptions[0].startswith("the text names no GPU kind: taken as ")
    assert json.loads(out) == json.loads(json.dumps(found.to_dict()))

    asked = {"model": "flux.1-dev", "topology": str(path)}
    for command, call in (
        (("recommend", "--model", "flux.1-dev"), lambda: planner.recommend(**asked)),
        (("collectives",), lambda: planner.collective("all_reduce", 1, 2, topology=str(path))),
    ):
        code, _, err = run(*command, "--topology", str(path))
        with pytest.raises(InputError, match="GPU0 has no known kind") as error:
            call()
        assert (code, err) == (2, f"planner: {error.value}\n")


@pytest.mark.parametrize("count", [4, 8])
def test_a_text_without_nics_has_the_usual_network_whole(count, tmp_path):
    path, hosts = tmp_path / "topo.txt", tmp_path / "hosts.toml"
    path.write_text(matrix(count, lambda a, b: "NV18"))
    hosts.write_text(f'hosts = 2\ntopology = """\n{path.read_text()}"""\n')
    line = f"infiniband, {count} NICs of 50 GB/s a node, as in the usual server of h100-sxm"
    kind, both = ("--hardware", "h100-sxm"), ("--gpus", f"{2 * count}", "--nodes", "2")

    def answer(*words):
        code, out, err = run(*map(str, words))
        assert code == 0, err
        return out

    plan = ("estimate", "--model", "flux.1-dev", "--plan", f"ulysses{count}.ring2")
    for machine in (("--topology", path, "--nodes", "2"), ("--topology", hosts)):
        gpus = ("--gpus", 2 * count, *machine, *kind)
        said = [json.loads(answer(*plan, *told, "--format", "json")) for told in (gpus, both)]
        assert said[0]["latency_s"] == pytest.approx(said[1]["latency_s"])
        assert f"assumed: {line}" in answer(*plan, *gpus)

        prices = json.loads(answer("collectives", *gpus, "--format", "json"))
        assert prices["network"]["nics"] == count
        for algorithms in ("auto", "ring,tree"):
            assert f"assumed: {line}" in answer("collectives", *gpus, "--algorithm", algorithms)

        shown = answer("topology", "show", *machine[1:], *kind)
        assert line in shown
        assert f", {2 * count} NICs" in shown
        assert f"infiniband: {count} NICs a node" in shown
