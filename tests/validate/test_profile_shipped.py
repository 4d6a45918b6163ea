"""Profiles that ship follow from the rows that ship; one holds on a machine it never saw."""

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from costmodels.collectives import collective_time
from costmodels.profile import load_profile
from costmodels.tables import (
    own_profile,
    profile_for,
    read_profile,
    shipped_profile,
    shipped_profiles,
)
from topology.base import MIB, InputError
from topology.catalogue import find_hardware
from validate.accuracy import plans_run
from validate.bench import refit
from validate.bench.cases import OPS, all_cases
from validate.fit import report
from validate.fit.collectives import interpolated, rising_times
from validate.fit.misses import misses
from validate.fit.rows import Row, read_csv, to_csv
from validate.fit.text import to_toml
from validate.plans.compare import compare
from validate.plans.measured import read_measured

DATA = Path(str(files("validate"))) / "data"
MACHINES = {machine.hardware: machine for machine in plans_run.MACHINES if machine.profiled}
PRODUCTS = {"h100-sxm": "NVIDIA H100 80GB HBM3", "h200-sxm": "NVIDIA H200"}
H100, H200 = "h100-sxm", "h200-sxm"
NAME = MACHINES[H100].profile
FOLDER = DATA / MACHINES[H100].folder
PAIR = find_hardware(H100).fabric(2)

every_kind = pytest.mark.parametrize("kind", [H100, H200])


def folder(kind):
    return DATA / MACHINES[kind].folder


@cache
def rows(name, kind=H100):
    return refit.read(folder(kind) / name)


@cache
def place(kind=H100):
    return refit.measured_on(refit.system.read_document(folder(kind) / "manifest.json"))


@cache
def refitted(kind):
    return refit.fit(folder(kind))


def errors(name, profile=NAME, kind=H100, **chosen):
    """Predicted over measured, less one, of rows with these families, modes and sizes."""
    some = [row for row in rows(name, kind) if serves(row, chosen)]
    known = read_profile(profile) if profile else None
    return np.array([miss.error for miss in misses(some, place(kind), known)])


def serves(row, chosen):
    if row.family == "collective" and row.number("bytes") < MIB:
        return False
    found = {"family": row.family, "mode": row.mode, **row.sizes}
    return all(found.get(key) == value for key, value in chosen.items())


@every_kind
def test_it_is_known_by_its_name(kind):
    name = MACHINES[kind].profile
    found = read_profile(name)

    assert name in shipped_profiles()
    assert found.name == name
    assert profile_for(kind, name) is found


def test_a_profile_is_of_one_kind():
    with pytest.raises(InputError, match="a profile of h100-sxm, wanted one of b200"):
        profile_for("b200", NAME)


@every_kind
def test_without_asking_only_what_holds_elsewhere_is_used(kind):
    """Products and collectives are one machine's; published figures know better (decision 5)."""
    usual, name = shipped_profile(kind), MACHINES[kind].profile
    assert usual is not None
    assert usual.kernels.matmul is None
    assert not usual.curves.curves
    assert not usual.curves.times
    shipped, without, own = (
        planner.collective("all_gather", 4.0 * MIB, gpus=2, hardware=kind, profile=profile)
        for profile in ("", "none", name)
    )
    assert shipped == without != own
    heads = [
        planner.attention(24, 4608, 4608, 128, hardware=kind, profile=profile)
        for profile in ("", "none", name)
    ]
    assert heads[0] == heads[2] != heads[1]


@every_kind
def test_the_usual_one_is_a_part_of_the_machine_s_own(kind):
    """Attention, element-wise work, runtimes, overlap and memory, number for number."""
    usual, own = shipped_profile(kind), read_profile(MACHINES[kind].profile)

    assert usual is not None
    assert (usual.source, usual.machine) == (own.source, own.machine)
    assert usual.kernels.attention == own.kernels.attention
    assert usual.kernels.pointwise == own.kernels.pointwise
    assert usual.runtimes == own.runtimes
    assert usual.overlap == own.overlap
    assert usual.overlap_start == own.overlap_start
    assert usual.communicator == own.communicator


@every_kind
def test_the_very_machine_gets_it(kind):
    """As --detect asks: by the GPU's name and how many there are."""
    product = PRODUCTS[kind]

    assert own_profile(kind, product, 2) == read_profile(MACHINES[kind].profile)
    assert own_profile(kind, product, 8) is None
    assert own_profile("b200", product, 2) is None


def test_a_profile_of_ones_own_comes_first(tmp_path, monkeypatch):
    text = to_toml(replace(read_profile(NAME), date="2027-01-01"))
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.setenv("PLANNER_PROFILES", str(tmp_path))

    found = own_profile("h100-sxm", "NVIDIA H100 80GB HBM3", 2)

    assert found is not None
    assert found.date == "2027-01-01"


@pytest.mark.parametrize("op", OPS)
def test_collectives_hold_on_another_pair_of_gpus(op):
    """Two other GPUs of the kind, at octaves and between: the median within 4 %."""
    size = np.abs(errors("second_pair.csv", family="collective", op=op, mode="graph"))

    assert size.size == 21
    assert np.median(size) <= 0.04
    assert np.quantile(size, 0.9) <= 0.15
    # and twice as well as the shipped curves, which are of other people's machines
    others = errors("second_pair.csv", "", family="collective", op=op, mode="graph")
    assert np.median(size) < 0.5 * np.median(np.abs(others))


def test_calls_of_the_host_hold_where_the_gpu_is_the_slower():
    """Below some 16 MiB a call takes as long as its host does: 24 us on one machine, 43 on two."""
    large = [
        miss.error
        for miss in misses(rows("second_pair.csv"), place(), read_profile(NAME))
        if " stream" in miss.group and int(miss.key.partition("bytes=")[2]) >= 32 * MIB
    ]

    assert np.median(np.abs(large)) <= 0.04


REPRODUCED = [
    ({"family": "matmul", "mode": "sustained", "precision": "bf16"}, 0.05),
    ({"family": "matmul", "mode": "sustained", "precision": "fp8"}, 0.05),
    ({"family": "attention", "mode": "sustained cudnn", "kernel": "default"}, 0.05),
    ({"family": "attention", "mode": "sustained fa2", "kernel": "flash"}, 0.05),
    ({"family": "collective", "mode": "graph", "op": "all_to_all"}, 0.01),
]
ADDITIONS = {"family": "pointwise", "mode": "sustained", "how": "add"}


@pytest.mark.parametrize(
    ("kind", "chosen", "median"),
    [
        *[(kind, chosen, median) for kind in (H100, H200) for chosen, median in REPRODUCED],
        (H100, ADDITIONS, 0.03),
        (H200, ADDITIONS, 0.05),  # 3.9 %
    ],
)
def test_it_reproduces_what_was_measured(kind, chosen, median):
    found = errors("rows.csv", MACHINES[kind].profile, kind, **chosen)

    assert np.median(np.abs(found)) <= median


@every_kind
@pytest.mark.parametrize("name", ["matmul", "attention.cudnn", "attention.fa2", "pointwise"])
def test_kernels_are_judged_by_rows_that_were_kept_back(kind, name):
    fit = dict(read_profile(MACHINES[kind].profile).fits)[name]

    assert fit.held_out_rows >= 8
    assert fit.held_out_median_error <= 0.05


@pytest.mark.parametrize(("kind", "held_out"), [(H100, 10), (H200, 20)])
def test_times_are_judged_by_every_second_size(kind, held_out):
    """Sizes a factor of four apart, or two, say what lies between them to within 5 %."""
    found = read_profile(MACHINES[kind].profile)
    fits = {name: fit for name, fit in found.fits if name.endswith(".graph")}

    assert len(fits) == len(OPS)
    assert all(fit.held_out_rows == held_out for fit in fits.values())
    assert all(fit.held_out_median_error <= 0.05 for fit in fits.values())
    assert np.median([fit.held_out_median_error for fit in fits.values()]) <= 0.03


@every_kind
def test_it_follows_from_the_rows_beside_it(kind):
    shipped, again = read_profile(MACHINES[kind].profile), refitted(kind)

    assert again.source == shipped.source
    assert again.curves.times == shipped.curves.times
    assert again.runtimes == shipped.runtimes
    assert again.overlap == shipped.overlap
    assert again.overlap_start == shipped.overlap_start
    ours, theirs = report.examples(again), report.examples(shipped)
    assert ours == pytest.approx(theirs, rel=0.01)  # solvers differ in the last digits
    assert load_profile(to_toml(shipped)).curves.times == shipped.curves.times


@every_kind
def test_plans_that_were_run_are_no_worse_for_the_profile(kind):
    """Plans are in no fit. 9 of 10 steps are off by at most 4.3 % without one on 2 x H100, 4.7
    by default and 4.1 with its own; on 2 x H200 7.2, 4.3 and 3.9 %. The median is 2.3, 1.6 and
    1.7 %, and 3.9, 1.9 and 1.6 %. Eager steps of Wan 2.1 1.3B on H100 are the worst: 6.7 % without
    a profile, 7.5 by default.
    """
    text = (folder(kind) / "plans.jsonl").read_text(encoding="utf-8")
    done = [row for row in read_measured(text) if row.status == "done"]
    names = ("none", "", MACHINES[kind].profile)
    errors = [[abs(one.step_error) for one in compare(done, kind, name)] for name in names]
    for share, slack in ((1.0, 0.01), (0.9, 0.005), (0.5, -0.005)):
        without, usual, own = (np.quantile(some, share) for some in errors)
        assert usual <= without + slack
        assert own <= without + slack


@every_kind
def test_keys_that_fill_no_last_block_take_a_share_longer(kind):
    """Without the share both medians were 2 to 6 % off, to opposite sides."""
    found = read_profile(MACHINES[kind].profile)
    known = dict(found.kernels.attention)
    some = [
        row
        for row in rows("rows.csv", kind)
        if row.mode == "sustained cudnn"
        and row.number("queries") > 1
        and row.number("heads") * row.number("queries") * row.number("keys") > 3e8
    ]
    full, ragged = (
        np.median([miss.error for miss in misses(part, place(kind), found)])
        for part in (
            [row for row in some if row.number("keys") % 128 == 0],
            [row for row in some if row.number("keys") % 128],
        )
    )

    assert known["cudnn"].ragged == pytest.approx(0.1, abs=0.01)
    assert known["fa2"].ragged == 0.0
    assert abs(full) < 0.015
    assert abs(ragged) < 0.015


@every_kind
def test_rows_name_no_machine(kind):
    for path in folder(kind).iterdir():
        text = path.read_text(encoding="utf-8")
        assert "uuid" not in text
        assert "/usr" not in text


def test_a_replayed_call_costs_more_where_graphs_may_mix():
    """NCCL_GRAPH_MIXING_SUPPORT=0 takes 6 to 12 us off every replayed call of up to 8 MiB."""
    usual = {row.key: row.seconds for row in rows("second_pair.csv") if row.mode == "graph"}
    saved, kept = (
        [
            usual[row.key] - row.seconds
            for row in rows(name)
            if row.mode == "graph" and row.number("bytes") <= 8 * MIB
        ]
        for name in (
            "second_pair_without_graph_mixing.csv",
            "second_pair_without_registration.csv",
        )
    )

    assert 6e-6 < np.median(saved) < 12e-6
    assert abs(np.median(kept)) < 1e-6  # registered buffers are not the reason


@every_kind
def test_rows_read_back_as_they_were_kept(kind):
    text = (folder(kind) / "rows.csv").read_text(encoding="utf-8")

    assert to_csv(read_csv(text)) == text


@pytest.mark.parametrize("after", ["matmul m=8,short", ",,,,,,,,", "matmul m=8,short,x,,,,,,"])
def test_a_damaged_table_is_refused(after):
    header = to_csv([])

    with pytest.raises(InputError, match=r"mine\.csv, line 2: .*got .*, wanted"):
        read_csv(header + after + "\n", "mine.csv")
    with pytest.raises(InputError, match="wanted columns case, mode"):
        read_csv("something else\n")


def test_a_failure_is_kept_with_its_reason():
    failed = Row(
        key="matmul m=9", family="matmul", sizes={"m": 9}, mode="failed", values={}, error="a, b"
    )

    assert read_csv(to_csv([failed])) == [failed]


@every_kind
def test_a_manifest_loses_names_only(kind):
    kept = refit.system.read_document(folder(kind) / "manifest.json")

    assert refit.without_names(kept) == kept
    assert kept["software"]["nccl"] == "2.28.9"
    assert "NCCL_NVLS_ENABLE=0" in kept["environment"]


def test_a_refit_writes_and_judges(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(refit, "fit", lambda _: read_profile(NAME))
    asked = ["--measurements", str(FOLDER), "--output", str(tmp_path / "mine.toml")]

    assert refit.main([*asked, "--against", str(FOLDER / "second_pair.csv")]) == 0
    said = capsys.readouterr().err
    assert "ninth decile" in said
    assert "profile on second_pair.csv, in percent" in said
    assert read_profile(str(tmp_path / "mine.toml")).curves.times == (
        read_profile(NAME).curves.times
    )
    assert refit.main(asked) == 2  # never over what is there
    assert "exists already" in capsys.readouterr().err


points = st.lists(
    st.tuples(st.sampled_from([2.0**k for k in range(10, 20)]), st.floats(1e-6, 1e-2)),
    min_size=1,
    max_size=20,
).map(sorted)


@given(points)
def test_times_rise_and_stay_inside_what_was_measured(some):
    found = rising_times(some)
    sizes, times = zip(*found, strict=True)

    assert list(sizes) == sorted(set(sizes))
    assert list(times) == sorted(times)
    assert {sizes[0], sizes[-1]} == {some[0][0], some[-1][0]}
    assert min(t for _, t in some) <= times[0] <= times[-1] <= max(t for _, t in some)


def test_what_rises_already_is_left_alone():
    some = [(2.0**k, 1e-6 * 1.5**k) for k in range(10)]

    assert rising_times(some) == some
    assert interpolated(some, 2.0**4) == pytest.approx(1e-6 * 1.5**4)


def test_one_disturbed_call_bends_nothing():
    some = [(2.0**k, 1e-6 * 1.5**k) for k in range(10)]
    spoilt = [(size, 9 * time if size == 16.0 else time) for size, time in some]

    found = rising_times(spoilt)

    for size, time in some:
        assert interpolated(found, size) == pytest.approx(time, rel=0.6)
    assert interpolated(found, 2.0**9) == some[-1][1]


def test_sizes_between_octaves_are_measured_too():
    cases = [case for case in all_cases(2) if case.key.startswith("collective op=all_gather")]
    sizes = {case.number("bytes") for case in cases}

    assert {2**20, 3 * 2**19, 2**21, 3 * 2**28, 2**30} <= sizes
    assert collective_time("all_gather", float(min(sizes)), PAIR) > 0
