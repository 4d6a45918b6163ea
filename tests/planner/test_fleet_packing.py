"""Replicas of several demands on the same nodes: brute force agrees on small cases."""

from collections import Counter
from itertools import product
from math import ceil

import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.fleet import packing
from planner.fleet.packing import Pile, pack

pytestmark = pytest.mark.usefixtures("searched_once")

SIZES = {"x": 4, "y": 6}
COSTS = {"x": 4.0, "y": 5.5}


def fewest(items, room):
    """Count the nodes of replicas (GPUs, demand, most) by trying every place of each."""
    best = len(items)

    def put(number, nodes):
        nonlocal best
        if len(nodes) >= best:
            return
        if number == len(items):
            best = len(nodes)
            return
        gpus, demand, most = items[number]
        for place, held in enumerate([*nodes, ()]):
            alike = sum(one[1] == demand for one in held)
            if sum(one[0] for one in held) + gpus <= room and alike < (most or room):
                put(number + 1, [*nodes[:place], (*held, items[number]), *nodes[place + 1 :]])

    put(0, [])
    return best


def cheapest(piles, demands):
    """Try every kind for every demand."""
    least = float("inf")
    for choice in product(*([p for p in piles if p.demand == name] for name in demands)):
        cost = 0.0
        for kind, size in SIZES.items():
            each = [(p.gpus, p.demand, p.most) for p in choice if p.hardware == kind]
            counts = [p.count for p in choice if p.hardware == kind]
            items = [item for item, n in zip(each, counts, strict=True) for _ in range(n)]
            cost += COSTS[kind] * fewest(sorted(items, reverse=True), size)
        least = min(least, cost)
    return least


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_brute_force_finds_nothing_cheaper(data):
    demands = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    piles = [
        Pile(
            demand=name,
            hardware=kind,
            gpus=data.draw(st.integers(1, size)),
            count=data.draw(st.integers(1, 3)),
            most=data.draw(st.integers(0, 2)),
        )
        for name in demands
        for kind, size in SIZES.items()
    ]

    nodes = pack(piles, SIZES, COSTS)

    assert sum(node.count * COSTS[node.hardware] for node in nodes) == pytest.approx(
        cheapest(piles, demands)
    )
    by_name = {(pile.demand, pile.hardware): pile for pile in piles}
    held = Counter()
    for node in nodes:
        own = [(by_name[name, node.hardware], count) for name, count in node.holds.items()]
        assert sum(pile.gpus * count for pile, count in own) <= SIZES[node.hardware]
        assert all(count <= pile.most for pile, count in own if pile.most)
        held.update(
            {(name, node.hardware): count * node.count for name, count in node.holds.items()}
        )
    assert sorted(name for name, _ in held) == demands
    assert all(count == by_name[key].count for key, count in held.items())


def test_more_ways_than_are_looked_through_have_no_answer(monkeypatch, tmp_path):
    rows = "".join(
        f'[[demand]]\nname = "{name}"\nmodel = "flux"\nrate = "1/min"\nslo = "60s"\n{spare}\n'
        for name, spare in (("a", ""), ("b", 'spare = "node"'))
    )
    (demands := tmp_path / "d.toml").write_text(rows)
    words = ("capacity", "--demand", str(demands))

    assert "all demands on the same whole nodes: 16 GPUs" in run(*words)[1]
    monkeypatch.setattr(packing, "MOST_PATTERNS", 1)
    code, said, _ = run(*words)
    assert code == 0
    assert "more ways to fill a node than are looked through" in said
    assert "shared" not in planner.capacity(demand=demands).to_dict()


@pytest.mark.parametrize("spare", ["replica", "node"])
def test_demands_share_nodes(tmp_path, spare):
    """Each alone leaves most of its nodes empty; what stands by for a node is on another."""
    rows = "".join(
        f'[[demand]]\nname = "{name}"\nmodel = "flux"\nrate = "{rate}"\nslo = "10s"\n'
        f'spare = "{spare}"\n'
        for name, rate in (("a", "1/s"), ("b", "6/min"), ("c", "30/min"))
    )
    (demands := tmp_path / "d.toml").write_text(rows)
    (prices := tmp_path / "p.toml").write_text("[node_hour]\nh100-sxm = 20\n")

    found = planner.capacity(demand=demands, price=prices)
    shared, fleets = found.shared, [answer.fleets[0] for answer in found.answers]

    assert shared.cost_per_hour_apart == 20 * sum(fleet.nodes for fleet in fleets)
    assert shared.gpus == 8 * sum(node.count for node in shared.nodes)
    assert shared.gpus == 8 * max(1 + (spare == "node"), ceil(found.gpus / 8)) < shared.gpus_apart
    for fleet in fleets if spare == "node" else ():
        most = max(node.holds.get(fleet.demand.name, 0) for node in shared.nodes)
        assert fleet.replicas - most >= fleet.needed
