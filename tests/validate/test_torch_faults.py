"""A rank that sleeps, leaves a message out or runs another plan is named, and all children go.

Real processes that talk through gloo; only the fault is put into one of them.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import testmodels

torch = pytest.importorskip("torch")

from validate.launch import TimeLimits, launch  # noqa: E402
from validate.launch.blame import PATIENCE_S  # noqa: E402
from validate.plans.cases import Case  # noqa: E402

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
MORE = {"num_attention_heads": 4, "num_layers": 2, "num_single_layers": 2}
WORKER = """
import os, sys, time
import torch
from validate.plans import system
from validate.torch import attention, messages, worker
rank = int(os.environ["RANK"])
calls = 0
def nth(module, name, number, fault):
    given = getattr(module, name)
    def patched(*args, **named):
        global calls
        calls += 1
        return fault(given, *args, **named) if calls == number else given(*args, **named)
    setattr(module, name, patched)
def sleeps(given, *args, **named):
    time.sleep(600)
def skips(given, op, x, shape, group, **named):
    return x.new_zeros(shape)
{fault}
system.leave(worker.main())
"""
SLEEPS_IN = 'if rank == 1: nth(messages, "_exchange", 9, sleeps)'
SLEEPS_BEFORE = 'if rank == 1: nth(attention, "_attend", 3, sleeps)'
SKIPS = 'if rank == 1: nth(messages, "_exchange", 9, skips)'
ALL_SKIP = 'nth(messages, "_exchange", {number}, skips)'
STOPS = """
import signal
def stops(given, *args, **named):
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 1: nth(messages, "_exchange", 9, stops)
"""
FIRST_STOPS = STOPS.replace("rank == 1", "rank == 0")
OTHER_PLAN = """
from dataclasses import replace
given, plan = worker.work, {1: "single"}.get(rank, "tp2")
def other(place, job, output):
    cases = [replace(case, plan=plan) for case in job.cases]
    return given(place, replace(job, cases=cases), output)
worker.work = other
"""


def written(folder, fault, world, case):
    """Write the job and the worker with its fault; give what a rank is started with."""
    (folder / "tiny.json").write_text(json.dumps({**testmodels.FLUX_CONFIG, **MORE}))
    asked = {"plan": f"tp{world}", "mode": "eager", "height": 32, "width": 32, "text_tokens": 8}
    cases = [Case(model=str(folder / "tiny.json"), **{**asked, **case}).to_dict()]
    job = {"device": "cpu", "budget_s": 0.01, "cases": cases}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "worker.py").write_text(WORKER.replace("{fault}", fault))
    return [folder / "worker.py", "--job", folder / "job.json", "--output", folder]


def run(folder, fault, world=2, **case):
    result = launch(
        world,
        [sys.executable, *map(str, written(folder, fault, world, case))],
        limits=TimeLimits(grace_s=0.3),
        env=ENV,
        log_dir=folder / "logs",
    )
    rows = (folder / "results.jsonl").read_text() if (folder / "results.jsonl").exists() else ""
    return result, [json.loads(row) for row in rows.splitlines()]


def children():
    pids = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return len(pids.stdout.split())


@pytest.mark.parametrize(
    ("fault", "world", "words"),
    ids=["sleeps in", "sleeps before", "skips", "skips of 4", "stops", "other plan"],
    argvalues=[
        (SLEEPS_IN, 2, r"late in proof of case 1 .* at all_reduce tp"),
        (SLEEPS_BEFORE, 4, r"late in proof of case 1 .* at attention .*ranks 0, 2, 3 wait in"),
        (SKIPS, 2, r"stands still in proof of case 1 .* at words on .*rank 0 waits in all_reduce"),
        (SKIPS, 4, r"stands still in .* at words on .*ranks 0, 2, 3 wait in all_reduce tp"),
        (STOPS, 2, r"stopped by a signal in proof of case 1 .* at all_reduce tp"),
        (OTHER_PLAN, 2, r"ended with code 2 .*: asked for other cases than rank 0: got .*single"),
    ],
)
def test_the_rank_at_fault_is_named_within_seconds(tmp_path, fault, world, words):
    before, begun = children(), time.monotonic()
    result, _ = run(tmp_path, fault, world)

    assert not result.ok
    assert result.rank == 1, result.message
    assert re.match(f"rank 1: .*{words}", result.message), result.message
    assert "PCIe" not in result.message
    assert time.monotonic() - begun < PATIENCE_S + 300  # the phase alone has 180 s
    assert children() == before


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_one_message_of_many_that_all_leave_out_fails_the_proof(tmp_path, precision):
    """No rank waits, and the result is as near as rounding brings it: the message is judged."""
    fault = ALL_SKIP.format(number=3)
    result, (row,) = run(tmp_path, fault, precision=precision)

    assert result.ok, result.message
    assert row["status"] == "wrong"
    assert "gave other numbers on rank" in row["note"]


def test_torchrun_ends_with_the_name_of_the_rank_that_left_a_message_out(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = written(tmp_path, SKIPS, 2, {})
    done = subprocess.run(
        [*torchrun, *words], env=ENV, capture_output=True, text=True, check=False, timeout=300
    )

    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert len(said) == 1
    assert re.match(r"rank 1: stands still in proof .*rank 0 waits in all_reduce tp", said[0])


def test_ranks_that_somebody_started_name_the_first_that_is_stopped(tmp_path, port):
    """All meet at its place, so that nobody says anything any more."""
    words = written(tmp_path, FIRST_STOPS, 2, {})
    first, second = (
        subprocess.Popen(
            [sys.executable, *words],
            env={
                **ENV,
                "RANK": rank,
                "WORLD_SIZE": "2",
                "LOCAL_RANK": rank,
                "MASTER_PORT": f"{port}",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    )
    try:
        _, said = second.communicate(timeout=300)
    finally:
        first.kill()
        first.communicate()

    assert second.returncode == 1
    assert re.search(
        r"^rank 0: silent for \d+ s; .* is stopped.*rank 1 waits in", said, re.MULTILINE
    ), said
