"""Every collective obeys the same laws, whatever its algorithm and its links."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.collectives import (
    OPS,
    NcclSettings,
    basis,
    choose,
    collective_time,
    least_bytes,
    supports,
)
from costmodels.collectives.algorithms import BY_NAME, Algorithm
from costmodels.collectives.choice import build
from costmodels.collectives.curve import Curve
from costmodels.collectives.settings import ALGORITHMS
from topology.base import InputError
from topology.catalogue import Fabric, Network, NetworkKind, find_hardware


class Relay(Algorithm):
    """A reduce and a broadcast, each down a chain of all ranks: not one that ships."""

    name = "relay"
    curves_of = "ring_simple"

    def time(self, message_bytes):
        steps = 2 * (self.fabric.ranks - 1)
        crossings = 2 * (self.fabric.nodes - 1)
        start = self.curve.start(steps - crossings, message_bytes)
        inside = steps * self.curve.per_byte_on(self.fabric)
        outside = crossings * self.hop.per_byte
        streams = message_bytes * inside, message_bytes * outside
        return self.hop.join(self.curve, start, crossings * self.hop.step, streams)


NAMED = [*BY_NAME.values(), Relay]
"""Every algorithm; the laws hold for one from outside as well."""
NCCL_TAKES = ("ring", "tree", "nvls", "nvls_tree", "pat", "pairwise")
PAIRS = ("all_to_all", "gather", "scatter", "send_recv")
NETWORKS = get_args(NetworkKind)


MANY = st.sampled_from([2, 3, 4, 5, 6, 8, 12, 16, 64])


@st.composite
def fabrics(draw, ranks=MANY, spread=None):
    link = draw(st.sampled_from(["nvswitch", "nvlink", "pcie"]))
    architecture = draw(
        st.sampled_from(["volta", "turing", "ampere", "ada", "hopper", "blackwell"])
    )
    count = draw(ranks)
    counts = [n for n in (1, 2, 4, count) if count % n == 0]
    nodes = draw(st.sampled_from([n for n in counts if spread in (None, n > 1)]))
    local = count // nodes
    return Fabric(
        architecture=architecture,
        ranks=count,
        nodes=nodes,
        link=link,
        bandwidth=draw(st.sampled_from([15.75e9, 63e9, 200e9, 450e9, 900e9])),
        multicast=link == "nvswitch" and architecture in ("hopper", "blackwell") and local > 2,
        peer_to_peer=link != "pcie" or draw(st.booleans()),
        crosses_sockets=draw(st.booleans()),
        pcie_generation=draw(st.sampled_from([3, 4, 5])),
        network=Network(
            kind=draw(st.sampled_from(NETWORKS)),
            bandwidth=draw(st.sampled_from([12.5e9, 50e9, 400e9])),
            nics=draw(st.sampled_from([1, 2, 8])),
        )
        if nodes > 1
        else None,
    )


ops = st.sampled_from(OPS)
launches = st.sampled_from(["graph", "stream"])
sizes = st.one_of(st.just(0.0), st.floats(1.0, 1e12))


@st.composite
def cases(draw, spread=None):
    """An operation, links, and how to run it: only what can be run."""
    op, fabric = draw(ops), draw(fabrics(spread=spread))
    possible = [algorithm for algorithm in NAMED if not algorithm.obstacle(op, fabric)]
    algorithm = draw(st.sampled_from(["auto", "engine", *possible]))
    since = (2, 18) if isinstance(algorithm, str) else algorithm.since
    older = [release for release in [(2, 18), (2, 20), (2, 22), (2, 27)] if release >= since]
    settings = NcclSettings(
        nccl=draw(st.sampled_from([(2, 29), *older])),
        launcher=draw(st.sampled_from(["process", "single"])),
        engine=draw(st.sampled_from(["best", "trtllm", "vllm", "sglang"])),
    )
    return op, fabric, {"algorithm": algorithm, "settings": settings}


def timed(case, size, launch="graph"):
    op, fabric, how = case
    return collective_time(op, size, fabric, launch=launch, **how)


@given(op=ops, size=sizes, fabric=fabrics(ranks=st.just(1)), launch=launches)
def test_one_rank_is_free(op, size, fabric, launch):
    assert collective_time(op, size, fabric, launch=launch) == 0


@given(case=cases(), launch=launches)
def test_no_bytes_take_some_microseconds(case, launch):
    assert 1e-6 < timed(case, 0.0, launch) < 20e-3


@given(case=cases(), launch=launches, small=sizes, large=sizes)
def test_more_bytes_never_take_less_time(case, launch, small, large):
    small, large = sorted([small, large])

    assert timed(case, small, launch) <= timed(case, large, launch) * (1 + 1e-12)


@given(case=cases())
def test_more_bytes_never_take_less_time_on_a_fine_grid(case):
    times = timed(case, 2.0 ** np.arange(0, 40, 0.0625))

    assert np.all(np.diff(times) >= -1e-12 * times[1:])


@given(case=cases(spread=False), size=sizes)
def test_the_link_bounds_time_from_below(case, size):
    """The busiest GPU sends the least that the operation needs over its nominal link."""
    op, fabric, _ = case
    bound = least_bytes(op, size, fabric) / fabric.bandwidth

    assert timed(case, size) >= bound * (1 - 1e-12)


@given(case=cases(spread=True), size=sizes)
def test_the_network_bounds_time_from_below(case, size):
    """What the GPUs of one node lack is with the others, and has to come in.

    A root takes it through its own share of the node's NICs.
    """
    op, fabric, _ = case
    local = fabric.ranks // fabric.nodes
    missing = size * (fabric.nodes - 1) / fabric.nodes
    bytes_in = {
        "all_reduce": size,
        "all_gather": missing,
        "reduce_scatter": missing,
        "all_to_all": missing * local,
        "broadcast": size,
        "reduce": size,
        "gather": missing * local,
        "scatter": missing * local,
        "send_recv": size,
    }[op]

    assert timed(case, size) >= bytes_in / fabric.network.bandwidth * (1 - 1e-12)


@given(case=cases(), launch=launches, some=st.lists(sizes, min_size=1, max_size=6))
def test_arrays_are_priced_like_numbers(case, launch, some):
    array = timed(case, np.array([some]), launch)
    numbers = [timed(case, size, launch) for size in some]

    assert array.shape == (1, len(some))
    assert array[0] == pytest.approx(numbers, rel=1e-12)
    assert all(type(number) is float for number in numbers)


@given(op=ops, size=sizes, fabric=fabrics())
def test_nccl_is_no_worse_than_the_worst_protocol(op, size, fabric):
    """NCCL's choice is one of those it could make, whichever that is."""
    able = [
        build(algorithm, protocol, op, fabric).model.time(size)
        for algorithm in map(BY_NAME.get, NCCL_TAKES)
        if not algorithm.obstacle(op, fabric)
        for protocol in algorithm.protocols
        if protocol != "LL128" or fabric.link != "pcie"
    ]

    assert collective_time(op, size, fabric) <= max(able) * (1 + 1e-12)


@given(size=sizes, fabric=fabrics(), launch=launches)
def test_the_best_engine_beats_every_engine(size, fabric, launch):
    def time(engine):
        settings = NcclSettings(engine=engine)
        return collective_time(
            "all_reduce", size, fabric, algorithm="engine", launch=launch, settings=settings
        )

    assert time("best") == min(time(engine) for engine in ("trtllm", "vllm", "sglang"))


@given(size=sizes, fabric=fabrics())
def test_engines_are_never_slower_than_nccl_in_a_graph(size, fabric):
    engine = collective_time("all_reduce", size, fabric, algorithm="engine")

    assert engine <= collective_time("all_reduce", size, fabric)


@given(case=cases(), size=sizes)
def test_a_call_takes_no_less_than_its_replay(case, size):
    assert timed(case, size) <= timed(case, size, "stream")


@given(case=cases(), size=sizes)
def test_every_time_has_a_choice_and_a_basis(case, size):
    op, fabric, how = case
    name, protocol = choose(op, size, fabric, **how)
    algorithm = how["algorithm"]
    algorithm = BY_NAME[name] if isinstance(algorithm, str) else algorithm

    assert name == algorithm.name
    assert protocol in algorithm.protocols
    assert basis(op, size, fabric, **how) > Basis.MEASURED


@given(
    op=ops,
    size=st.floats(1e3, 1e9),
    ranks=st.integers(2, 16),
    architecture=st.sampled_from(["ampere", "hopper", "blackwell"]),
)
def test_one_more_gpu_is_no_cliff(op, size, ranks, architecture):
    """Formulas hold between and beyond the group sizes that were measured, on a switch.

    Where NCCL takes the same protocol: its changes are cliffs, on four B200 from 36 us for 4 MiB
    to 85 us for 8 MiB, and more GPUs move them.
    """
    links = {"ampere": 300e9, "hopper": 450e9, "blackwell": 900e9}[architecture]
    algorithm = "pairwise" if op in PAIRS else "ring"
    few, more = (
        Fabric(architecture=architecture, ranks=count, link="nvswitch", bandwidth=links)
        for count in (ranks, ranks + 1)
    )
    protocols = {choose(op, size, fabric, algorithm=algorithm)[1] for fabric in (few, more)}
    assume(len(protocols) == 1)

    less, most = (collective_time(op, size, fabric, algorithm=algorithm) for fabric in (few, more))
    assert 0.85 * less <= most <= 1.7 * less


def test_names_are_those_of_the_algorithms():
    assert ("auto", *BY_NAME, "engine") == ALGORITHMS
    assert all(BY_NAME[name].name == name for name in BY_NAME)


def test_an_algorithm_from_outside_is_priced_as_its_formula_says():
    fabric = Fabric(architecture="ampere", ranks=4, link="nvlink", bandwidth=300e9)
    curve = build(BY_NAME["ring"], "Simple", "all_reduce", fabric).model.curve
    seconds = collective_time("all_reduce", 2.0**30, fabric, algorithm=Relay)

    assert seconds == Relay(fabric=fabric, curve=curve).time(2.0**30)
    assert choose("all_reduce", 2.0**30, fabric, algorithm=Relay) == ("relay", "Simple")
    assert seconds > collective_time("all_reduce", 2.0**30, fabric, algorithm="ring")
    assert not supports("all_gather", Relay, fabric)
    with pytest.raises(InputError, match="all_gather by relay: it serves all_reduce only"):
        collective_time("all_gather", 2.0**20, fabric, algorithm=Relay)


@pytest.mark.parametrize("size", [-1.0, math.nan, math.inf])
def test_a_size_that_cannot_be_is_refused(size):
    fabric = Fabric(architecture="hopper", ranks=8, link="nvlink", bandwidth=450e9)

    with pytest.raises(InputError, match="message size"):
        collective_time("all_reduce", size, fabric)
    with pytest.raises(InputError, match="message size"):
        collective_time("all_reduce", np.array([1.0, size]), fabric)


LINK = {"link": "nvlink", "bandwidth": 1e9, "architecture": "ampere"}
SWITCH = {"link": "nvswitch", "bandwidth": 400e9, "architecture": "hopper", "multicast": True}


@pytest.mark.parametrize(
    ("algorithm", "op", "ranks", "links", "curve", "size", "seconds"),
    [
        ("ring", "all_gather", 4, LINK, (1e-6, 1e-6, 1.0), 4e6, 4e-6 + 3e-3),
        ("tree", "all_reduce", 2, LINK, (1e-6, 1e-6, 1.0), 4e6, 3e-6 + 2 * 4e-3),
        ("oneshot", "all_reduce", 3, LINK, (1e-6, 0.0, 1.0), 1e6, 1e-6 + 2 * 1e-3),
        ("twoshot", "all_reduce", 4, LINK, (1e-6, 1e-6, 1.0), 4e6, 7e-6 + 6 * 1e-3),
        ("symmetric", "all_gather", 4, LINK, (1e-6, 1e-6, 1.0), 4e6, 4e-6 + 3e-3),
        ("multishot", "all_reduce", 8, SWITCH, (10e-6, 0.0, 0.5), 2e6, 10e-6 + 10e-6),
        ("nvls", "all_reduce", 8, SWITCH, (10e-6, 0.0, 0.5), 2e6, 10e-6 + 10e-6),
        ("pairwise", "all_to_all", 4, LINK, (1e-6, 0.0, 1.0), 4e6, 1e-6 + 3 * 1e-3),
    ],
)
def test_algorithms_take_what_their_formula_says(algorithm, op, ranks, links, curve, size, seconds):
    launch, step, efficiency = curve
    fabric = Fabric(ranks=ranks, **links)
    model = BY_NAME[algorithm](
        op=op, fabric=fabric, curve=Curve(launch=launch, step=step, efficiency=efficiency)
    )

    assert model.time(size) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("name", ["h100-sxm", "b200", "a100-sxm-80gb", "l40s"])
@pytest.mark.parametrize("stride", [1, 2, 8])
def test_more_nics_never_take_longer_by_one_algorithm(name, stride):
    """NCCL's choice among algorithms may be worse with more; groups of a host share NICs."""
    sent = 2.0 ** np.arange(10, 31, 4)
    simple = NcclSettings(protocols=("Simple",))
    hosts = [replace(find_hardware(name), nics=nics) for nics in range(1, 13)]
    groups = [host.group(16 // stride, stride, island=8) for host in hosts]
    for algorithm in BY_NAME.values():
        for op in OPS:
            if algorithm.obstacle(op, groups[0]):
                continue
            how = {"algorithm": algorithm, "settings": simple}
            times = [collective_time(op, sent, group, **how) for group in groups]
            assert (np.diff(times, axis=0) <= 1e-12).all(), (algorithm.name, op)
