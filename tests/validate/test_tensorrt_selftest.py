"""TensorRT's collectives tried on a machine: on stand-ins here, whose numbers are numpy's."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import faketensorrt as fake
import numpy as np
import pytest
from exportedfolders import started

from planner.engines.tables import allowed
from planner.export.files import write_folder
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.errors import RunError
from validate.doctor import diagnose, with_collectives
from validate.fit.rows import read_rows
from validate.tensorrt import selftest
from validate.tensorrt.probe import Host
from validate.tensorrt.start import RankResult


@pytest.fixture
def here(monkeypatch):
    """A TensorRT that runs what is built, on ranks that are threads; a list of its faults."""
    faults = []

    def build_and_run(files, path, execution, judge, tell):
        folder = harness.open_folder(write_folder(files, str(path)))
        left, results = started(folder, steps=3, graph=execution.graph), []
        for rank, outcome in left.items():
            if isinstance(outcome, str):
                raise RunError(f"rank {rank}: {outcome}")
            output = outcome.output + (folder.plan["model"] in faults)
            harness.save(folder.path / "results", f"output.rank{rank}", output)
            harness.save(folder.path / "results", f"times.rank{rank}", {"step_s": [2.0, 1.0, 0.5]})
            seconds = harness.result_of(folder.path, rank).seconds
            results.append(RankResult(error=judge(folder, rank), seconds=seconds))
        return results, []

    library = SimpleNamespace(__name__="tensorrt", __version__="11.4.1")
    monkeypatch.setattr(selftest, "load", lambda: library)
    monkeypatch.setattr(selftest, "build_and_run", build_and_run)
    monkeypatch.setattr(selftest, "SIZES", (2**13,))
    monkeypatch.setattr(selftest, "CALLS", 2)
    return SimpleNamespace(faults=faults, library=library)


def test_every_collective_is_run_and_its_numbers_are_checked(here, tmp_path):
    here.faults += ["reduce_scatter"]

    tried = selftest.run_all(3, tmp_path, lambda line: None)

    assert {one.op for one in tried} == set(allowed().since)
    assert [one.op for one in tried if not one.right] == ["reduce_scatter"]
    rows = read_rows((tmp_path / "rows.jsonl").read_text())
    assert [row.key for row in rows] == [f"collective op={one.op} bytes=8192" for one in tried]
    assert {(row.mode, row.seconds) for row in rows} == {("tensorrt", 0.25)}  # of two calls
    found = with_collectives(diagnose(Host()), tried)
    states = {one.name: one.state for one in found.checks if one.name in allowed().since}
    assert states == {one.op: "ok" if one.right else "missing" for one in tried}
    assert json.loads(json.dumps(found.to_dict()))["collectives"][0]["right"] is True


def test_a_rank_is_not_left_with_its_own_numbers(here, tmp_path):
    """Ranks begin with different numbers: a collective that is skipped is seen in each."""
    for op in allowed().since:
        files = selftest.folder_of(op, 2**13, 2)
        plan = json.loads(files["plan.json"])
        wanted = selftest.expected(plan, op, tmp_path)
        given = harness.given_from(tmp_path)("given", 0, (plan["ranks"][0]["samples"], 256))
        for rank, want in enumerate(wanted):
            own = given[plan["ranks"][rank]["sample"] :][: len(given) // 2]
            same = want is not None and want.shape == own.shape and np.allclose(want, own)
            assert not same or (op == "broadcast" and not rank)


def test_what_does_not_run_is_not_said_to_have_run(here, tmp_path, monkeypatch):
    def fails(*_):
        raise RunError("rank 1: NCCL: no symbol")

    monkeypatch.setattr(selftest, "build_and_run", fails)
    tried = selftest.run_all(2, tmp_path, lambda line: None)

    assert {one.reason for one in tried} == {"rank 1: NCCL: no symbol"}
    assert not any(one.right or one.rows for one in tried)
    assert (tmp_path / "rows.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("gpus", "name", "version", "said"),
    [
        (1, "tensorrt", "11.4.1", "1 GPUs here, wanted 2 or more"),
        (2, "tensorrt_rtx", "1.7.1", "TensorRT-RTX runs no collectives"),
        (2, "tensorrt", "10.15", "TensorRT 10.15 has no collectives"),
    ],
)
def test_where_none_can_be_run_the_reason_is_given(here, tmp_path, gpus, name, version, said):
    here.library.__name__, here.library.__version__ = name, version
    ran = selftest.run_all(gpus, tmp_path, lambda line: None)

    assert ran == said
    (*_, check) = with_collectives(diagnose(Host()), ran).checks
    assert (check.state, check.found, check.advice) == ("missing", "not run", said)


def test_an_older_tensorrt_is_asked_for_what_it_has(here, tmp_path):
    here.library.__version__ = "10.16.1"

    tried = selftest.run_all(2, tmp_path, lambda line: None)

    assert {one.op for one in tried} == {
        op for op, since in allowed().since.items() if since < (11,)
    }
