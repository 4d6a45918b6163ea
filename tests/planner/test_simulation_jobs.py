"""Two jobs on one machine: what they lose is what replicas of one job lose."""

import json

import pytest
from commands import assert_refused, run
from machinetexts import two_sockets
from testpastes import cpu_xml, gpu_xml, pci_xml, topology_xml

import planner

WORDS = ("simulate", "--model", "wan2.1-1.3b", "--frames", "65", "--even", "--gpus")


def switched():
    """Write eight cards as NCCL's XML has them: two under each of four switches."""
    speed = "16.0 GT/s PCIe"

    def switch(number):
        cards = [2 * number, 2 * number + 1]
        ways = [
            pci_xml(f"0000:{number}{gpu}:00.0", "gpu", gpu_xml(gpu, 89), speed=speed)
            for gpu in cards
        ]
        return pci_xml(f"0000:{number}f:00.0", "switch", *ways, speed=speed)

    sockets = ((0, (0, 1)), (1, (2, 3)))
    return topology_xml(*(cpu_xml(one, *map(switch, numbers)) for one, numbers in sockets))


def jobs(hardware, gpus, plan, other):
    words = (*WORDS, gpus, "--hardware", hardware, "--plan", plan, "--beside", other)
    code, out, err = run(*words, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)["beside"]


def test_jobs_that_share_a_switch_hold_each_other_up():
    """Groups of three, where two cards hang on a switch: as replicas of either are."""
    first, last = jobs("l20", "3", "ring3", "wan2.1-1.3b:ring3")
    sizes = {"frames": 65, "hardware": "l20", "even": True}
    alone, two = (
        planner.simulate("wan2.1-1.3b", gpus, plan, **sizes).turn_s
        for gpus, plan in ((3, "ring3"), (6, "dp2.ring3"))
    )

    assert first["turn_alone_s"] == pytest.approx(alone)
    assert first["turn_alone_s"] < first["turn_s"] <= two * 1.001
    assert last["turn_s"] > last["turn_alone_s"] > first["turn_alone_s"]  # of the usual size


def test_a_job_beside_one_like_it_is_one_of_two_replicas():
    usual = planner.simulate("wan2.1-1.3b", 6, "dp2.tp3", hardware="l20", even=True)
    _, out, _ = run("simulate", "--model", "wan2.1-1.3b", "--gpus", "3", "--hardware", "l20",
                    "--plan", "tp3", "--even", "--beside", "wan2.1-1.3b:tp3",
                    "--format", "json")  # fmt: skip

    for job in json.loads(out)["beside"]:
        assert job["turn_s"] > 1.02 * job["turn_alone_s"]
        assert job["turn_s"] == pytest.approx(usual.turn_s, rel=0.01)


def test_jobs_on_links_of_their_own_lose_nothing():
    for job in jobs("h100-sxm", "4", "ulysses4", "flux:ring4"):
        assert job["turn_s"] == job["turn_alone_s"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("flux", "beside: got 'flux', wanted a model and a plan: flux:ulysses4"),
        ("flux:", "beside: got 'flux:', wanted a model and a plan: flux:ulysses4"),
        ("flux:ring8", "beside: got 8 GPUs a host behind 4, wanted at most 4 of the 8 of h100-sxm"),
        ("nothing:tp2", "unknown model 'nothing'"),
        ("flux:x9", "x9"),
    ],
)
def test_a_job_that_cannot_be_is_one_line(other, said):
    words = (*WORDS, "4", "--plan", "ulysses4", "--beside", other)
    assert_refused(*run(*words), said)


def test_a_job_that_leaves_no_room_is_told_what_would():
    words = (*WORDS, "8", "--plan", "ring8", "--beside", "flux:ulysses4")
    assert_refused(*run(*words), "the first job fills the 8 GPUs of a host of h100-sxm: give it")


def test_jobs_on_a_machine_that_was_read_are_as_on_its_hardware(tmp_path):
    """Written down and read again; the second job has all GPUs that the first one left."""
    file = tmp_path / "l20.json"
    assert run("topology", "show", "l20", "--format", "json", "--output", str(file))[0] == 0
    words = (*WORDS, "3", "--plan", "ring3", "--beside", "wan2.1-1.3b:ring5", "--format", "json")
    read, usual = (
        json.loads(run(*words, *where)[1])["beside"]
        for where in (("--topology", str(file)), ("--hardware", "l20"))
    )

    for one, other in zip(read, usual, strict=True):
        assert one["turn_s"] > 1.01 * one["turn_alone_s"]
        assert one["turn_s"] == pytest.approx(other["turn_s"], rel=0.05)


def test_jobs_of_one_and_two_hosts_meet_on_slow_links():
    """The links of both are those of the first job's machine, slow ones too."""
    words = ("simulate", "--model", "wan2.1-1.3b", "--even", "--gpus", "10",
             "--hardware", "l20", "--plan", "allgather_kv10", "--format", "json")  # fmt: skip
    code, out, err = run(*words, "--link", "pcie=0.5", "--beside", "wan2.1-1.3b:ring3")

    assert (code, err) == (0, "")
    for job in json.loads(out)["beside"]:
        assert job["turn_s"] > 1.01 * job["turn_alone_s"]


@pytest.mark.parametrize("kind", ["pasted", "nccl"])
def test_jobs_on_a_pasted_machine_share_its_switches(tmp_path, kind):
    """Pairs under switches: jobs of three and five meet under one, of two and of four nowhere."""
    file = tmp_path / kind
    file.write_text(two_sockets() if kind == "pasted" else switched(), encoding="utf-8")
    where = ("--topology", str(file), "--hardware", "l20", "--format", "json")
    for gpus, other, apart in (("3", "5", 1.01), ("2", "4", 1.0)):
        words = (*WORDS, gpus, "--plan", f"ring{gpus}", "--beside", f"wan2.1-1.3b:ring{other}")
        code, out, err = run(*words, *where)
        assert (code, err) == (0, "")
        for job in json.loads(out)["beside"]:
            lost = job["turn_s"] / job["turn_alone_s"]
            assert lost > apart if apart > 1.0 else lost == 1.0
    assert_refused(*run(*WORDS, "8", "--plan", "ring8", *where, "--beside", "flux:ring2"), "fills")
    words = (*WORDS, "6", "--plan", "ring6", *where, "--beside", "flux:ring4")
    assert_refused(*run(*words), "got 4 GPUs a host behind 6, wanted at most 2 of the 8 of")


def test_jitter_is_of_one_job():
    words = (*WORDS, "4", "--plan", "ulysses4", "--beside", "flux:ulysses4", "--jitter", "0.1")
    assert_refused(*run(*words), "jitter: got it with --beside, wanted one of the two")
