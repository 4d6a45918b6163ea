"""What some ranks do otherwise than others: the order of causal tokens, other GPUs, busy links."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from commands import assert_refused, run
from hypothesis import given
from hypothesis import strategies as st
from machinetexts import MIXED

import planner
from costmodels.expert_routing import routing_of
from planner.rendering.simulated import headlines
from planner.simulation import uneven
from planner.simulation.uneven import share_seen
from topology.base import InputError, format_seconds

LLAMA = {"input_tokens": 65536, "output_tokens": 1, "even": True}


def positions(order, degree, rank, rows):
    """Tokens that a rank has, by counting them out."""
    tokens = np.arange(degree * rows)
    if order == "plain":
        return tokens[rank * rows : (rank + 1) * rows]
    if order == "striped":
        return tokens[rank::degree]
    pieces = tokens.reshape(2 * degree, rows // 2)
    return np.concatenate([pieces[rank], pieces[2 * degree - 1 - rank]])


@given(st.sampled_from(["plain", "striped"]), st.integers(1, 6), st.integers(1, 9))
def test_pairs_are_those_that_a_mask_leaves(order, degree, rows):
    for one, other in product(range(degree), repeat=2):
        queries, keys = (positions(order, degree, rank, rows) for rank in (one, other))
        left = (queries[:, None] >= keys[None, :]).mean()
        assert share_seen(order, one, other, rows) == pytest.approx(left)


@given(st.integers(1, 6), st.integers(1, 9))
def test_pairs_of_zigzag_are_counted_as_the_program_has_them(degree, half):
    """Half of all pairs, but for the diagonal, of which the program counts half of a token."""
    for one, other in product(range(degree), repeat=2):
        queries, keys = (positions("zigzag", degree, rank, 2 * half) for rank in (one, other))
        left = (queries[:, None] >= keys[None, :]).mean()
        assert share_seen("zigzag", one, other, 2 * half) == pytest.approx(left)


@pytest.mark.parametrize("plan", ["ring4", "allgather_kv4"])
def test_plain_order_makes_the_last_rank_do_most(plan):
    """Of N ranks it has 2 N - 1 of the N^2 parts: 7/4 of the mean on four, as rings measured."""
    orders = ("zigzag", "plain", "striped")
    runs = [planner.simulate("llama-3.1-8b", 4, plan, order=order, **LLAMA) for order in orders]
    work = [[one.compute_s["attention"] for one in found.ranks] for found in runs]

    assert work[1] == sorted(work[1])
    assert np.diff(work[1]) == pytest.approx([sum(work[0]) / 8] * 3, rel=0.05)
    assert sum(work[1]) == pytest.approx(sum(work[0]), rel=0.03)
    assert work[1][-1] / (sum(work[1]) / 4) == pytest.approx(7 / 4, rel=0.03)
    assert runs[1].turn_s - runs[0].turn_s == pytest.approx(work[1][-1] - work[0][-1], rel=0.05)
    assert runs[2].turn_s == pytest.approx(runs[0].turn_s, rel=0.02)
    waits = [one.waiting_s for one in runs[1].ranks]
    assert waits == sorted(waits, reverse=True)
    assert runs[1].estimate == runs[0].estimate


def test_an_order_changes_no_decoding():
    plain, usual = (
        planner.simulate("llama-3.1-8b", 4, "ring4", order=order, even=True, output_tokens=8)
        for order in ("plain", "zigzag")
    )

    assert plain.stages_s["decode"] == usual.stages_s["decode"]
    assert plain.stages_s["prefill"] > usual.stages_s["prefill"]
    assert f"TTFT: {format_seconds(plain.stages_s['prefill'])}" in headlines(plain)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("flux", 4, "ring4", "plain"), "order: got plain for flux.1-dev, wanted a model that"),
        (("llama-3.1-8b", 4, "tp4", "plain"), "order: got plain for tp4, wanted a plan with ring"),
        (("llama-3.1-8b", 4, "ring4", "odd"), "order: got 'odd', wanted zigzag, plain, striped"),
        (("llama-3.1-8b", 4, "ring4", 3), "order: got 3, wanted zigzag"),
    ],
)
def test_an_order_of_nothing_is_refused(asked, said):
    with pytest.raises(InputError, match=said):
        planner.simulate(*asked[:3], order=asked[3])


def test_a_gpu_of_another_kind_takes_its_own_time_and_holds_the_others_up():
    all_kinds = {
        kind: planner.simulate("flux", 4, "ulysses4", hardware=kind, even=True)
        for kind in ("h100-sxm", "a100-sxm-80gb")
    }
    mixed = planner.simulate("flux", 4, "ulysses4", even=True, mixed={3: "a100-sxm-80gb"})
    fast, slow = all_kinds.values()

    assert mixed.ranks[3].compute_s == pytest.approx(slow.ranks[3].compute_s)
    assert mixed.ranks[0].compute_s == pytest.approx(fast.ranks[0].compute_s)
    assert fast.turn_s < mixed.turn_s < slow.turn_s
    assert min(one.waiting_s for one in mixed.ranks[:3]) > 0.5 * mixed.turn_s
    assert mixed.ranks[3].waiting_s < 0.01 * mixed.turn_s
    same = planner.simulate("flux", 4, "ulysses4", even=True, mixed={3: "h100-sxm"})
    assert same.to_dict() == fast.to_dict()


def test_a_machine_of_two_kinds_is_run_as_it_is():
    """The closed form lets every rank wait for the slower kind; there the faster ones do."""
    found = planner.simulate("flux", 4, "ring4", topology=MIXED, precision="fp8", even=True)

    kinds = dict(enumerate(found.wiring.kinds))
    fast, slow = (
        [one for one in found.ranks if kinds[one.rank] == kind] for kind in ("rtx-5090", "rtx-4090")
    )
    assert len(fast) == len(slow) == 2
    most = max(sum(one.compute_s.values()) for one in fast)
    assert most < 0.9 * min(sum(one.compute_s.values()) for one in slow)
    assert min(one.waiting_s for one in fast) > max(one.waiting_s for one in slow)
    assert found.latency_s <= found.estimate.latency_s * 1.01


@pytest.mark.parametrize("plan", ["adp8/ep8", "tp8/ep8"])
def test_experts_that_are_not_chosen_alike_hold_all_ranks_up(plan):
    """As much as the closed form says: both wait for the rank with most rows."""
    experts = [1.0] * 112 + [12.0] * 16  # of the last rank
    prefill = []
    for tokens in ("balanced", "power_law", experts):
        found = planner.simulate("qwen3-30b-a3b", 8, plan, expert_distribution=tokens,
                                 even=True, output_tokens=1)  # fmt: skip
        assert found.latency_s == pytest.approx(found.estimate.latency_s, rel=0.02)
        prefill.append(found.stages_s["prefill"])

    assert prefill == sorted(prefill)
    assert prefill[-1] > 1.5 * prefill[0]


@pytest.mark.parametrize(
    ("plan", "busiest"),
    [("adp8/ep8", {7}), ("tp8/ep8", {7}), ("adp4.tp2/ep4", {6, 7})],
)
def test_ranks_wait_for_the_one_whose_experts_have_most_rows(monkeypatch, plan, busiest):
    """The turn is that of the busiest, as if all had its rows; the others compute less and wait."""
    experts = [1.0] * 112 + [9.0] * 16  # of the last part
    asked = {"expert_distribution": experts, "even": True, "output_tokens": 1}
    found = planner.simulate("qwen3-30b-a3b", 8, plan, **asked)
    monkeypatch.setattr(uneven, "MOST_PARTS", 0)
    alike = planner.simulate("qwen3-30b-a3b", 8, plan, **asked)

    most = max(one.compute_s["gemm"] for one in found.ranks)
    busy = {one.rank for one in found.ranks if one.compute_s["gemm"] > most * (1 - 1e-9)}
    assert busy == busiest
    assert found.turn_s == pytest.approx(alike.turn_s, rel=1e-9)
    assert found.latency_s == pytest.approx(alike.latency_s, rel=1e-9)
    for own, same in zip(found.ranks, alike.ranks, strict=True):
        assert (own.waiting_s > 0.05 * found.turn_s) is (own.rank not in busiest)
        computed = sum(same.compute_s.values()) - sum(own.compute_s.values())
        assert own.waiting_s - same.waiting_s == pytest.approx(computed, rel=1e-6, abs=1e-9)


def test_parts_of_experts_have_all_rows_together():
    """By hand: 8,000 tokens of one expert each, of which seven parts of eight expect their own."""
    seen = tuple(float(one) for one in range(1, 17))
    routing = routing_of(seen, 16, 1)
    tokens = 8000.0
    own = [replace(routing, part=part).beside_busiest(tokens, 8) for part in range(8)]

    assert own[7] is None
    assert [one.sum() for one in own[:7]] == pytest.approx(
        [tokens * (4 * part + 3) / 136 for part in range(7)]
    )
    for drawn in (routing_of("power_law", 16, 2), replace(routing_of(seen, 16, 2), copies=8)):
        others = [replace(drawn, part=part).beside_busiest(tokens, 8) for part in range(8)]
        assert others[0] is None
        sums = [float(one.sum()) for one in others[1:]]
        assert sums == sorted(sums, reverse=True)
        assert sum(sums) + drawn.busiest(tokens, 8).sum() == pytest.approx(2 * tokens)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mixed", "9=l40s"), "mixed: got rank 9, wanted one from 0 to 3 of a replica"),
        (("--mixed", "1=l41"), "unknown hardware 'l41'"),
        (("--mixed", "1=l4"), "mixed: rank 1 needs "),
        (("--mixed", "l4"), "argument --mixed: got 'l4', wanted a rank and a kind of GPU such as"),
        (("--mixed", "1="), "unknown hardware ''"),
        (("--traffic", "NIC9-network=0.5"), "unknown link 'NIC9-network'"),
        (("--traffic", "nvlink=1"), "traffic: got 1 on 'nvlink', wanted the part that it takes"),
        (("--traffic", "nvlink=x"), "argument --traffic: got 'nvlink=x', wanted a link and the"),
        (("--traffic", "pcie=0.1", "--traffic", "pcie=0.2"), "got pcie twice, wanted each once"),
        (("--order", ""), "argument --order: got ''"),
    ],
)
def test_bad_input_is_one_line(words, said):
    assert_refused(
        *run("simulate", "--model", "flux", "--gpus", "4", "--plan", "ring4", *words), said
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"traffic": {3: 0.5}}, "traffic: got .*, wanted parts of links by their names"),
        ({"traffic": 0.5}, "traffic: got 0.5, wanted parts of links"),
        ({"traffic": {"nvlink": "x"}}, "traffic: got 'x' on 'nvlink', wanted a number"),
        ({"mixed": "l40s"}, "mixed: got 'l40s', wanted kinds of GPUs by rank"),
        ({"mixed": {"1": "l40s"}}, "mixed: got rank '1', wanted a whole number"),
        ({"mixed": {1: 3}}, "mixed: got 3, wanted the name of a kind of GPU"),
        ({"mixed": {1: "v100-sxm"}, "precision": "fp8"}, "v100-sxm"),
    ],
)
def test_values_of_another_type_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        planner.simulate("flux", 4, "ring4", **options)


def changes(*words):
    """What `--what-if` finds, by what is done, and the time as it is."""
    code, out, err = run("simulate", *words, "--what-if", "--format", "json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    return {row["change"]: row["latency_s"] for row in document["what_if"]}, document["latency_s"]


def test_what_a_slow_gpu_costs_and_what_to_do_is_said():
    """Without it; decoding elsewhere; fewer GPUs, as they were asked for by themselves."""
    words = ("--model", "flux", "--gpus", "4", "--plan", "ulysses4")
    found, latency = changes(*words, "--slow", "0=3")
    slow = planner.simulate("flux", 4, "ulysses4", slow={1: 3})
    plain = planner.simulate("flux", 4, "ulysses4")

    assert found["rank 0 as fast as others"] == plain.latency_s
    assert found["the GPU of rank 0 as rank 1"] == slow.latency_s < latency
    fewer = next(words for words in found if words.endswith(", without rank 0"))
    plan, _, gpus = fewer.partition(" on ")
    alone = planner.simulate("flux", int(gpus.split()[0]), plan)
    assert found[fewer] == alone.latency_s < latency


def test_what_slow_links_and_traffic_cost_is_said():
    words = ("--model", "flux", "--gpus", "8", "--plan", "tp8", "--steps", "2", "--even")
    slow = ("--link", "GPU3-NVSwitch=0.3", "--traffic", "GPU1-NVSwitch=0.9")
    found, latency = changes(*words, *slow)

    for words in ("GPU3-NVSwitch as usual", "no traffic on GPU1-NVSwitch"):
        assert found[words] <= latency
    assert found["no traffic on GPU1-NVSwitch"] < latency
    others = [time for words, time in found.items() if words.endswith("in place of tp8")]
    assert others
    assert max(others) < latency


def test_an_order_a_pause_and_another_kind_are_taken_away_one_at_a_time():
    words = ("--model", "llama-3.1-8b", "--input-tokens", "16384", "--output-tokens", "1",
             "--gpus", "2", "--plan", "ring2", "--even")  # fmt: skip
    given = ("--order", "plain", "--pause", "1=0.05", "--mixed", "1=a100-sxm-80gb")
    found, latency = changes(*words, *given)

    for words in ("tokens in zigzag order", "no pause of rank 1", "rank 1 on the GPU of others"):
        assert found[words] < latency
    assert found["the GPU of rank 1 as rank 0"] < latency  # which has fewer pairs


def test_where_nothing_is_amiss_nothing_else_is_proposed():
    found, _ = changes("--model", "flux", "--gpus", "4", "--plan", "pp4")

    assert not [words for words in found if "in place of" in words or " on " in words]
