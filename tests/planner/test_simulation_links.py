"""Messages on links: alone as the closed form has them, together slower; ranks that are alike."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import planner
from costmodels.events import Task, run
from planner.command import cli
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.simulation import simulation, symmetry
from planner.simulation.links import MessageKind, Wiring
from planner.simulation.utilisation import link_uses
from planner.strategies import parse_plan
from topology.base import InputError
from topology.catalogue import Moves, find_hardware
from topology.machine import loads_of, machine_of, survey_of
from topology.machine.loads import exchange_loads

CLUSTER = (Path(__file__).parents[2] / "examples" / "cluster.toml").read_text(encoding="utf-8")
NARROW = CLUSTER.replace("oversubscription = 2.0", "oversubscription = 16.0")
MIXED = ((500, 2, 3.0), (900, 4, 1.0))
SMALL = {"height": 256, "width": 256, "frames": 17}
PLANS = [
    ("wan2.1-1.3b", 8, "dp4.ulysses2", {"hardware": "l40s", **SMALL}),
    ("wan2.1-1.3b", 8, "ulysses2.ring4", {"hardware": "l40s", "slow": {5: 1.1}, **SMALL}),
    ("wan2.1-1.3b", 16, "cfg2.ulysses4.ring2", {"topology": NARROW, **SMALL}),
    ("flux.1-dev", 4, "ulysses4/fsdp4", {"pause": {2: 0.01}}),
    ("llama-3.1-8b", 16, "pp2.tp8", {"output_tokens": 4}),
    ("qwen3-235b-a22b", 8, "adp4.tp2/ep8", {"output_tokens": 4}),
    ("llama-3.1-8b", 8, "ring4.tp2", {"output_tokens": 1, "order": "plain"}),
    ("flux.1-dev", 8, "ulysses4.ring2", {"mixed": {5: "h200-sxm"}}),
    ("wan2.1-1.3b", 8, "ulysses2.ring4", {"hardware": "l40s", "traffic": {"NIC0-network": 0.6}}),
    ("qwen3-30b-a3b", 8, "adp4.tp2/ep8", {"lengths": MIXED}),
    ("llama-3.1-8b", 8, "dp4.tp2", {"lengths": MIXED, "hardware": "l40s", "pause": {1: 0.001}}),
    ("flux.1-dev", 5, "uaa5", {"height": 1008, "width": 1008}),
]


@pytest.mark.parametrize(("model", "gpus", "plan", "asked"), PLANS)
def test_ranks_that_are_folded_do_what_all_would(monkeypatch, model, gpus, plan, asked):
    folded = planner.simulate(model, gpus, plan, even=True, **asked)

    def apart(wiring, kinds, marks):
        return symmetry.alike(wiring, kinds, list(enumerate(marks)))

    monkeypatch.setattr(simulation, "alike", apart)
    whole = planner.simulate(model, gpus, plan, even=True, **asked)

    assert len(set(whole.first)) == gpus > len(set(folded.first))
    assert folded.turn_s == pytest.approx(whole.turn_s, rel=1e-9)
    for one, other in zip(folded.ranks, whole.ranks, strict=True):
        assert one.rank == other.rank
        assert one.waiting_s == pytest.approx(other.waiting_s, rel=1e-6, abs=1e-9)
        assert one.communication_s == pytest.approx(other.communication_s, rel=1e-6)
    for one, other in zip(link_uses(folded), link_uses(whole), strict=True):
        assert one.busy == pytest.approx(other.busy, rel=1e-6)
        assert one.links_as_busy == other.links_as_busy


def test_a_thousand_ranks_are_run_as_those_that_differ():
    """Time and memory grow with the ranks that differ: four of 1,024 here."""
    found = planner.simulate("deepseek-v3", 1024, "adp128.tp8/ep256", output_tokens=4)

    assert len(found.ranks) == 1024
    assert 1 < len(set(found.first)) <= 8
    assert found.latency_s == pytest.approx(found.estimate.latency_s, rel=0.01)


@pytest.mark.parametrize("hardware", ["l20", "h100-sxm"])
def test_jobs_on_one_machine_slow_each_other_where_they_share_links(hardware):
    """Replicas of three share a switch of two cards; on NVLink nothing is shared."""
    alone = planner.simulate("wan2.1-1.3b", 3, "ring3", hardware=hardware, even=True, **SMALL)
    two = planner.simulate("wan2.1-1.3b", 6, "dp2.ring3", hardware=hardware, even=True, **SMALL)

    apart = two.turn_s / alone.turn_s
    assert (apart > 1.1) if hardware == "l20" else apart == pytest.approx(1.0)
    assert two.latency_s >= two.estimate.latency_s * (1 - 0.01)


@pytest.mark.parametrize(
    ("hardware", "plan"),
    [
        ("l20", "ring4.tp2"),
        ("l40s", "dp4.ulysses2"),
        ("a100-pcie-80gb", "dp4.ring2"),
        ("rtx-pro-6000", "ulysses4.allgather_kv2"),
        ("h200-nvl", "ulysses4.cfg2"),
    ],
)
def test_groups_that_share_links_take_as_long_in_both(hardware, plan):
    """What groups of an axis take from each other is in the closed form too."""
    found = planner.simulate("wan2.1-1.3b", 8, plan, hardware=hardware, even=True, steps=4)

    assert found.latency_s == pytest.approx(found.estimate.latency_s, rel=0.02)


def test_messages_between_nodes_load_the_links_to_the_nics():
    """Eight cards send through two NICs: four of them pass the root of the first."""
    survey = survey_of(machine_of(find_hardware("rtx-pro-6000"), nodes=2))
    loads = exchange_loads(survey, [*range(16)], 15.0)
    sent = {str(link): load for link, load in loads.items() if link.a.startswith("host0/")}

    assert sent["host0/NIC0 to network"] == pytest.approx(4 * 8.0)
    assert sent["host0/switch0 to host0/NIC0"] == pytest.approx(4 * 8.0)
    assert sent["host0/switch1 to host0/root1"] == pytest.approx(2 * 8.0 + 2 * 6.0)
    assert sent["host0/GPU0 to host0/switch0"] == pytest.approx(15.0)


def test_leaf_switches_that_are_oversubscribed_hold_groups_up():
    """Halves of a job on both leaves exchange through the spine, all at once."""
    wide, narrow = (
        planner.simulate("wan2.1-1.3b", 128, "cfg2.ulysses4.ring16", topology=text, even=True)
        for text in (CLUSTER.replace("oversubscription = 2.0", "oversubscription = 1.0"), NARROW)
    )

    uses = {use.messages: use for use in link_uses(narrow)}
    assert max(use.slowed for use in link_uses(wide)) < 0.01
    assert uses["all_gather along cfg"].slowed > 0.5
    assert "spine" in uses["all_gather along cfg"].busiest_link
    assert uses["all_gather along cfg"].busy == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("pairs", "ends"), [(((0, 4), (5, 1)), 1.0), (((0, 4), (1, 5)), 2.0)])
def test_a_link_between_sockets_carries_as_much_in_either_direction(pairs, ends):
    """By hand: a send fills it in a second; two that go the same way have half of it each."""
    survey, numbers = survey_of(machine_of(find_hardware("l20"))), {}
    rate = min(survey.capacity[hop] for hop in survey.path("GPU0", "GPU4"))
    tasks = []
    for ends_of in pairs:
        loads = loads_of(survey, ends_of, Moves(route="shift", sent=rate, offset=1, ends=True))
        uses = {numbers.setdefault(link, len(numbers)): x / link.rate for link, x in loads.items()}
        tasks.append(
            Task(ranks=ends_of, stream="comm", seconds=1.0, message=True, uses=(*uses.items(),))
        )

    assert run(tasks).end == pytest.approx([ends, ends])


NIC = 50e9
"""B/s of a NIC at 400 Gbit/s."""


def test_the_spine_holds_groups_up_by_as_much_as_it_is_narrow():
    """By hand: 64 pairs of GPUs exchange over 64 NICs a leaf, of which a sixteenth leads up."""
    found = planner.simulate("wan2.1-1.3b", 128, "cfg2.ulysses4.ring16", topology=NARROW, even=True)
    sent = [one for one in found.events if one.sent and one.sent.axis == "cfg"]

    assert sent
    for one in sent:
        spine = 64 * one.sent.moves.sent / (64 * NIC / 16 * found.wiring.reached[True])
        assert spine > 2 * one.sent.seconds
        assert one.end_s - one.start_s == pytest.approx(spine, abs=1e-9)


def message(axis, sent, seconds, route="ring"):
    moves = Moves(route=route, sent=sent, received=sent, staging=1e9, offset=1)
    return MessageKind(kind="-", axis=axis, moves=moves, seconds=seconds, stream=axis)


def sends(wiring, axis, sent, seconds, links, route="ring"):
    """Give a message of every group along an axis, all at once."""
    kind = message(axis, sent, seconds, route)
    return [
        Task(
            ranks=group, stream=axis, seconds=seconds, message=True,
            uses=tuple((links.setdefault(link, len(links)), x) for link, x in taken.items()),
        )
        for group, taken in wiring.shares(kind)
    ]  # fmt: skip


def two_hosts(plan, **more):
    """The links under a plan on two hosts of four L40S, which share a NIC of each."""
    request = request_of("wan2.1-1.3b", 8, {"hardware": "l40s", "nodes": 2})
    return Wiring(resolve(request).deployment, parse_plan(plan), **more)


def test_groups_on_one_nic_share_it():
    """By hand: four pairs over a NIC that has room for two of them in the time of one alone."""
    wiring, links = two_hosts("ring2.ulysses4"), {}
    kind = message("ring", 1.0, 1.0)
    nic = next(link for _, busy in wiring.busy(kind) for link in busy if link.far)
    alone = 1e-3
    half = nic.rate * wiring.reached[True] * alone / 2
    pairs = sends(wiring, "ring", half, 2 * alone, links)
    quick = sends(wiring, "ring", half, alone, links)

    assert len(pairs) == 4
    assert run(pairs).end == pytest.approx([2 * alone] * 4, abs=1e-12)  # as the closed form has it
    assert run([replace(one, uses=()) for one in quick]).end == [alone] * 4
    twice = [*pairs, *(replace(one, stream="other") for one in pairs)]
    assert run(twice).end == pytest.approx([4 * alone] * 8, abs=1e-12)


def four_hosts(route, seconds=1e-3, links=None):
    """A message of every route over four hosts of a GPU each, and what it takes of their NICs."""
    request = request_of("wan2.1-1.3b", 4, {"hardware": "l40s", "nodes": 4})
    wiring = Wiring(resolve(request).deployment, parse_plan("tp4"))
    (_, busy), = wiring.busy(message("tp", 1e6, 1.0, "tree"))  # fmt: skip
    full = 1e6 * seconds / max(busy.values())
    links = {} if links is None else links
    task, = sends(wiring, "tp", full, seconds, links, route)  # fmt: skip
    nics = {link.a: number for link, number in links.items() if link.b == "network"}
    return replace(task, stream=route), [nics[f"host{host}/NIC0"] for host in range(4)]


@pytest.mark.parametrize(("host", "times"), [(0, 1.0), (1, 1.5), (2, 1.5), (3, 1.0)])
def test_a_tree_is_held_up_by_a_job_on_a_nic_that_it_fills(host, times):
    """By hand: hosts 1 and 2 send twice as much as 0 and 3; the job takes half of one NIC alone."""
    tree, nics = four_hosts("tree")
    job = replace(tree, ranks=(9,), stream="job", uses=((nics[host], 0.5),))

    assert [dict(tree.uses)[nic] for nic in nics] == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert run([tree]).end == [1e-3]
    assert run([tree, job]).end == pytest.approx([times * 1e-3] * 2, abs=1e-12)


def test_a_ring_beside_a_tree_shares_the_nics_of_the_hosts_in_the_middle():
    """By hand: the tree takes all of those, the ring of as many bytes half of each."""
    links = {}
    tree, nics = four_hosts("tree", links=links)
    ring, _ = four_hosts("ring", links=links)

    assert [dict(ring.uses)[nic] for nic in nics] == pytest.approx([0.5] * 4)
    assert run([ring]).end == [1e-3]
    assert run([tree, ring]).end == pytest.approx([1.5e-3] * 2, abs=1e-12)


@pytest.mark.parametrize(("share", "times"), [(0.0, 1.0), (0.5, 1.0), (0.75, 2.0), (0.9, 5.0)])
def test_traffic_of_others_leaves_the_rest_of_a_link(share, times):
    """By hand: four pairs that take half of a NIC together, of which others have a part."""
    wiring, links = two_hosts("ring2.ulysses4", traffic={"NIC0-network": share}), {}
    plain = two_hosts("ring2.ulysses4")
    kind = message("ring", 1.0, 1.0)
    nic = next(link for _, busy in plain.busy(kind) for link in busy if link.far)
    pairs = sends(wiring, "ring", nic.rate * plain.reached[True] / 8 * 1e-3, 1e-3, links)
    taken = {number: wiring.taken(link) for link, number in links.items()}

    assert set(taken.values()) == {0.0, share}
    assert run(pairs, taken=taken).end == pytest.approx([times * 1e-3] * 4, abs=1e-12)


def test_traffic_holds_up_only_what_passes_the_link():
    given = {"hardware": "h100-sxm", "even": True, **SMALL}
    usual, busy, other = (
        planner.simulate("wan2.1-1.3b", 8, "ulysses4.cfg2", traffic=traffic, **given)
        for traffic in ({}, {"GPU3-NVSwitch": 0.9}, {"pcie": 0.9})
    )

    assert busy.turn_s > 1.1 * usual.turn_s
    use = next(one for one in link_uses(busy) if one.messages == "all_to_all along ulysses")
    assert use.busiest_link in ("GPU3 to NVLink", "NVLink to GPU3")
    assert 0.9 < use.busy <= 1.0 + 1e-9
    assert other.turn_s == usual.turn_s


def test_traffic_on_pcie_is_on_the_way_to_the_memory_that_copies_pass_too():
    """Cards without peer access copy through it; half of it is less than they want."""
    given = {"hardware": "rtx-4090", "even": True, **SMALL}
    usual, busy = (
        planner.simulate("wan2.1-1.3b", 4, "ulysses4", traffic=traffic, **given)
        for traffic in ({}, {"pcie": 0.8})
    )

    assert busy.turn_s > 1.1 * usual.turn_s
    use = next(one for one in link_uses(busy) if one.messages == "all_to_all along ulysses")
    assert use.busiest_link == "CPU0 to memory"
    assert 0.99 < use.busy <= 1.0 + 1e-9


def test_replicas_on_hosts_of_their_own_do_without_a_network():
    """They never meet; a group across hosts is refused with the message that stops."""
    given = {"hardware": "h100-sxm", "even": True, "steps": 2}
    down = partial(planner.simulate, "flux.1-dev", 16, links={"network": 0}, **given)
    usual = planner.simulate("flux.1-dev", 16, "dp2.ulysses8", **given)

    assert down("dp2.ulysses8").to_dict() == usual.to_dict()
    slower = down("dp2.ulysses8", links={"NIC0-network": 0.5, "network": 0, "nvlink": 0.1})
    assert slower.turn_s > usual.turn_s
    with pytest.raises(InputError, match=r"along ring stops, which ranks 0, 8 wait for"):
        down("ring2.ulysses8")
    with pytest.raises(InputError, match="without network nothing joins 2 hosts"):
        planner.estimate("flux.1-dev", gpus=16, plan="dp2.ulysses8", links={"network": 0})


@pytest.mark.parametrize("hardware", ["h100-sxm", "a100-pcie-80gb", "l40s", "v100-sxm", "gb200"])
@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_a_message_alone_takes_as_long_as_the_closed_form_says(hardware, gpus):
    """Even where that is less than its links could do it in: no group is in its own way."""
    scenario = resolve(request_of("wan2.1-1.3b", gpus, {"hardware": hardware, "precision": "fp16"}))
    plan = parse_plan(f"ulysses{gpus}")
    wiring = Wiring(scenario.deployment, plan)
    routes = ("ring", "exchange", "shift", "tree", "doubling", "stages")
    switched = ("switch", "switched_tree") if hardware in ("h100-sxm", "gb200") else ()
    for route in (*routes, *switched):
        kind = message("ulysses", 1e9, 1e-3, route)
        (group, taken), *rest = wiring.shares(kind)
        uses = tuple(enumerate(taken.values()))
        alone = Task(ranks=group, stream="comm", seconds=1e-3, message=True, uses=uses)

        assert not rest
        assert run([alone]).end == [1e-3]


def test_links_are_said(capsys):
    words = ("--model", "flux", "--gpus", "4", "--plan", "ulysses4", "--links", "--format", "json")
    assert cli.main(["simulate", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = answer["links"]

    assert rows[-1]["messages"] == "the whole turn"
    on_path = [row["path_s"] for row in rows]
    assert on_path[-1] == pytest.approx(sum(on_path[:-1]))
    assert on_path[-1] == pytest.approx(answer["critical_path_s"]["communication"])
    assert {row["links_as_busy"] for row in rows} == {8}
    assert all(0 < row["busy"] <= 1 and row["slowed"] < 1e-9 for row in rows)
    assert cli.main(["simulate", *words[:-2]]) == 0
    assert "GPU0 to NVLink and 7 more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hardware", "gpus", "nodes"), [("h100-sxm", 8, 2), ("h100-sxm", 4, 2), ("l40s", 2, 2)]
)
def test_slower_nics_of_hosts_that_are_taken_in_part_make_nothing_faster(hardware, gpus, nodes):
    """A group has its part of a host's NICs, at least one, whether or not links are altered."""
    asked = {"hardware": hardware, "gpus": gpus, "nodes": nodes, "plan": f"ulysses{gpus}"}
    usual, nearly, slow = (
        planner.estimate("flux.1-dev", **asked, links={"network": times} if times else {})
        for times in (0.0, 0.999, 0.4)
    )

    assert usual.latency_s <= nearly.latency_s < 1.001 * usual.latency_s
    assert slow.latency_s > 1.2 * usual.latency_s
