"""How near measured collectives the model is; figures and their sources are in the table."""

from importlib.resources import files
from itertools import groupby

import numpy as np
import pytest

from costmodels.collectives import collective_time
from costmodels.collectives.parameters import link_class
from topology.catalogue import all_hardware, find_hardware
from validate.accuracy.collectives import read_figures
from validate.accuracy.figures import score

TEXT = files("validate").joinpath("data", "collectives_figures.csv").read_text(encoding="utf-8")
FIGURES = read_figures(TEXT, all_hardware())
FITTED = ("hopper", "ampere", "blackwell")


def only(figures):
    """Score figures as one group."""
    return score("", [figure.error for figure in figures])


def large(figures):
    """Score those of 1 MiB and more."""
    return only([figure for figure in figures if figure.message_bytes >= 2**20])


def groups(figures):
    """Group figures by generation and link, operation, ranks and nodes."""

    def place(figure):
        fabric = figure.fabric
        link = link_class(fabric)
        return fabric.architecture, link, figure.op, fabric.ranks, fabric.nodes

    return [list(group) for _, group in groupby(sorted(figures, key=place), place)]


def on(architecture, **wanted):
    return [
        figure
        for figure in FIGURES
        if figure.fabric.architecture == architecture
        and all(getattr(figure.fabric, key) == value for key, value in wanted.items())
    ]


def test_every_figure_has_a_source():
    assert 100 <= len(FIGURES) <= 120
    assert all(figure.source and figure.seconds > 0 for figure in FIGURES)


def test_all_figures_together():
    found = only(FIGURES)

    assert found.median < 0.05
    assert found.p90 < 0.15
    assert found.worst < 0.35
    assert abs(found.bias) < 0.03
    assert large(FIGURES).median < 0.04


@pytest.mark.parametrize("architecture", FITTED)
def test_one_node_of_a_measured_generation(architecture):
    found = on(architecture, nodes=1)

    assert only(found).median < 0.06
    assert large(found).median < 0.05


def test_no_group_is_far_off():
    for group in groups(FIGURES):
        assert only(group).median < 0.20


def test_nodes_over_infiniband():
    """Two and four DGX A100, four B200 nodes: within the scatter between such clusters."""
    found = only([figure for figure in FIGURES if figure.fabric.nodes > 1])

    assert found.median < 0.10
    assert found.worst < 0.35


@pytest.mark.parametrize("engine", ["trtllm", "vllm", "sglang"])
def test_kernels_of_serving_engines(engine):
    found = only([figure for figure in FIGURES if figure.settings.engine == engine])

    assert found.median < 0.10


def test_gpus_that_were_not_fitted_alone():
    """GB200, GB300 and B300 are B200's generation: 8 and 16 GiB, Oracle's tables."""
    found = only([figure for figure in FIGURES if "oci-gpu" in figure.source])

    assert found.median < 0.10


def test_custom_kernels_of_h100_against_vllms_own_table():
    """vLLM pull request 42324, 8 x H100, multimem: 512 KiB 11 us ... 64 MiB 320 us."""
    sizes = np.array([0.5, 1, 2, 4, 8, 16, 32, 64]) * 2**20
    measured = np.array([11, 14, 18, 27, 46, 87, 165, 320]) / 10**6
    node = find_hardware("h100-sxm").fabric(8)

    times = collective_time("all_reduce", sizes, node, algorithm="multishot")

    assert times == pytest.approx(measured, rel=0.15)


def test_symmetric_kernels_against_vllms_own_table():
    """vLLM pull request 24532, 4 x H100, NCCL symmetric: 0.5 to 4 MiB."""
    sizes = np.array([0.5, 1, 1.5, 2, 3, 4]) * 2**20
    measured = np.array([17, 19, 20, 21, 23, 28]) / 10**6
    node = find_hardware("h100-sxm").fabric(4)

    times = collective_time("all_reduce", sizes, node, algorithm="symmetric")

    assert times == pytest.approx(measured, rel=0.25)


def test_a_small_all_reduce_on_gb200_by_symmetric_kernels():
    """nccl-tests issue 333: 5.2 to 8 us up to 1 KiB on 4 GB200 with graphs."""
    node = find_hardware("gb200").fabric(4)

    assert 5.2e-6 < collective_time("all_reduce", 512.0, node, algorithm="symmetric") < 8e-6


def test_gpus_without_peer_access_are_hundreds_of_times_slower():
    """8 x L40S without peer access: 512 MiB all-reduce takes 0.65 s, an H100 node 2.1 ms."""
    slow = collective_time("all_reduce", 2.0**29, find_hardware("l40s").fabric(8))
    fast = collective_time("all_reduce", 2.0**29, find_hardware("h100-sxm").fabric(8))

    assert slow / fast == pytest.approx(649.5 / 2.11, rel=0.15)
