"""Measured times stand where the very same group was measured, and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.collectives import (
    CurveCalibration,
    NcclSettings,
    Times,
    basis,
    choose,
    collective_time,
)
from costmodels.tables import profile_for
from topology.catalogue import find_hardware

H100 = find_hardware("h100-sxm")
PAIR = H100.fabric(2)
GRAPH = Times(
    op="all_gather",
    architecture="hopper",
    link="nvlink",
    ranks=2,
    launch="graph",
    bandwidth=PAIR.bandwidth,
    sizes=(1e6, 2e6, 8e6),
    seconds=(10e-6, 14e-6, 50e-6),
    source="an example",
    median_error=0.01,
    worst_error=0.02,
)
STREAM = replace(GRAPH, launch="stream", seconds=(40e-6, 40e-6, 60e-6))
KNOWN = CurveCalibration(identity="times of a pair", times=(GRAPH, STREAM))
ONLY_GRAPH = CurveCalibration(identity="times of a pair, replayed", times=(GRAPH,))


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (1e6, 10e-6),
        (1.5e6, 12e-6),  # half way in bytes
        (5e6, 32e-6),
        (0.0, 10e-6),  # the launch
        (14e6, 86e-6),  # 6 us a MB further on
    ],
)
def test_between_sizes_time_is_linear_in_bytes(size, seconds):
    assert collective_time("all_gather", size, PAIR, calibration=KNOWN) == pytest.approx(seconds)


def test_an_array_of_sizes_gives_what_each_does():
    sizes = np.array([[1e3, 1e6, 3e6], [8e6, 1e8, 1e9]])

    together = collective_time("all_gather", sizes, PAIR, calibration=KNOWN)

    assert together.shape == sizes.shape
    assert together.ravel().tolist() == [
        collective_time("all_gather", size, PAIR, calibration=KNOWN) for size in sizes.ravel()
    ]


@given(st.floats(0, 2.0**34), st.floats(0, 2.0**34), st.sampled_from(["graph", "stream"]))
def test_more_bytes_never_take_less_time(first, second, launch):
    less, more = (
        collective_time("all_gather", size, PAIR, launch=launch, calibration=KNOWN)
        for size in sorted((first, second))
    )

    assert 0 < less <= more


@pytest.mark.parametrize(
    ("op", "fabric", "algorithm"),
    [
        ("all_reduce", PAIR, "auto"),  # another collective
        ("all_gather", H100.fabric(4), "auto"),  # another group
        ("all_gather", H100.fabric(2, nodes=2), "auto"),  # not in one node
        ("all_gather", replace(PAIR, bandwidth=PAIR.bandwidth / 2), "auto"),  # fewer links
        ("all_gather", find_hardware("a100-sxm-80gb").fabric(2), "auto"),
        ("all_gather", PAIR, "ring"),  # forced: the library's own choice was measured
    ],
)
def test_what_was_not_measured_is_modelled(op, fabric, algorithm):
    ours, shipped = (
        collective_time(op, 4e6, fabric, algorithm=algorithm, calibration=known)
        for known in (KNOWN, None)
    )

    assert ours == shipped


@pytest.mark.parametrize(
    ("calibration", "seconds"),
    [
        (KNOWN, 40e-6),  # as measured, the host's part in it
        (ONLY_GRAPH, 45e-6),  # the host's usual part, longer than the 14 us of the GPU
    ],
)
def test_calls_of_the_host_are_as_measured(calibration, seconds):
    found = collective_time("all_gather", 2e6, PAIR, launch="stream", calibration=calibration)

    assert found == pytest.approx(seconds, rel=0.1)


def test_one_process_for_all_gpus_is_no_faster_than_its_launches():
    single = NcclSettings(launcher="single")

    for launch in ("graph", "stream"):
        ours, usual = (
            collective_time(
                "all_gather", 1e6, PAIR, launch=launch, settings=settings, calibration=KNOWN
            )
            for settings in (single, NcclSettings())
        )
        assert ours >= usual


def test_engines_fall_back_on_it():
    ours = collective_time("all_gather", 4e6, PAIR, algorithm="engine", calibration=KNOWN)

    assert ours == pytest.approx(26e-6)


@pytest.mark.parametrize(
    ("op", "ranks", "size", "known"),
    [
        ("all_gather", 2, 2e6, Basis.MEASURED),
        ("all_gather", 2, 8e7, Basis.ASSUMED),
        ("all_gather", 4, 2e6, Basis.CALIBRATED),
        ("all_reduce", 2, 2e6, Basis.CALIBRATED),
    ],
)
def test_it_is_measured_where_it_was_seen(op, ranks, size, known):
    assert basis(op, size, H100.fabric(ranks), calibration=KNOWN) == known


def test_the_algorithm_is_still_the_librarys_choice():
    assert choose("all_gather", 4e6, PAIR, calibration=KNOWN) == choose("all_gather", 4e6, PAIR)


def test_graphs_that_may_mix_add_to_replayed_calls_alone():
    """7 to 11 us a call of 1 to 16 MiB (validate/data), less of larger and of small ones."""
    fabric = find_hardware("h100-sxm").fabric(2)
    sizes = np.array([8192.0, 2.0**20, 2.0**23, 2.0**26, 2.0**30])
    mixing = NcclSettings(graph_mixing=True)
    graph, stream = (
        collective_time("all_gather", sizes, fabric, launch=launch, settings=mixing)
        - collective_time("all_gather", sizes, fabric, launch=launch)
        for launch in ("graph", "stream")
    )

    assert graph == pytest.approx([0.06e-6, 7.1e-6, 11.2e-6, 3.6e-6, 3.6e-6], abs=1e-8)
    assert not stream.any()
    one = collective_time("all_gather", 2.0**23, fabric, settings=mixing)
    assert one == pytest.approx(collective_time("all_gather", sizes, fabric, settings=mixing)[2])


def test_what_a_machine_measured_in_graphs_has_the_mixing_in_it():
    own = profile_for("h100-sxm", "h100-sxm-x2-2026-11-28").curves
    fabric = find_hardware("h100-sxm").fabric(2)
    usual, mixing = (
        collective_time(
            "all_gather", 2.0**23, fabric, settings=NcclSettings(graph_mixing=on), calibration=own
        )
        for on in (False, True)
    )

    assert usual == mixing
