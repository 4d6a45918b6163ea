"""Rows made from known parameters give them back; a profile is written once, and says how good."""

import json
from dataclasses import replace

import numpy as np
import pytest

from costmodels.collectives import collective_time, read_op
from costmodels.collectives.algorithms.ring import Ring
from costmodels.collectives.tables import library, tuning
from costmodels.kernels import attention, attention_time, matmul, matmul_time
from costmodels.kernels.pointwise import pointwise_time
from costmodels.kernels.tables import (
    KernelCalibration,
    attention_record,
    matmul_record,
    pointwise_record,
)
from costmodels.profile import load_profile
from costmodels.tables import read_profile
from topology.base import InputError
from topology.base.table import document, terminal
from topology.catalogue import find_hardware
from validate.accuracy.collectives import CollectiveFigure
from validate.calibrate import CalibrationTask, check_gpus, check_paths, finish
from validate.fit import report
from validate.fit.collectives import MeasuredOn, builder, curve_of
from validate.fit.least_squares import SPLIT, Problem, is_held_out, minimise
from validate.fit.misses import HEADERS, miss_rows, misses
from validate.fit.profile import Measurements, fabric_of, fit_profile, hardware_of
from validate.fit.rows import Row, line
from validate.fit.runtimes import FunctionSample, fusion_of
from validate.fit.text import to_toml

H100 = find_hardware("h100-sxm")
PAIR = H100.fabric(2)
NCCL = tuning().at((2, 28))
NOISE = 0.02
TRUE = KernelCalibration(
    identity="true",
    matmul=replace(matmul_record(H100.device, None), efficiency=0.70, floor=2.6e-6),
    pointwise=replace(pointwise_record(H100.device, None), floor=1.6e-6, memory_efficiency=0.93),
    attention=(
        (
            "cudnn",
            replace(attention_record("cudnn", H100.device, None), cycles=(0.17, 0.24, 0.45)),
        ),
    ),
)
LAUNCH, EFFICIENCY = 1.25, 0.96  # of the true curves over the shipped ones
MANIFEST = {
    "machine": {
        "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85520809984}] * 2,
        "ranks": 2,
        "peer_access": True,
    },
    "software": {"nccl": "2.28.9", "torch": "2.11.0"},
    "driver": "580.159.04\n580.159.04",
    "date": "2026-11-27",
}


def rows_of_a_known_machine():
    rng = np.random.default_rng(3)
    rows = [*products(), *scores(), *streams(), *messages(), *others()]
    return [
        replace(
            row,
            values={
                name: value * (float(np.exp(rng.normal(0, NOISE))) if name == "seconds" else 1)
                for name, value in row.values.items()
            },
        )
        for row in rows
    ]


def row(family, mode, seconds, **sizes):
    key = " ".join([family, *(f"{name}={value}" for name, value in sizes.items())])
    values = {"seconds": float(seconds)}
    return Row(key=key, family=family, sizes=sizes, mode=mode, values=values)


def products():
    for m in (1, 16, 128, 512, 2048, 4608, 16384):
        for n, k in ((3072, 3072), (12288, 3072), (4096, 14336), (256, 4096)):
            for mode, busy in (("short", False), ("sustained", True)):
                time = matmul_time(m, n, k, H100.device, sustained=busy, calibration=TRUE)
                yield row("matmul", mode, time, m=m, n=n, k=k, precision="bf16")


def scores():
    for heads in (3, 12, 24):
        for queries, keys in ((1024, 1024), (4608, 4608), (2304, 4608), (16384, 16384)):
            for size in (64, 128):
                time = attention_time(
                    heads, queries, keys, size, H100.device,
                    kernel="cudnn", sustained=True, calibration=TRUE,
                )  # fmt: skip
                sizes = {"heads": heads, "kv_heads": heads, "queries": queries, "keys": keys}
                more = {"head_dim": size, "batch": 1, "causal": 0, "kernel": "default"}
                yield row("attention", "sustained cudnn", time, **sizes, **more)


def streams():
    for how in ("copy", "add"):
        for octave in range(14, 31, 2):
            time = pointwise_time(2.0**octave, H100.device, TRUE)
            yield row("pointwise", "sustained", time, how=how, bytes=2**octave)


def true_curve(name):
    shipped = library().get(PAIR, name).curve
    return replace(
        shipped, launch=shipped.launch * LAUNCH, efficiency=shipped.efficiency * EFFICIENCY
    )


def messages():
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        for octave in range(10, 31):
            op, size = read_op(name), float(2**octave)
            measured = CollectiveFigure(op=op, fabric=PAIR, message_bytes=size, seconds=1.0)
            curve = curve_of(measured, NCCL)
            time = builder(curve)(true_curve(curve), op, PAIR).time(size)
            yield row("collective", "graph", time, op=name, bytes=2**octave)
            yield row("collective", "stream", max(50e-6, time + 4e-6), op=name, bytes=2**octave)


def others():
    for op in ("all_reduce", "all_gather"):
        yield row("host", "host", 50e-6, op=op)
    for way, each in (("eager", 45e-6), ("compiled", 24e-6)):
        for layers in (2, 8):
            yield row("stack", "host", 30e-6 + each * layers, layers=layers, way=way)
    for work, each, noise in (("matmul", 1e-4, 0.02), ("attention", 3e-4, 0), ("matmul", 1e-3, 0)):
        share = 0.7 * (1 - 6e-5 / each) + noise
        values = {"seconds": 1e-3, "share": share, "communication": 20 * each, "messages": 20.0}
        yield replace(row("beside", "streams", 1, op="all_gather", work=work), values=values)
    values = {"seconds": 1e-3, "share": 0.5, "communication": 2e-3, "messages": 20.0}
    yield replace(row("beside", "streams", 1, op="broadcast", work="matmul"), values=values)
    for stage, size in (("attention", 9e8), ("communicator", 4e8), ("second", 3e8)):
        values = {"bytes": size, "more_bytes": size}
        yield replace(row("memory", "used", 1, stage=stage), values=values)


@pytest.fixture(scope="module")
def rows():
    return rows_of_a_known_machine()


@pytest.fixture(scope="module")
def profile(rows):
    measured = Measurements(rows=rows, manifest=MANIFEST, source="known, sha256 0")
    return fit_profile(measured)


def test_kernels_are_predicted_within_the_noise(profile):
    kernels, device = profile.kernels, H100.device
    sizes = {"sustained": True}

    for m in (64, 1024, 8192):
        ours = matmul_time(m, 9216, 3072, device, calibration=kernels, **sizes)
        assert ours == pytest.approx(
            matmul_time(m, 9216, 3072, device, calibration=TRUE, **sizes), rel=1.5 * NOISE
        )
    for heads, tokens in ((24, 9216), (6, 4608)):
        ours = attention_time(heads, tokens, tokens, 128, device, calibration=kernels, **sizes)
        assert ours == pytest.approx(
            attention_time(heads, tokens, tokens, 128, device, calibration=TRUE, **sizes),
            rel=1.5 * NOISE,
        )
    assert pointwise_time(3e7, device, kernels) == pytest.approx(
        pointwise_time(3e7, device, TRUE), rel=NOISE
    )


def test_parameters_come_back_within_their_errors(profile):
    found = {value.name: value for value in report.values(profile)}

    for name, true in (
        ("pointwise.memory_efficiency", 0.93),
        ("pointwise.floor", 1.6e-6),
        ("matmul.floor", 2.6e-6),
        ("attention.cudnn.cycles@0", 0.17),
        ("attention.cudnn.cycles@1", 0.24),
    ):
        value = found[name]
        assert 0 < value.error < 0.1
        assert abs(value.value / true - 1) < 4 * value.error, name


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("size", [2.0**12, 2.0**16, 2.0**28])
def test_two_gpus_tell_of_more(profile, ranks, size):
    """Launch and link are the same for all group sizes; steps and copies are kept."""
    node = H100.fabric(ranks)
    name = "ring_ll" if size < 2.0**20 else "ring_simple"
    true = Ring(op="all_gather", fabric=node, curve=true_curve(name)).time(size)

    ours = collective_time("all_gather", size, node, algorithm="ring", calibration=profile.curves)

    assert ours == pytest.approx(true, rel=0.05)


def test_what_is_no_kernel_and_no_link_is_read_off(profile):
    runtimes = dict(profile.runtimes)

    assert runtimes["torch-eager"].host_kernel.value == pytest.approx(9e-6, rel=0.15)
    assert runtimes["torch-compile"].host_kernel.value == pytest.approx(6e-6, rel=0.15)
    assert runtimes["torch-eager"].host_collective.value == pytest.approx(50e-6, rel=0.05)
    assert profile.curves.host == pytest.approx(50e-6, rel=0.05)
    assert profile.curves.gap == pytest.approx(4e-6, abs=8e-6)
    assert profile.hiding("all_gather") == pytest.approx((0.7, 6e-5), rel=0.1)
    assert profile.hiding("broadcast") == (0.5, 0.0)  # one size
    assert profile.hiding("all_reduce") is None
    assert profile.communicator.value == pytest.approx(3e8, rel=1e-3)
    assert runtimes["torch-eager"].memory.value == pytest.approx(9e8, rel=1e-3)


def test_every_fit_is_judged_by_rows_it_did_not_see(rows, profile):
    fits = dict(profile.fits)

    assert {"matmul", "pointwise", "attention.cudnn"} <= set(fits)
    assert fits["matmul"].split == SPLIT
    assert fits["matmul"].held_out_rows == sum(
        is_held_out(row.key) for row in rows if row.family == "matmul" and row.mode == "sustained"
    ) + sum(
        is_held_out(row.key)
        for row in rows
        if row.family == "matmul" and row.mode == "short" and row.seconds >= 1e-3
    )
    assert all(fit.held_out_median_error < 2 * NOISE for fit in (fits["matmul"], fits["pointwise"]))


def test_a_profile_reads_back_as_it_was_written(profile):
    again = load_profile(to_toml(profile) + "\n")

    assert to_toml(again) == to_toml(profile)
    assert again.kernels.matmul == profile.kernels.matmul
    assert dict(again.machine)["gpu"] == "NVIDIA H100 80GB HBM3"
    assert dict(again.software)["driver"] == "580.159.04"


def test_a_disturbed_row_bends_nothing():
    x = np.linspace(1, 10, 12)
    y = 3 * x
    y[4] *= 4

    found = minimise(Problem(first={"slope": 2.0}, ratio=lambda v: v["slope"] * x / y))

    assert found.values["slope"] == pytest.approx(3.0, rel=0.01)


def test_what_rows_do_not_say_stays_where_it_started():
    x = np.array([1.0, 2.0, 4.0])

    found = minimise(
        Problem(first={"slope": 1.0, "other": 5.0}, ratio=lambda v: v["slope"] * x / (2 * x))
    )

    assert found.values["other"] == pytest.approx(5.0)
    assert found.errors["other"] > 10 * found.errors["slope"]


@pytest.mark.parametrize(("traffic", "kernels"), [(1.0, 1), (12.0, 30), (2.0, 3)])
def test_kernels_and_traffic_of_a_function_come_back(traffic, kernels):
    samples = [
        FunctionSample(
            traffic=size,
            seconds=kernels * pointwise_time(size * traffic / kernels, H100.device),
        )
        for size in (4e5, 3e6, 3e7, 2e8)
    ]

    found = fusion_of(samples, H100.device, None)

    assert (found.traffic, found.kernels) == (traffic, kernels)


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="got 0 good rows"):
        fit_profile(Measurements(rows=[], manifest=MANIFEST, source="none"))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "got no GPU"),
        (["NVIDIA L4", "Tesla T4"], "different GPUs"),
        (["NVIDIA H100 80GB HBM3 MIG 1g.10gb"], "a slice of a GPU"),
        (["Voodoo 2"], "not in the catalogue"),
    ],
)
def test_machines_that_cannot_be_fitted_are_refused(names, says):
    with pytest.raises(InputError, match=says):
        hardware_of({"machine": {"gpus": [{"name": name} for name in names]}})


def test_gpus_without_peer_access_talk_through_the_host():
    machine = {**MANIFEST["machine"], "peer_access": False}

    assert fabric_of(MANIFEST, "h100-sxm") == PAIR
    assert not fabric_of({"machine": machine}, "h100-sxm").peer_to_peer


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ("", "lists no GPU"),
        ("NVIDIA L4, [N/A]\nTesla T4, [N/A]", "different GPUs"),
        ("NVIDIA H100 80GB HBM3, Enabled", "MIG"),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(listed, says):
    with pytest.raises(InputError, match=says):
        check_gpus(listed)


def test_a_profile_is_written_once(tmp_path, rows):
    task = CalibrationTask(output=tmp_path / "mine.toml")
    text = "".join(line(row) + "\n" for row in rows)

    found = finish(task, text, json.dumps(MANIFEST))
    again = read_profile(str(task.output))

    assert again.name == found.profile.name == "h100-sxm-x2-2026-11-27"
    assert again.source.startswith("mine.measurements/rows.jsonl, sha256 ")
    tables = json.loads(json.dumps(found.to_dict(), allow_nan=False))["tables"]
    assert [row["table"] for row in tables] == [name for name, _ in again.fits]
    with pytest.raises(InputError, match="exists already"):
        check_paths(task)
    with pytest.raises(InputError, match="exists already"):
        finish(task, text, json.dumps(MANIFEST))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"machine": 3}'])
def test_a_damaged_manifest_is_refused(tmp_path, manifest):
    task = CalibrationTask(output=tmp_path / "mine.toml")

    with pytest.raises(InputError, match="manifest: "):
        finish(task, "", manifest)


def test_measurements_from_before_are_not_mixed_in_unasked(tmp_path):
    task = CalibrationTask(output=tmp_path / "mine.toml")
    task.folder.mkdir()

    with pytest.raises(InputError, match="wanted --resume"):
        check_paths(task)
    check_paths(replace(task, resume=True))
    with pytest.raises(InputError, match="no folder"):
        check_paths(CalibrationTask(output=tmp_path / "nowhere" / "mine.toml"))


def test_two_profiles_are_compared(profile):
    kernels = profile.kernels
    slower = replace(kernels.matmul, floor=1.6 * kernels.matmul.floor)
    other = replace(profile, kernels=replace(kernels, matmul=slower))

    changed = {change.name: change for change in report.changes(profile, other)}

    assert changed["matmul.floor"].second / changed["matmul.floor"].first > 1.3
    assert changed["matmul.floor"].sigmas > 3
    assert changed["matmul.efficiency"].sigmas == 0
    assert len(report.change_rows(profile, other)) == len(changed)
    assert all(cells[-1] == "+0.0 %" for cells in report.example_rows(profile, profile))
    json.dumps(report.diff_to_dict(profile, other), allow_nan=False)
    json.dumps(report.to_dict(profile), allow_nan=False)
    with pytest.raises(InputError, match="the same hardware"):
        report.changes(profile, replace(other, hardware="b200"))


def test_the_formulas_under_the_fit_are_those_that_price():
    prepared = matmul.prepare(H100.device, "bf16", TRUE)
    scored = attention.prepare(H100.device, "bf16", "cudnn", TRUE)

    assert prepared.parameters.efficiency == 0.70
    assert scored.parameters.cycles == (0.17, 0.24, 0.45)
    assert scored.memory_efficiency == 0.93


@pytest.mark.parametrize("write", [terminal, document])
def test_profiles_are_written_for_people(profile, write):
    shown, compared = write(report.show(profile)), write(report.diff(profile, profile))

    assert "NVIDIA H100 80GB HBM3" in shown
    assert "matmul.efficiency" in shown
    assert "all_reduce of 64 MiB on 2" in compared
    assert ("| --- |" in shown) == (write is document)


def test_a_profile_is_nearer_to_its_rows_than_the_shipped_tables(rows, profile):
    place = MeasuredOn(device=H100.device, fabric=PAIR, nccl=(2, 28))

    def usual(known):
        return float(np.median([abs(miss.error) for miss in misses(rows, place, known)]))

    assert usual(profile) < NOISE < usual(None)
    assert all(len(cells) == len(HEADERS) for cells in miss_rows(misses(rows, place, profile)))
