"""The order of GPUs that a plan's messages cost least in, found whole and quickly."""

from itertools import permutations

import pytest
from growth import calls
from hypothesis import given, settings
from hypothesis import strategies as st
from machinetexts import crossed_pairs, far_apart, matrix, two_sockets

import planner
from planner.placement.seating import (
    RepeatedMessage,
    _Seating,
    group_masks,
    group_ranks,
    nested,
    orders,
    seat,
    traffic_of,
)
from planner.request.subset import best_subset, read_machine
from planner.strategies import parse_plan

KINDS = {"tp": "all_reduce", "ulysses": "all_to_all", "ring": "send_recv", "cfg": "all_gather"}
HEAVY = {axis: (RepeatedMessage(kind, 8.0 * 2**20, 40),) for axis, kind in KINDS.items()}
HEAVY |= {
    axis: (RepeatedMessage(kind, 8.0 * 2**20, 1),)
    for axis, kind in (("pp", "send_recv"), ("cfg", "all_gather"))
}  # once a step
PLANS = ("ring2.ulysses4", "ulysses4.tp2", "pp2.cfg2.tp2", "ring2.ulysses2.tp2", "ring4.tp2")


def subset(text, hardware="rtx-3090", nodes=0):
    return read_machine(text, detect=False, hardware=hardware, pcie_generation=None, nodes=nodes)


def weighed(plan, where, order):
    """The time of a plan's messages in one order."""
    scenario = _Seating(plan=parse_plan(plan), subset=where, traffic=HEAVY)
    return scenario.placement(order, exact=True).seconds


@pytest.mark.parametrize("plan", ["pp2.tp2", "cfg2.tp2", "cfg2.ulysses2", "ring2.tp2"])
def test_chatty_ranks_sit_where_nvlink_joins_them(plan):
    found = seat(parse_plan(plan), subset(crossed_pairs()), HEAVY)

    assert found.devices == (0, 2, 1, 3)
    assert found.exact
    inner = parse_plan(plan).axes[-1][0]
    assert found.fabrics[inner].link == "nvlink"


def test_an_outer_axis_may_have_the_links():
    """Tensor parallelism outside a pipeline still gets them: ranks 0 and 2 talk most."""
    found = seat(parse_plan("tp2.pp2"), subset(crossed_pairs()), HEAVY)

    assert found.devices == (0, 1, 2, 3)
    assert found.fabrics["tp"].link == "nvlink"


def test_ulysses_stays_in_a_socket():
    """FLUX.1 on eight L40 over two sockets: exchanges inside, the ring across."""
    found = planner.estimate(
        "flux.1-dev", gpus=8, plan="ulysses4.ring2", topology=two_sockets(), hardware="l40"
    ).placement

    assert not found.fabrics["ulysses"].crosses_sockets
    assert found.fabrics["ring"].crosses_sockets
    assert all(found.devices[i + 1] == found.devices[i] + 4 for i in range(0, 8, 2))


labels = st.sampled_from(["NV2", "NV4", "PIX", "PHB", "SYS"])


@st.composite
def machines(draw, count):
    table = {(a, b): draw(labels) for a in range(count) for b in range(a + 1, count)}
    return subset(matrix(count, lambda a, b: table[a, b]))


@settings(max_examples=15)
@given(where=machines(4), plan=st.sampled_from(["ring2.tp2", "cfg2.ulysses2"]))
def test_no_order_of_four_is_better(where, plan):
    best = min(weighed(plan, where, order) for order in permutations(range(4)))

    assert seat(parse_plan(plan), where, HEAVY).seconds == pytest.approx(best, rel=2e-3)


@settings(max_examples=4)
@given(where=machines(6), plan=st.sampled_from(["ring2.tp3", "ulysses3.tp2"]))
def test_no_order_of_six_is_better(where, plan):
    degrees = tuple(degree for _, degree in parse_plan(plan).axes)
    every = [tuple(map(int, order)) for order in orders(degrees)]
    best = min(weighed(plan, where, order) for order in every)

    assert seat(parse_plan(plan), where, HEAVY).seconds == pytest.approx(best, rel=2e-3)


BOXES = [
    (two_sockets(), "l40s"),
    (two_sockets(pair="NV12"), "a100-pcie-80gb"),
    (matrix(8, lambda a, b: "NV4" if b == a + 4 else "NODE" if a // 4 == b // 4 else "SYS"),
     "rtx-3090"),
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("box", BOXES)
def test_eight_are_seated_at_once(box, plan):
    """In as many calls of functions as take a fifth of a second."""
    where = subset(*box)
    found = seat(parse_plan(plan), where, HEAVY)

    assert calls(lambda plan: seat(plan, where, HEAVY), parse_plan(plan)) < 4e5
    assert found.exact
    assert sorted(found.devices) == list(range(8))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("box", BOXES)
def test_nesting_alone_comes_near_the_best(box, plan):
    """What is done beyond eight ranks a host, where every order can still be weighed."""
    where = subset(*box)
    best = seat(parse_plan(plan), where, HEAVY)
    near = seat(parse_plan(plan), where, HEAVY, exact_up_to=4)

    assert not near.exact
    assert best.seconds <= near.seconds * 1.001
    assert near.seconds <= best.seconds * 1.25


def test_where_all_are_alike_the_order_is_kept():
    for text in (far_apart(), matrix(8, lambda a, b: "NV18")):
        found = seat(parse_plan("cfg2.ulysses4"), subset(text, "h100-sxm"), HEAVY)
        assert found.devices == tuple(range(8))
        assert found.exact


def test_hosts_are_seated_alike():
    where = subset(crossed_pairs(), nodes=2)
    found = seat(parse_plan("ring2.cfg2.tp2"), where, HEAVY)

    assert found.devices == (0, 2, 1, 3)
    assert found.hosts == 2
    assert found.fabrics["ring"].nodes == 2
    assert found.fabrics["tp"].link == "nvlink"


@pytest.mark.parametrize("degrees", [(2, 2), (2, 4), (4, 2), (2, 2, 2), (2, 3), (6,)])
def test_orders_give_every_set_of_groups_once(degrees):
    """Against all permutations: the same sets of groups along all axes, none twice."""
    count = len(orders(degrees)[0])

    def groups(order):
        return tuple(
            frozenset(frozenset(order[rank] for rank in row) for row in group_ranks(degrees, axis))
            for axis in range(len(degrees))
        )

    found = [groups([int(gpu) for gpu in order]) for order in orders(degrees)]
    step = 1 if count < 8 else 97
    every = [order for n, order in enumerate(permutations(range(count))) if n % step == 0]

    assert len(set(found)) == len(found)
    assert {groups(order) for order in every} <= set(found)


def test_masks_hold_the_groups():
    masks = group_masks((2, 2), 1)

    assert masks.shape == (6, 2)
    assert masks[0].tolist() == [0b0011, 0b1100]
    assert nested((2, 2)) == [(0, 1, 2, 3), (0, 2, 1, 3)]


@pytest.mark.parametrize(
    ("text", "hardware", "count", "chosen"),
    [
        (crossed_pairs(), "rtx-3090", 2, (0, 2)),
        (two_sockets(), "l40", 2, (0, 1)),
        (two_sockets(), "rtx-4090", 2, (0, 2)),  # staged copies cross a shared uplink twice
        (two_sockets(pair="NV12"), "rtx-3090", 4, (0, 1, 2, 3)),
        (far_apart(), "rtx-4090", 2, (0, 1)),
        (matrix(3, lambda a, b: "NV4" if (a, b) == (1, 2) else "SYS"), "rtx-3090", 2, (1, 2)),
    ],
)
def test_the_best_joined_gpus_are_taken(text, hardware, count, chosen):
    assert best_subset(subset(text, hardware).survey, count) == chosen


def test_traffic_counts_what_a_program_sends():
    """Two all-reduces a layer: 32 layers of a decoder, once a token."""
    from generators import asked

    from planner.lowering import lower

    scenario = asked("llama-3.1-8b", gpus=2, output_tokens=4)
    sent = traffic_of(lower(scenario.model, scenario.workload, parse_plan("tp2")))
    reduces = sum(m.times for m in sent["tp"] if m.kind == "all_reduce")

    assert set(sent) == {"tp"}
    assert reduces >= 2 * 32 * 4


@pytest.mark.parametrize("kilobytes", [1, 4, 16, 64])
def test_small_messages_take_the_bridges_too(kilobytes):
    """Decoding sends kilobytes: four RTX A6000 with links 0-2 and 1-3."""
    traffic = {
        "tp": (RepeatedMessage("all_reduce", kilobytes * 1024.0, 4000),),
        "pp": (RepeatedMessage("send_recv", kilobytes * 1024.0, 60),),
    }

    found = seat(parse_plan("pp2.tp2"), subset(crossed_pairs(), "rtx-a6000"), traffic)

    assert found.devices == (0, 2, 1, 3)
    assert found.fabrics["tp"].link == "nvlink"


def test_a_slice_is_priced_as_a_slice():
    text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: x)\n  MIG 3g.40gb Device 0: (UUID: y)\n"
    where = subset(text, "")
    whole = planner.estimate("llama-3.1-8b", gpus=1, hardware="h100-sxm")
    part = planner.estimate("llama-3.1-8b", gpus=1, topology=text)

    assert part.latency_s > 1.7 * whole.latency_s
    assert any("priced as one MIG slice 3g.40gb" in line for line in where.notes())
    assert where.ruling("bf16").device.memory.value == 40e9
    assert where.ruling("bf16").device.multiprocessors.value == 49


def test_slices_of_no_one_profile_are_refused():
    text = (
        "GPU 0: NVIDIA H100 80GB HBM3\n  MIG 3g.40gb Device 0: (x)\n  MIG 1g.10gb Device 1: (y)\n"
    )

    assert "got no one profile" in subset(text, "").obstacle()
