"""A sweep asks many questions at once, and every row is what its question gets alone."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from commands import assert_refused, run

import planner
from planner.request.request import Request
from planner.sweeping import run as answer
from planner.sweeping.executors import _by_model, dask, local
from planner.sweeping.files import keep, taken_up
from planner.sweeping.portion import _shared_by_workloads, rows_of
from planner.sweeping.questions import Questions, read_numbers
from topology.base import InputError, locked_folder

FLUX = {"models": "flux", "hardware": ["h100-sxm", "l40s"], "gpus": "1,4", "height": (512, 1024)}


def questions_of(**lists):
    usual = {"models": ("flux",), "hardware": ("h100-sxm",), "sizes": {}}
    return Questions(**{**usual, **lists}, request=Request(model="flux"))


def test_every_row_is_the_estimate_of_its_question():
    rows = planner.sweep(**FLUX, width=1024, plan="all")

    assert {(row["hardware"], row["gpus"], row["height"]) for row in rows} == {
        (hardware, gpus, height)
        for hardware in ("h100-sxm", "l40s")
        for gpus in (1, 4)
        for height in (512, 1024)
    }
    for row in rows:
        sizes = {name: row[name] for name in ("hardware", "gpus", "plan", "height")}
        alone = planner.estimate("flux", width=1024, **sizes)
        assert row["latency_s"] == pytest.approx(alone.latency_s, rel=1e-12)
        assert row["memory_bytes"] == pytest.approx(alone.memory_bytes, rel=1e-9)
        assert row["throughput_per_s"] == pytest.approx(alone.throughput_per_s, rel=1e-12)


def test_the_best_is_the_fastest_of_all_that_fit_and_run():
    every = planner.sweep(**FLUX, width=1024, plan="all")
    best = planner.sweep(**FLUX, width=1024)

    asked = ("hardware", "gpus", "height")
    assert len(best) == 8
    for row in best:
        same = [one for one in every if all(one[name] == row[name] for name in asked)]
        able = [one["latency_s"] for one in same if one["fits"] and one["runs"]]
        assert row["latency_s"] == min(able)


def test_language_models_range_over_their_tokens():
    rows = planner.sweep("llama-3.1-8b", gpus=2, plan="tp2", input_tokens="512:2048:1536")

    assert [row["input_tokens"] for row in rows] == [512, 2048]
    for row in rows:
        alone = planner.estimate(
            "llama-3.1-8b", gpus=2, plan="tp2", input_tokens=row["input_tokens"]
        )
        assert row["latency_s"] == pytest.approx(alone.latency_s, rel=1e-12)


def test_what_is_named_twice_is_asked_once():
    once = planner.sweep("flux", hardware="h100-sxm, l40s", gpus=2, plan="tp2")
    twice = planner.sweep("flux,flux", hardware="h100-sxm,l40s,l40s", gpus="2,2", plan="tp2,tp2")

    assert list(once) == list(twice)
    assert len(list(once)) == 2


def test_what_cannot_run_is_a_row_with_its_reason():
    (illegal,) = planner.sweep("flux", gpus=7, plan="tp7")
    (large,) = planner.sweep("llama-3.1-405b", gpus=1, plan="single")
    (nothing,) = planner.sweep("llama-3.1-405b", gpus=1)

    assert "7" in illegal["reason"]
    assert illegal["latency_s"] is None
    assert large["reason"].startswith("needs ")
    assert not large["fits"]
    assert nothing["reason"] == "no plan is legal, fits and can be run"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("8", (8,)), ("1,2,4", (1, 2, 4)), ("1:4,2", (1, 2, 3, 4)), ("10:30:10", (10, 20, 30))],
)
def test_lists_and_ranges_are_read(text, numbers):
    assert read_numbers("gpus", text) == numbers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "1:0"), "gpus: got '1:0', wanted numbers such as"),
        (("--gpus", "1:4:0"), "gpus: got '1:4:0', wanted numbers such as"),
        (("--gpus", "0"), "gpus: got 0, wanted from 1 to"),
        (("--gpus", "4;8"), "gpus: got '4;8', wanted"),
        (("--plan", "all,tp2"), "plan: got all beside others"),
        (("--plan", "pt2"), "unknown axis 'pt'"),
        (("--plan", "single,tp2"), "gpus: got none of 2, wanted that of plan tp2 among them"),
        (("--hardware", "h100-sxm,"), "hardware: got an empty one"),
        (("--model", "flx"), "did you mean flux"),
        (("--input-tokens", "512"), "input_tokens: got 512, wanted none"),
        (("--executor", "dask"), "scheduler: got none beside dask, wanted an address"),
        (("--scheduler", "tcp://x:1"), "scheduler: got tcp://x:1 beside local, wanted none"),
        (("--executor", "ray"), "unknown executor 'ray'"),
        (("--output", "rows.txt"), "wanted a file that ends in .csv, .jsonl or .parquet"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    usual = {"--model": "flux", "--output": "rows.csv", **dict([words])}

    assert_refused(*run("sweep", *(word for pair in usual.items() for word in pair)), said)
    assert list(tmp_path.iterdir()) == []


def test_files_hold_the_same_rows(tmp_path):
    words = ("sweep", "--model", "flux", "--gpus", "1,2", "--plan", "all")
    for ending in ("csv", "jsonl"):
        code, out, _ = run(*words, "--output", str(tmp_path / f"a.{ending}"))
        assert (code, " rows of 2 questions in " in out) == (0, True)

    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    with (tmp_path / "a.csv").open() as file:
        table = list(csv.DictReader(file))
    assert lines == list(planner.sweep("flux", gpus=(1, 2), plan="all"))
    assert [row["plan"] for row in table] == [row["plan"] for row in lines]
    assert [float(row["latency_s"]) for row in table] == [row["latency_s"] for row in lines]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.jsonl"]


def test_parquet_holds_the_same_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run("sweep", "--model", "flux", "--gpus", "1,2", "--output", str(tmp_path / "a.parquet"))

    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert rows == list(planner.sweep("flux", gpus=(1, 2)))


def in_use(folder):
    try:
        with locked_folder(folder, "in use"):
            return False
    except InputError:
        return True


def test_a_sweep_that_was_killed_goes_on_with_what_is_done(tmp_path):
    """Killed when its first portion is there; the rest gives the rows of a sweep that was not."""
    words = ["sweep", "--model", "flux", "--gpus", "1:6", "--plan", "all", "--output", "a.jsonl"]
    words_here = [sys.executable, "-m", "planner", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    killed = subprocess.Popen(words_here, cwd=tmp_path, start_new_session=True, env=environment)
    kept = tmp_path / "a.jsonl.portions"
    while not list(kept.glob("*.json")):
        assert killed.poll() is None, "it ended before it was killed"
        time.sleep(0.01)
    assert_refused(*run(*words[:-1], str(tmp_path / "a.jsonl"), "--resume"), "in use by another")
    killed.kill()
    killed.wait()
    until = time.monotonic() + 300
    while in_use(kept):  # by processes that end with the one that started them
        assert time.monotonic() < until
        time.sleep(0.01)
    before = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    output = str(tmp_path / "a.jsonl")

    assert_refused(*run(*words[:-1], output), "of an unfinished sweep, wanted --resume")
    other = [*words[:-1], output, "--resume", "--batch", "2"]
    assert_refused(*run(*other), "is of another sweep")
    assert {path.name: path.stat().st_mtime_ns for path in kept.glob("*.json")} == before
    code, _, err = run(*words[:-1], output, "--resume")

    assert code == 0
    assert f"{len(before)} of 6 portions were done before" in err
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert rows == list(planner.sweep("flux", gpus="1:6", plan="all"))
    assert not kept.exists()


def test_a_frame_has_a_line_for_each_row():
    pytest.importorskip("pandas")
    rows = planner.sweep("flux", gpus=(1, 2))

    assert list(rows.to_frame()["plan"]) == [row["plan"] for row in rows]


@pytest.mark.parametrize("gpus", [(1,), (1, 2)])
def test_a_notebook_shows_rows_and_latencies_over_several_numbers_of_gpus(gpus):
    shown = planner.sweep("flux", gpus=gpus)._repr_html_()

    assert "<table" in shown
    assert ("<svg" in shown) == (len(gpus) > 1)


def test_without_a_package_of_frames_its_name_is_said(monkeypatch):
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(InputError, match="got neither pandas nor polars, wanted one of them"):
        planner.sweep("flux").to_frame()


def test_a_cluster_that_loses_a_worker_gives_the_same_digits():
    """The worker is lost when the first portion has come back.

    Results that it had are asked of it again and again until a connection counts as failed, which
    takes 30 s where nobody says otherwise.
    """
    distributed = pytest.importorskip("distributed")
    given_up = {"distributed.comm.timeouts.connect": "2s"}
    asked = questions_of(gpus=(1, 2, 3, 4), plans=("all",))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}

    with distributed.LocalCluster(**options) as cluster:
        lost, found = next(iter(cluster.workers.values())), {}
        portions_done = dask(cluster.scheduler_address)(asked.portions())
        with import_module("dask").config.set(given_up):
            for name, rows in portions_done:
                if not found:
                    os.kill(lost.pid, signal.SIGKILL)
                found[name] = rows
    whole = answer(asked, local(1), lambda _: None)
    assert [row for portion in asked.portions() for row in found[portion.name]] == list(whole)


def test_a_scheduler_that_does_not_answer_is_refused_in_time():
    pytest.importorskip("distributed")

    with pytest.raises(InputError, match=r"scheduler tcp://127.0.0.1:1: does not answer"):
        dask("tcp://127.0.0.1:1", patience_s=0.5)


def test_cores_share_the_chunks_and_change_no_digit():
    asked = questions_of(gpus=(1, 2))

    alone, shared = (answer(asked, local(count), lambda _: None) for count in (1, 2))
    assert list(alone) == list(shared)


def swept(output, *more):
    return run("sweep", "--model", "flux", "--gpus", "1", "--output", str(output), *more)


def test_what_cannot_be_written_is_said_before_anything_is_asked(tmp_path):
    (tmp_path / "folder.csv").mkdir()

    assert_refused(*swept(tmp_path / "folder.csv"), "folder.csv: wanted a file")
    assert_refused(*swept(tmp_path / "none" / "a.csv"), "a.csv.portions: No such file or directory")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder.csv"]


def test_a_file_that_is_replaced_and_what_prices_are_of_are_said(tmp_path):
    code, out, err = swept(tmp_path / "a.csv")
    assert (code, "replaced" in err, "priced as tensorrt" in out) == (0, False, True)
    code, out, err = swept(tmp_path / "a.csv", "--engine", "xdit")
    assert (code, "was there, and is replaced" in err, "priced as" in out) == (0, True, False)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda _: b"",
        lambda _: b"\xff",
        lambda _: b"{}",
        lambda _: b"[1]",
        lambda _: b"[" * 100_000,
        lambda kept: kept[:-9],
        lambda kept: kept.replace(b"flux", b"flax"),
        lambda kept: kept.replace(b'"gpus": 1', b'"gpus": NaN'),
        lambda kept: json.dumps(json.loads(kept)["rows"]).encode(),
        None,  # a pipe that nobody writes to
    ],
)
def test_a_portion_that_is_damaged_or_altered_is_done_again(tmp_path, damaged):
    whole, again = tmp_path / "a.csv", tmp_path / "b.csv"
    assert swept(whole)[0] == 0
    asked = questions_of(gpus=(1,))
    folder = tmp_path / "b.csv.portions"
    (portion,) = asked.portions()
    file = folder / f"{portion.name}.json"
    taken_up(asked, folder)
    keep(folder, portion.name, rows_of(portion))
    assert list(taken_up(asked, folder)) == [portion.name]
    was = file.read_bytes()
    file.unlink()
    if damaged is None:
        os.mkfifo(file)
    else:
        file.write_bytes(damaged(was))

    assert list(taken_up(asked, folder)) == []
    assert swept(again, "--resume")[0] == 0
    assert again.read_bytes() == whole.read_bytes()


def test_a_pipeline_is_cut_for_each_request_whatever_stands_beside_it():
    """Long prompts move work to layers with attention, and with it the ends of stages."""
    asked = {"hardware": "a100-sxm-80gb", "output_tokens": 2, "engine": "sglang-llm"}
    rows = planner.sweep(
        "nemotron-3-super", gpus=16, plan="pp4.tp4/ep4", input_tokens=(32768, 3000), **asked
    )

    for row in rows:
        size = row["input_tokens"]
        alone = planner.estimate("nemotron-3-super", 16, row["plan"], input_tokens=size, **asked)
        assert row["memory_bytes"] == pytest.approx(alone.memory_bytes, rel=1e-9)
        assert row["latency_s"] == pytest.approx(alone.latency_s, rel=1e-12)
    assert len({one["memory_bytes"] for one in rows}) == 2


def test_portions_of_a_model_follow_one_another_and_what_was_found_of_others_is_let_go():
    asked = questions_of(models=("flux.1-schnell", "pixart-sigma"), gpus=(1, 4, 2))
    ordered = _by_model(asked.portions())
    assert [(one.model[:4], one.gpus) for one in ordered] == [
        *(("flux", gpus) for gpus in (4, 2, 1)), *(("pixa", gpus) for gpus in (4, 2, 1)),
    ]  # fmt: skip
    for portion in ordered:
        before = _shared_by_workloads.cache_info().hits
        rows_of(portion)
        assert _shared_by_workloads.cache_info().currsize == 1
        assert _shared_by_workloads.cache_info().hits == before + (portion.gpus < 4)
