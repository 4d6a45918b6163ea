"""A session times cases one by one; what fails becomes a row, and what is done is not done again.

This file is also the rank that fails on purpose: FAULTS says on which plan, and how.
"""

import json
import os
import signal
import sys
import time
from math import inf, nan
from pathlib import Path

import pytest

from topology.base import InputError, ModelError
from validate.launch import TimeLimits
from validate.launch import system as launched
from validate.launch.progress import read
from validate.plans import host, restarts, system
from validate.plans.cases import Case, digest_of
from validate.plans.host import Facts
from validate.plans.measured import Measured, line, read_measured
from validate.plans.restarts import RunOptions, run

torch = pytest.importorskip("torch")

FOLDER = str(Path(__file__).parent)
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "attention_head_dim": 8,
    "axes_dims_rope": [4, 2, 2],
    "in_channels": 16,
    "joint_attention_dim": 16,
    "num_attention_heads": 2,
    "num_layers": 1,
    "num_single_layers": 1,
    "pooled_projection_dim": 16,
}


def main():
    """Run a rank that fails where FAULTS says."""
    from validate.torch import session, worker

    faults, whole = json.loads(os.environ["FAULTS"]), session.run_case
    exchanged, looked_up, case = torch.distributed.all_to_all_single, session.look_up, []

    def begun(asked, hardware):
        case[:] = [asked]
        return looked_up(asked, hardware)

    def spoiling(made, *rest, **more):
        work = exchanged(made, *rest, **more)
        if faults.get(case[0].plan) == "numbers" and os.environ["RANK"] == "1":
            made.fill_(nan)
        return work

    def faulty(subject, bench, name, **more):
        rank, kind = bench.comm.rank, faults.get(str(subject.plan))
        if kind == "memory" or (kind == "memory of one" and rank == 1):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if kind == "killed" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "slow" and rank == 1:
            mine, first = bench.progress.beat.count, Path(bench.progress.place.progress)
            while read(launched.content(first / "progress.0")).count <= mine:
                time.sleep(0.01)  # until the other rank has started more, and waits
            bench.progress.phase(f"timing of {name}", 1)
            time.sleep(600)
        return whole(subject, bench, name, **more)

    session.run_case, session.look_up = faulty, begun
    torch.distributed.all_to_all_single = spoiling
    session.SETTLE_S = 2
    code = worker.main()
    system.leave(3 if faults.get("goodbye") and os.environ["RANK"] == "1" else code)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A model of two layers, and a host whose looks are known."""
    monkeypatch.setattr(sys, "path", [FOLDER, str(Path(FOLDER).parents[1]), *sys.path])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(host, "facts", lambda: Facts(seen={"torch": "2", "has_gloo": True}))
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(FLUX))

    def case(plan, mode="eager"):
        return Case(model=str(path), plan=plan, mode=mode, height=32, width=32, text_tokens=8)

    return case


GIVEN = {"gpus": 2, "device": "cpu", "compiler": "eager", "budget_s": 0.05, "seconds": 300.0}


def session(cases, output, **changes):
    said = []
    rows = run(cases, RunOptions(**{**GIVEN, **changes}), output, said.append)
    return rows, said


def test_cases_are_proved_timed_and_not_run_again(tiny, tmp_path, monkeypatch):
    cases = [tiny("single"), tiny("tp2"), tiny("ring2", "compile"), tiny("cfg2")]

    rows, _ = session(cases, tmp_path / "out")

    assert [row.status for row in rows] == ["done", "done", "done", "illegal"]
    single, tensor, ring, _ = rows
    assert all(row.step_s > 0 and row.repeats > 1 for row in rows[:3])
    assert {"gemm", "attention", "pointwise", "communication"} <= set(tensor.classes_s)
    assert "communication" not in single.classes_s
    assert sum(tensor.counts.values()) == 4 + 1  # two a tower and one in the single block
    assert ring.compile_s > 0
    assert all(0 < row.error < row.bound for row in rows[:3])
    assert tensor.full_against == "single eager"
    assert 0 < tensor.full_error < tensor.full_bound <= 0.12
    assert tensor.full_error <= tensor.row_error
    assert tensor.classes_by == "clock of the host"
    assert tensor.machine.startswith("2 ranks on ")
    assert json.loads((tmp_path / "out/manifest.json").read_text())["torch"] == torch.__version__

    monkeypatch.setattr(restarts, "launch", None)  # nothing is left to run
    again, _ = session(cases, tmp_path / "out")
    assert again == rows


def test_a_run_goes_on_behind_a_row_that_was_cut_off(tiny, tmp_path):
    cases, output = [tiny("single"), tiny("tp2")], tmp_path / "out"
    known = Measured(
        case=cases[0],
        status="done",
        step_s=1.0,
        machine=RunOptions(**GIVEN).machine(host.facts()),
        digest=digest_of(cases[0], "h100-sxm"),
    )
    output.mkdir()
    (output / "results.jsonl").write_text(line(known) + "\n" + line(known)[:40])

    rows, _ = session(cases, output)

    assert rows[0] == known
    assert rows[1].status == "done"
    lines = (output / "results.jsonl").read_text().splitlines()
    assert len(lines) == 2


def test_what_fails_is_a_row_and_the_run_goes_on(tiny, tmp_path, monkeypatch):
    """Where one rank alone fails the others wait for it, so all are started again."""
    faults = {
        "tp2": "memory", "allgather_kv2": "memory of one", "ulysses2": "numbers",
        "ring2": "killed", "pp2": "slow",
    }  # fmt: skip
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    cases = [tiny(plan) for plan in (*faults, "single")]

    rows, said = session(cases, tmp_path / "out", module="test_torch_session")

    found = {row.case.plan: (row.status, row.note) for row in rows}
    memory = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert found["tp2"] == ("out of memory", f"rank 0: {memory}")
    assert found["allgather_kv2"][0] == "out of memory"
    assert found["allgather_kv2"][1].startswith("rank 1: ")  # by its end, or by its own word
    assert "out of memory" in found["allgather_kv2"][1].lower()
    assert found["ring2"][0] == "failed"
    assert "rank 1: died with signal 9" in found["ring2"][1]
    assert found["pp2"][1].startswith("rank 1: late in timing of case")
    assert found["single"] == ("done", "")
    assert found["ulysses2"][0] == "wrong"
    assert "all_to_all ulysses of " in found["ulysses2"][1]
    assert "gave no numbers on rank 1; error inf in 32 bits" in found["ulysses2"][1]
    assert [row.exact_error for row in rows if row.status == "wrong"] == [inf]
    assert len([one for one in said if "| eager: rank 1" in one]) == 3

    monkeypatch.setenv("FAULTS", "{}")
    again, said = session(cases, tmp_path / "out", module="test_torch_session")

    found = {row.case.plan: (row.status, row.attempts) for row in again}
    assert found["ring2"] == ("done", 2)
    assert found["pp2"] == ("done", 2)
    assert found["tp2"] == found["allgather_kv2"] == ("out of memory", 1)
    assert found["single"] == ("done", 1)
    assert "2 cases run again" in said


def test_a_death_after_the_last_case_costs_no_row(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("FAULTS", json.dumps({"goodbye": "bad"}))

    rows, said = session([tiny("single")], tmp_path / "out", module="test_torch_session")

    assert [(row.status, row.note) for row in rows] == [("done", "")]
    assert said[-1].startswith("after the last case: rank 1: ended with code 3")


def test_what_is_missing_is_said_before_anything_starts(tiny, tmp_path, monkeypatch):
    facts = Facts(seen={"torch": "2.13", "has_nccl": True, "gpus": []})
    monkeypatch.setattr(restarts, "launch", None)
    monkeypatch.setattr(host, "facts", lambda: facts)

    with pytest.raises(InputError, match=r"GPUs: PyTorch 2.13 \(no CUDA\) sees none"):
        session([tiny("tp2")], tmp_path, device="cuda")


def test_ranks_that_cannot_start_end_the_run(tiny, tmp_path):
    with pytest.raises(ModelError, match="rank 0: ended with code 1 before it began"):
        session([tiny("tp2")], tmp_path, module="validate.nothing")


def test_limits_of_the_whole_run_are_kept(tiny, tmp_path):
    rows, said = session([tiny("tp2")], tmp_path, seconds=0.0)

    assert rows == []
    assert said[-1] == f"{tiny('tp2').key}: not run: 0 s are too few; --seconds gives more"


if __name__ == "__main__":
    main()
