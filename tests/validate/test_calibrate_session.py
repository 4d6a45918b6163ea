"""A benchmark streams rows, and goes on where it was killed: two ranks on this CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from topology.base import InputError
from validate import calibrate
from validate.fit.rows import read_rows

pytest.importorskip("torch")

import torch  # needs it, as all below

from validate.bench import system as harness
from validate.bench.cases import all_cases, case_of, runs
from validate.bench.functions import FUNCTIONS, backend_function

ROOT = Path(__file__).parents[2]
SMALL = {case.key for case in all_cases(2, small=True) if case.family != "memory"}


def session(folder, *, minutes=1.0):
    return harness.BenchSession(ranks=2, folder=folder, minutes=minutes, device="cpu", small=True)


def rows(folder):
    return read_rows((folder / harness.ROWS).read_text())


def _ended(process):
    """Whether a process is gone, or a zombie that nobody has asked about."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder of a session that was killed after three rows, in the middle of a fourth."""
    output = tmp_path_factory.mktemp("killed") / "mine.toml"
    command = [sys.executable, "-m", "planner", "calibrate", "--output", str(output)]
    child = subprocess.Popen(
        [*command, "--minutes", "1", "--device", "cpu", "--small", "--gpus", "2"],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    folder = output.with_suffix(".measurements")
    path, ranks = folder / harness.ROWS, []
    try:
        deadline = time.monotonic() + 600
        while not (path.exists() and path.read_text().count("\n") >= 3):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ranks = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    while not all(map(_ended, ranks)):  # they see that their session is gone
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with path.open("a") as file:
        file.write('{"key":"collective op=')
    return folder


def test_a_kill_loses_at_most_the_row_at_hand(killed):
    before = rows(killed)

    deaths = harness.run(session(killed))
    after = rows(killed)

    assert deaths == 0
    assert after[: len(before)] == before
    assert {row.key for row in after} == SMALL
    assert not [row for row in after if row.error]
    keys = [(row.key, row.mode) for row in after]
    assert len(keys) == len(set(keys))
    assert json.loads((killed / harness.MANIFEST).read_text())["machine"]["ranks"] == 2


def test_rows_of_another_machine_are_not_added_to(tmp_path):
    (tmp_path / harness.MANIFEST).write_text('{"machine": {"ranks": 8}, "software": {}}')

    with pytest.raises(InputError, match="rows were measured on"):
        harness.run(session(tmp_path))


DYING = """
import os
from validate.bench import system as harness
from validate.fit.rows import done, read_rows
from validate.launch import begin

task = harness.task()
progress = begin(task.place)
cases = {"host op=add", "host op=silu", "host op=cast"}
for key in sorted(cases - done(read_rows(harness.mended_rows(task.folder)))):
    progress.phase(f"1/3, 0:10 left at most: {key}")
    if key == "host op=cast" and task.place.rank == 1:
        os.kill(os.getpid(), 9)
"""


def test_a_rank_that_dies_at_a_case_is_a_row_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "WORKER", ("-c", DYING))
    monkeypatch.chdir(ROOT)

    deaths = harness.run(session(tmp_path))

    assert deaths == 1
    ((key, error),) = [(row.key, row.error) for row in rows(tmp_path)]
    assert key == "host op=cast"
    assert error.startswith("rank 1: died with signal 9 in 1/3, 0:10 left at most: host op=cast")
    assert f"bench: {error}" in capsys.readouterr().err


MEETING = """
import torch
from validate.bench import system as harness, worker
from validate.bench.collectives import CALLS, Buffers

world = worker._join(harness.task())
r = world.rank
wanted = {
    "all_reduce": ("large", [10, 12, 14, 16]),
    "all_gather": ("large", [5, 6, 15, 16]),
    "reduce_scatter": ("small", [[10, 12], [14, 16]][r]),
    "all_to_all": ("other", [[0, 1, 10, 11], [2, 3, 12, 13]][r]),
    "broadcast": ("large", [0, 1, 2, 3]),
    "reduce": ("large", [10, 12, 14, 16] if r == 0 else None),
    "gather": ("large", [5, 6, 15, 16] if r == 0 else None),
    "scatter": ("small", [[0, 1], [2, 3]][r]),
    "send_recv": ("other", [[10, 11, 12, 13], [0, 1, 2, 3]][r]),
}
assert wanted.keys() == CALLS.keys()
for op, (name, numbers) in wanted.items():
    large = torch.tensor([0.0, 1, 2, 3]) + 10 * r
    small = torch.tensor([5.0, 6]) + 10 * r
    b = Buffers(
        large=large, other=torch.zeros(4), small=small, shares=list(large.chunk(2))
    )
    CALLS[op](b, world.data)
    found = getattr(b, name).tolist()
    if numbers is not None and found != numbers:
        world.progress.phase(f"wrong: host {op} {found}")
        harness.leave(5)
world.all_hear("done")
harness.leave(0)
"""


def test_collectives_move_what_they_say(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "WORKER", ("-c", MEETING))
    monkeypatch.chdir(ROOT)

    deaths = harness.run(session(tmp_path))

    assert deaths == 0, harness.mended_rows(tmp_path)


def test_one_rank_has_no_collectives():
    families = {case.family for case in all_cases(1)}

    assert not families & {"collective", "forced", "beside", "peer"}


def test_cases_are_cut_where_all_ranks_are_needed():
    cases = all_cases(2)

    assert [one for run in runs(cases) for one in run] == cases
    assert len({one.key for one in cases}) == len(cases)
    for run in runs(cases):
        assert len({one.together for one in run}) == 1


def test_quick_cases_come_first():
    tiers = [case.tier for case in all_cases(2)]

    assert tiers == sorted(tiers)


def test_without_a_gpu_the_command_says_so(tmp_path):
    task = calibrate.CalibrationTask(
        output=tmp_path / "mine.toml", device="cpu", small=True, minutes=1, gpus=1
    )

    with pytest.raises(InputError, match="got no GPU"):
        calibrate.calibrate(task, lambda _: None)
    assert not task.output.exists()


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "cast"])
def test_functions_run_as_the_backend_runs_them(name):
    """Each finds its inputs in the types that the backend gives it: sums have 32 bits."""
    asked = case_of("function", 1, name=name, rows=8, width=128, way="lean")

    prepared, traffic = backend_function(asked, torch.device("cpu"))

    made = prepared.work(0)
    assert traffic > 0
    assert all(torch.isfinite(tensor).all() for tensor in made)
