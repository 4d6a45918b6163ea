"""Figures out of other people's nccl-tests logs, and how near the model is to them."""

from dataclasses import replace
from importlib.resources import files
from math import log
from statistics import median

import pytest

from costmodels.collectives import moves, network_share
from topology.base import InputError
from topology.catalogue import all_hardware, find_hardware
from topology.machine import loads_of, machine_of, survey_of
from validate.accuracy.collectives import log_groups, read_log_figures
from validate.accuracy.figures import score

TEXT = files("validate").joinpath("data", "nccl_table_figures.csv").read_text(encoding="utf-8")
FIGURES = read_log_figures(TEXT, all_hardware())
REASONS = (
    "23", "24", "25", "26", "42", "45", "48", "74", "83", "88", "90", "110", "111",
    "112-a2a128",
)  # fmt: skip
"""Tables that docs/accuracy.md says why the model is far from."""


def table_of(figure):
    return figure.source.partition(":")[0]


def of(kind):
    return [f for f in FIGURES if (f.fabric.nodes == 1) == (kind == "one node")]


def test_figures_are_spread_over_tables_and_sizes():
    assert 140 <= len(FIGURES) <= 180
    assert len({table_of(figure) for figure in FIGURES}) > 85
    sizes = [figure.message_bytes for figure in FIGURES]
    assert min(sizes) < 2**12
    assert max(sizes) >= 2**33
    assert all(figure.source.partition(": ")[2] for figure in FIGURES)


@pytest.mark.parametrize(
    ("group", "bound"),
    [
        ("one node, up to 64 KiB", 0.20),
        ("one node, larger", 0.12),
        ("several nodes", 0.20),
        ("forced algorithm", 0.15),
    ],
)
def test_groups_are_within_their_bounds(group, bound):
    found = score(group, log_groups(FIGURES)[f"nccl-tests logs, {group}"])

    assert found.median < bound
    assert abs(found.bias) < 0.06


UNSEEN = files("validate").joinpath("data", "nccl_unseen_figures.csv").read_text(encoding="utf-8")
LARGE = 2**20


def off(figure):
    return abs(log(figure.predicted() / figure.seconds))


def sharing_nics():
    """Give large messages on nodes with fewer NICs than GPUs, and as if each GPU had its own."""
    for figure in (*FIGURES, *read_log_figures(UNSEEN, all_hardware())):
        fabric = figure.fabric
        local, network = fabric.ranks // fabric.nodes, fabric.network
        if network is not None and network.nics < local and figure.message_bytes >= LARGE:
            own = fabric.over_network(network.on_nics(local))
            yield figure, replace(figure, fabric=own)


def test_nics_that_gpus_share_are_priced_as_shared():
    """Nodes with fewer NICs than GPUs, beside a NIC of the same rate for each GPU."""
    shared, apart = zip(*((off(one), off(other)) for one, other in sharing_nics()), strict=True)

    assert len(shared) == 20
    assert median(shared) < 0.2
    assert median(apart) > 0.5
    assert sum(one < other for one, other in zip(shared, apart, strict=True)) >= 16


def test_what_a_message_brings_to_nics_says_a_part_of_it_alone():
    """Priced as if each GPU had a NIC, and no faster than its bytes pass those that there are."""
    apart, loaded = [], []
    for figure, own in sharing_nics():
        fabric, usual = figure.fabric, find_hardware("a100-sxm-40gb")
        local, network = fabric.ranks // fabric.nodes, fabric.network
        node = replace(
            usual,
            gpus=local,
            domain=local,
            nics=network.nics,
            nic_bandwidth=replace(usual.nic_bandwidth, value=network.pace),
        )
        sent = moves(figure.op, figure.message_bytes, own.fabric)
        survey = survey_of(machine_of(node, fabric.nodes))
        loads = loads_of(survey, range(fabric.ranks), sent)
        reached = network_share(network)
        passed = max(load / (link.rate * reached) for link, load in loads.items() if link.far)
        apart.append(off(own))
        loaded.append(abs(log(max(own.predicted(), passed) / figure.seconds)))

    assert median(loaded) < 0.9 * median(apart)
    nearer = [one < other for one, other in zip(loaded, apart, strict=True)]
    assert sum(nearer) >= 6


def test_cards_behind_one_switch_are_priced_as_sharing_its_uplink():
    """Six operations over a switch, beside an uplink for each card; two pass on down a chain."""
    alone = read_log_figures(TEXT.replace(",shared,", ",,"), all_hardware())
    pairs = [
        (one, other)
        for one, other in zip(FIGURES, alone, strict=True)
        if one.fabric != other.fabric and one.message_bytes >= LARGE
    ]

    assert [one.op for one, _ in pairs] == [
        "all_reduce", "all_gather", "broadcast", "reduce", "all_to_all", "all_reduce",
    ]  # fmt: skip
    for one, other in pairs:
        if one.op in ("broadcast", "reduce"):
            assert off(one) == off(other) < 0.01
        else:
            assert off(one) < 0.13
            assert off(other) > 0.4


def test_logs_in_no_fit_are_as_near_as_those_of_a_fit():
    unseen = read_log_figures(UNSEEN, all_hardware())
    found = score("in no fit", [figure.error for figure in unseen])

    assert len({table_of(figure) for figure in unseen}) >= 15
    assert found.median < 0.2
    assert abs(found.bias) < 0.1
    assert not {table_of(f) for f in unseen} & {table_of(f) for f in FIGURES}


@pytest.mark.parametrize("kind", ["one node", "several nodes"])
def test_nine_of_ten_with_a_plain_story_are_near(kind):
    errors = sorted(abs(f.error) for f in of(kind) if table_of(f) not in REASONS)

    assert errors[int(0.9 * len(errors))] < 0.3


def test_no_table_is_far_off_without_a_reason():
    for name in {table_of(figure) for figure in FIGURES} - set(REASONS):
        assert median(abs(f.error) for f in FIGURES if table_of(f) == name) < 0.6, name


def test_a_reason_is_written_for_every_table_that_is_far_off():
    path = files("validate").joinpath("..", "docs", "accuracy.md")
    text = path.read_text(encoding="utf-8")  # type: ignore[union-attr]

    first = " ".join(line.split("|")[1] for line in text.splitlines() if line.count("|") > 4)
    for name in REASONS:
        assert name.partition("-")[0] in first.replace(",", " ").split(), name


def test_bad_tables_are_one_line():
    with pytest.raises(InputError, match="missing columns"):
        read_log_figures("table\n1\n", all_hardware())
    lines = TEXT.splitlines()
    with pytest.raises(InputError, match="no source"):
        read_log_figures("\n".join([lines[0], lines[1].rpartition(",")[0] + ","]), all_hardware())
