"""A profile stands before the shipped tables where it is passed, and nowhere else."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from costmodels.basis import Basis
from costmodels.collectives import basis, collective_time
from costmodels.kernels import (
    attention_basis,
    attention_time,
    matmul_basis,
    matmul_time,
    pointwise_basis,
    pointwise_time,
)
from costmodels.overlap import hidden_share
from costmodels.profile import load_profile
from costmodels.tables import profile_for, read_profile, runtime
from topology.base import InputError
from topology.catalogue import find_hardware

H100 = find_hardware("h100-sxm")
HEAD = """format = 1
hardware = "h100-sxm"
date = "2026-11-27"
source = "an example"
"""
POINTWISE = """
[pointwise]
kind = "measured"
source = "an example"
hardware = ["h100-sxm"]
compute_capabilities = ["9.0"]
ranges = { bytes = "16384..1073741824" }
floor = "4 us"
ramp = "1 us"
memory_efficiency = "0.5"

[pointwise.fit]
rows = 30
worst_error = "0.05"
held_out_rows = 10
held_out_median_error = "0.01"
held_out_worst_error = "0.04"
split = "every third"

[pointwise.fit.standard_errors]
floor = "0.02"
"""
MATMUL = """
[matmul]
kind = "measured"
source = "an example"
hardware = ["h100-sxm"]
compute_capabilities = ["9.0"]
ranges = { m = "16..8192", n = "16..8192", k = "16..8192" }
flop_per_cycle = "4096"
efficiency = "0.4"
ceiling = "0.96"
tile_half = "3"
floor = "2 us"
vector_floor = "4 us"
tile_overhead = "0.6 us"
split_overhead = "2 us"
reduction_passes = "0.3"
load_bandwidth = "120 GB/s"
memory_efficiency = "0.8"
softness = "0.9"
sustained_drop = "0.02"
reference_rate = "430 TFLOP/s"
reference_power = "700 W"
power_exponent = "0.6"
fp8 = "0.88"
int8 = "0.88"
nvfp4 = "0.85"
"""
ATTENTION = """
[attention.cudnn]
kind = "measured"
source = "an example"
hardware = ["h100-sxm"]
compute_capabilities = ["9.0"]
ranges = { queries = "512..8192", keys = "512..8192" }
head_dims = ["64", "128"]
cycles = ["0.3", "0.4"]
tile_rows = ["128", "128"]
key_block = "128"
concurrency = "1"
tile_overhead = "1 us"
softness = "0.3"
tail = "1"
sustained_drop = "0.01"
"""
CURVE = """
[curves.hopper.nvlink.ring_ll]
kind = "measured"
source = "an example"
launch = "7 us"
step = "1 us"
efficiency = "0.4"
ops = "all_reduce"
smallest = "1024 B"
largest = "1048576 B"
ranks = "2..2"
median_error = "0.02"
worst_error = "0.1"
"""
TIMES = """
[times.hopper.nvlink.broadcast.graph]
kind = "measured"
source = "an example"
ranks = 2
bandwidth = "450 GB/s"
sizes = ["1 MB", "2 MB", "6 MB"]
seconds = ["10 us", "10 us", "30 us"]
median_error = "0.01"
worst_error = "0.1"
"""
REST = """
[launch]
host = "30 us"
gap = "3 us"

[runtimes.torch-eager]
host_kernel = "7 us"

[runtimes.torch-eager.functions]
norm = { traffic = 5.0, kernels = 9 }

[overlap]
send_recv = { value = "0.9", note = "two sizes" }
all_gather = "0.8"

[overlap_start]
all_gather = "200 us"

[memory]
communicator = "100 MiB"
"""
WHOLE = HEAD + POINTWISE + MATMUL + ATTENTION + CURVE + TIMES + REST
PROFILE = load_profile(WHOLE)
EMPTY = load_profile(HEAD)


def test_what_is_absent_falls_back_to_the_shipped_tables():
    device, pair = H100.device, H100.fabric(2)

    assert matmul_time(512, 512, 512, device, calibration=EMPTY.kernels) == matmul_time(
        512, 512, 512, device
    )
    assert attention_time(8, 512, 512, 128, device, calibration=EMPTY.kernels) == attention_time(
        8, 512, 512, 128, device
    )
    assert pointwise_time(1e6, device, EMPTY.kernels) == pointwise_time(1e6, device)
    assert collective_time("all_gather", 1e6, pair, calibration=EMPTY.curves) == collective_time(
        "all_gather", 1e6, pair
    )
    assert hidden_share("all_gather", 1e-3, EMPTY) == hidden_share("all_gather", 1e-3)
    assert EMPTY.runtime(runtime("torch-eager")) == runtime("torch-eager")


def test_what_is_there_is_used():
    device = H100.device

    # 512 MiB at half of 3.35 TB/s, its ramp and its floor
    assert pointwise_time(2.0**29, device, PROFILE.kernels) == pytest.approx(
        2**29 / (0.5 * 3.35e12) + 5e-6, rel=0.01
    )
    slow, fast = (
        matmul_time(8192, 8192, 8192, device, calibration=known)
        for known in (PROFILE.kernels, None)
    )
    assert slow / fast == pytest.approx(2.0, rel=0.1)  # efficiency 0.4 against 0.8
    assert attention_time(24, 4096, 4096, 128, device, calibration=PROFILE.kernels) > (
        1.5 * attention_time(24, 4096, 4096, 128, device)
    )
    assert hidden_share("send_recv", 1e-3, PROFILE) == 0.9  # of an older one, without a start
    assert hidden_share("all_gather", 1e-3, PROFILE) == 0.8 * (1 - 0.2)
    assert PROFILE.communicator.value == 100 * 2**20


def test_a_runtime_keeps_what_was_not_measured():
    shipped = runtime("torch-eager")

    found = PROFILE.runtime(shipped)

    assert found.host_kernel.value == pytest.approx(7e-6)
    assert found.host_collective == shipped.host_collective
    assert (found.fusion("norm").traffic, found.fusion("norm").kernels) == (5.0, 9)
    assert found.fusion("rotary") == shipped.fusion("rotary")
    assert PROFILE.runtime(runtime("tensorrt")) == runtime("tensorrt")


def test_curves_stand_before_the_shipped_ones_where_nccl_takes_them():
    pair = H100.fabric(2)

    small = collective_time("all_reduce", 1024.0, pair, calibration=PROFILE.curves)
    large = collective_time("all_reduce", 2.0**30, pair, calibration=PROFILE.curves)

    assert small == pytest.approx(9e-6, rel=0.05)  # launch and two steps
    assert large == collective_time("all_reduce", 2.0**30, pair)


def test_a_call_of_the_host_costs_what_was_measured():
    pair = H100.fabric(2)

    small, large = (
        collective_time("all_gather", size, pair, launch="stream", calibration=PROFILE.curves)
        for size in (1024.0, 2.0**28)
    )

    assert small == pytest.approx(30e-6)  # the host's part
    assert large == pytest.approx(collective_time("all_gather", 2.0**28, pair) + 3e-6)  # the gap


@pytest.mark.parametrize(
    ("sizes", "known"),
    [
        ({"m": 16, "n": 16, "k": 16}, Basis.MEASURED),
        ({"m": 8192, "n": 64, "k": 8192}, Basis.MEASURED),
        ({"m": 8193, "n": 64, "k": 64}, Basis.EXTRAPOLATED),
        ({"m": 8, "n": 64, "k": 64}, Basis.EXTRAPOLATED),
        ({"m": 4 * 8192, "n": 64, "k": 64}, Basis.EXTRAPOLATED),
        ({"m": 4 * 8192 + 1, "n": 64, "k": 64}, Basis.ASSUMED),
        ({"m": 3, "n": 64, "k": 64}, Basis.ASSUMED),
    ],
)
def test_products_outside_the_range_are_extrapolated(sizes, known):
    assert matmul_basis(H100.device, "bf16", PROFILE.kernels, **sizes) == known


def test_other_kernels_outside_their_range_are_extrapolated():
    device, kernels = H100.device, PROFILE.kernels

    assert attention_basis(device, "bf16", "cudnn", kernels, queries=512) == Basis.MEASURED
    assert attention_basis(device, "bf16", "cudnn", kernels, queries=9000) == Basis.EXTRAPOLATED
    assert attention_basis(device, "bf16", "fa3", kernels, queries=512) == Basis.CALIBRATED
    assert pointwise_basis(device, kernels, bytes=2.0**20) == Basis.MEASURED
    assert pointwise_basis(device, kernels, bytes=2.0**31) == Basis.EXTRAPOLATED


@pytest.mark.parametrize(
    ("op", "ranks", "size", "known"),
    [
        ("all_reduce", 2, 2.0**14, Basis.MEASURED),
        ("all_reduce", 4, 2.0**14, Basis.CALIBRATED),  # the rank dependence is the shipped one
        ("all_gather", 2, 2.0**14, Basis.CALIBRATED),  # another operation shaped the shipped one
        ("all_reduce", 2, 2.0**30, Basis.CALIBRATED),  # a curve that the profile does not have
    ],
)
def test_collectives_say_how_well_they_are_known(op, ranks, size, known):
    assert basis(op, size, H100.fabric(ranks), calibration=PROFILE.curves) == known


def test_using_a_profile_changes_nothing_for_others():
    device = H100.device
    before = matmul_time(1024, 1024, 1024, device)

    matmul_time(1024, 1024, 1024, device, calibration=PROFILE.kernels)

    assert matmul_time(1024, 1024, 1024, device) == before


def test_the_same_text_is_read_once():
    assert load_profile(WHOLE) is load_profile(WHOLE)


def test_how_far_to_trust_a_table_is_kept():
    fit = dict(PROFILE.fits)["pointwise"]

    assert (fit.rows, fit.held_out_rows, fit.split) == (30, 10, "every third")
    assert fit.held_out_median_error == 0.01
    assert dict(fit.standard_errors) == {"floor": 0.02}
    assert math.isnan(
        load_profile(HEAD + "[overlap]\n[overlap.fit]\nrows = 1\n").fits[0][1].worst_error
    )


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("format = 1", "format = 2", "format: got 2, wanted 1"),
        ("format = 1\n", "", "format"),
        ('hardware = "h100-sxm"\ndate', "date", "missing ['hardware']"),
        ('date = "2026-11-27"', 'date = "yesterday"', "date"),
        ('floor = "4 us"', 'floor = "-4 us"', "'-4 us' is not a quantity"),
        ('floor = "4 us"', 'floor = "nan us"', "'nan us' is not a quantity"),
        ('floor = "4 us"', 'floor = "4 m"', "'4 m' is not a quantity"),
        ('memory_efficiency = "0.5"', 'memory_efficiency = "0"', "more than 0"),
        ('efficiency = "0.4"\nceiling', 'efficiency = "0"\nceiling', "matmul.efficiency"),
        ('cycles = ["0.3", "0.4"]', 'cycles = ["0.3"]', "do not go together"),
        ('head_dims = ["64", "128"]', 'head_dims = ["128", "64"]', "do not go together"),
        ("norm = { traffic = 5.0", "norm = { traffic = -5.0", "'-5.0' is not a quantity"),
        ("norm = { traffic = 5.0", "norm = { traffic = 0", "positive"),
        ("norm = { traffic = 5.0, ", "norm = { ", "got kernels, wanted traffic and kernels"),
        ('send_recv = { value = "0.9"', 'send_recv = { value = "1.9"', "wanted at most 1"),
        ("send_recv = {", "carrier_pigeon = {", "unknown key of overlap 'carrier_pigeon'"),
        ("[launch]", "[lunch]", "unexpected ['lunch']"),
        ('ops = "all_reduce"\n', "", "missing ['ops']"),
        ('ranks = "2..2"', 'ranks = "two"', "malformed"),
        ("ranks = 2", 'ranks = "two"', "malformed"),
        ('"2 MB", "6 MB"', '"6 MB", "2 MB"', "do not go together"),
        ('"10 us", "30 us"', '"30 us", "10 us"', "do not go together"),
        ('"10 us", "10 us", "30 us"', '"10 us", "30 us"', "do not go together"),
        ('bandwidth = "450 GB/s"\n', "", "missing ['bandwidth']"),
        ("broadcast.graph", "broadcast.telegraph", "telegraph"),
        ("broadcast.graph", "broadcast", "got"),
        ("[pointwise]", "[pointwise", "no TOML"),
    ],
)
def test_bad_profiles_are_refused_in_one_line(before, after, says):
    assert before in WHOLE

    with pytest.raises(InputError) as caught:
        load_profile(WHOLE.replace(before, after, 1), "mine.toml")

    assert str(caught.value).startswith("mine.toml: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(end=st.integers(0, len(WHOLE)))
@settings(max_examples=60, deadline=None)
def test_a_truncated_profile_is_read_or_refused(end):
    assert reads_or_refuses(WHOLE[:end])


@given(
    place=st.integers(0, len(WHOLE) - 1),
    length=st.integers(0, 12),
    put=st.text(alphabet='0123456789.-+eE"[]{}=,\n aux_', max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_a_damaged_profile_is_read_or_refused(place, length, put):
    assert reads_or_refuses(WHOLE[:place] + put + WHOLE[place + length :])


def reads_or_refuses(text):
    """Whether it is refused in one line, or gives times."""
    try:
        found = load_profile(text)
    except InputError as error:
        return "\n" not in str(error)
    times = (
        pointwise_time(1e6, H100.device, found.kernels),
        matmul_time(512, 512, 512, H100.device, calibration=found.kernels),
    )
    return all(time > 0 for time in times)


def test_a_profile_of_other_hardware_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)

    with pytest.raises(InputError, match="a profile of h100-sxm, wanted one of b200"):
        profile_for("b200", str(path))
    assert profile_for("h100-sxm", str(path)) is PROFILE or profile_for("h100-sxm", str(path))
    assert profile_for("h100-sxm", "none") is None
    assert profile_for("t4") is None


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InputError, match="No such file"):
        read_profile(str(tmp_path / "missing"))
    with pytest.raises(InputError, match="profile"):
        read_profile(str(tmp_path))
    with pytest.raises(InputError, match="not text"):
        read_profile(str(tmp_path / "binary"))


def test_a_plan_is_priced_on_the_profile_that_is_passed(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)
    asked = {"gpus": 2, "plan": "ulysses2", "hardware": "h100-sxm"}

    shipped = planner.estimate("flux", profile="none", **asked)
    own = planner.estimate("flux", profile=str(path), **asked)

    assert own.latency_s > 1.3 * shipped.latency_s  # products and attention at half the speed
    assert own.memory_parts_bytes["buffers"] == 100 * 2**20
    assert planner.matmul(4096, 4096, 4096, profile=str(path)) > planner.matmul(
        4096, 4096, 4096, profile="none"
    )


def test_a_plan_on_a_profile_of_other_hardware_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)

    with pytest.raises(InputError, match="wanted one of h200-sxm"):
        planner.estimate("flux", gpus=1, hardware="h200-sxm", profile=str(path))
