"""Numbers come first: what is timed is what is proved, at a small size and at full size."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import testmodels

torch = pytest.importorskip("torch")

from costmodels.program import Matmul  # noqa: E402
from planner.strategies import parse_plan  # noqa: E402
from validate.launch import Place, begin  # noqa: E402
from validate.plans.cases import Case, look_up  # noqa: E402
from validate.plans.job import Job  # noqa: E402
from validate.torch import (  # noqa: E402
    full,
    rendezvous,
    session,
)
from validate.torch.case_run import Bench, run_case  # noqa: E402
from validate.torch.full import distance, full_comparison, grown, is_known, replica_distance  # noqa: E402
from validate.torch.fuse import Fuser  # noqa: E402
from validate.torch.proof import Comm, ProvedWork, setting_for  # noqa: E402
from validate.torch.rendezvous import ApartError, Rendezvous, gather  # noqa: E402
from validate.torch.session import Session  # noqa: E402
from validate.torch.timing import Inside  # noqa: E402
from validate.torch.weights import inputs_drawn  # noqa: E402

ROOT = Path(__file__).parents[2]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


class Spoiled(Fuser):
    """A compiler whose code is wrong: everything comes out half as large again."""

    __slots__ = ()

    def compiled(self, key, function, examples):
        made = super().compiled(key, function, examples)
        return lambda *given: [one * 1.5 for one in made(*given)]


@pytest.fixture
def alone(tmp_path):
    """A session of one rank in this process, on a model of two layers."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(testmodels.FLUX_CONFIG))
    place = Place(rank=0, world=1, local=0, phase_s=1000.0)

    def case(plan="single", mode="eager", **more):
        return Case(
            model=str(path), plan=plan, mode=mode, height=32, width=32, text_tokens=8, **more
        )

    def made(fuser=None):
        progress = begin(place)
        bench = Bench(
            comm=Comm(rank=0, world=1, handles={}),
            rendezvous=Rendezvous(place=place, store=torch.distributed.HashStore()),
            progress=progress,
            device=torch.device("cpu"),
            fuser=fuser or Fuser(backend="eager"),
            budget_s=0.01,
        )
        return Session(bench=bench, output=tmp_path, job=Job(cases=()), until=math.inf)

    made.case = case
    return made


def one_case(one, case, number):
    return session._case_row(one, case, number)  # noqa: SLF001  # a row without a file


def ended(one):
    one.bench.progress.end()


@pytest.mark.parametrize("mode", ["compile", "graph"])
def test_kernels_that_are_timed_are_proved_though_nothing_runs_eagerly(alone, mode):
    good, bad = alone(), alone(Spoiled(backend="eager"))

    right = one_case(good, alone.case(mode=mode), 0)
    wrong = one_case(bad, alone.case(mode=mode), 0)
    ended(good)
    ended(bad)

    assert right.status == "done", right.note
    assert right.full_against == "single eager"
    assert 0 < right.error < right.bound
    assert wrong.status == "wrong"
    assert "error" in wrong.note
    assert "at full size" in wrong.note


def test_a_proof_of_plain_kernels_is_none_of_compiled_ones(alone):
    one = alone(Spoiled(backend="eager"))

    rows = [one_case(one, alone.case(mode=mode), n) for n, mode in enumerate(("eager", "graph"))]
    ended(one)

    assert [row.status for row in rows] == ["done", "wrong"]
    assert rows[0].error < rows[0].bound < rows[1].error


def test_products_are_compiled_with_what_surrounds_them_unless_a_graph_replays_them(alone):
    found = {}
    for mode in ("graph", "compile"):
        one = alone()
        assert one_case(one, alone.case(mode=mode), 0).status == "done"
        ended(one)
        together = [ops for (ops, *_), _ in one.bench.fuser.made]
        found[mode] = [sum(isinstance(op, Matmul) for op in ops) for ops in together]

    assert set(found["graph"]) == {0}
    assert max(found["compile"]) > 1


def test_one_wrong_row_is_found_though_the_whole_hardly_shows_it():
    torch.manual_seed(0)
    want = torch.randn(1, 4096, 64)
    got = want.clone()
    got[0, 17] = torch.randn(64)
    error, row = distance(got, want)

    assert error < 0.03
    assert row > 1.0
    assert distance(got[:, :5], want) == (math.inf, math.inf)


def test_bounds_follow_from_the_type_and_the_depth():
    flux = look_up(Case(model="flux")).model

    assert grown(flux, torch.bfloat16) == pytest.approx(math.sqrt(16 * 57) / 2**8)
    assert grown(flux, torch.float16) == pytest.approx(grown(flux, torch.bfloat16) / 8)
    deep = replace(flux, blocks=tuple(replace(block, count=200) for block in flux.blocks))
    assert grown(deep, torch.bfloat16) == pytest.approx(0.12)


def test_no_number_is_no_pass():
    assert full.Full(error=math.nan, bound=1.0).complaints
    assert full.Full(replicas=0.2, bound=0.1).complaints == [
        "ranks apart by 0.2 at full size where 0.1 is allowed"
    ]


def ran(output, plain=None, others=()):
    return type("Ran", (), {"output": output, "plain": plain, "perturbed": others})()


def test_a_result_may_be_as_far_off_as_rounding_otherwise_brings_the_same_step(alone):
    """Beyond what depth alone explains, a model says itself how gaps grow in it."""
    bench, subject = alone().bench, look_up(alone.case(mode="graph"))
    plain = torch.ones(1, 6, 8)
    others = (plain * 1.3, plain * 1.2)

    near = full_comparison({}, subject, bench, ran(plain * 1.25, plain, others))
    far = full_comparison({}, subject, bench, ran(plain * 1.35, plain, others))
    even = full_comparison({}, subject, bench, ran(plain * 1.25, plain, (plain * 1.001,)))
    bench.progress.end()

    assert near.bound == pytest.approx(0.3)
    assert near.complaints == []
    assert len(far.complaints) == 2
    assert even.bound < 0.1
    assert even.complaints


def test_rounding_otherwise_brings_a_step_as_far_as_depth_explains(alone):
    bench, subject = alone().bench, look_up(alone.case(mode="graph"))

    taken = run_case(subject, bench, "a case", first=True)
    bench.progress.end()

    assert len(taken.perturbed) > 1
    allowed = grown(subject.model, torch.bfloat16)
    for one in taken.perturbed:
        assert allowed / 4 < distance(one, taken.plain)[0] < 4 * allowed


def test_replicas_are_compared_with_their_part_of_the_batch(alone):
    """The whole batch comes first; the second of two replicas has its second half."""
    bench = replace(alone().bench, comm=Comm(rank=1, world=2, handles={}))
    whole = look_up(alone.case(batch=4))
    parted = look_up(alone.case("dp2", batch=4))
    result, wholes = torch.randn(4, 6, 8), {}

    assert full_comparison(wholes, whole, bench, ran(result)).against == ""
    assert is_known(wholes, parted, bench)
    right = full_comparison(wholes, parted, bench, ran(result[2:].clone()))
    wrong = full_comparison(wholes, parted, bench, ran(result[:2].clone()))
    bench.progress.end()

    assert (right.error, right.against) == (0.0, "single eager")
    assert right.complaints == []
    assert len(wrong.complaints) == 2


def test_replicas_of_one_request_have_the_same_result():
    same, other = ["x", [1.0, 2.0]], ["x", [1.0, 2.5]]

    assert replica_distance([same, same, None]) == 0.0
    assert replica_distance([same, other]) == pytest.approx(0.5 / math.sqrt(5))
    assert math.isnan(replica_distance([same, ["x", [math.nan, 2.0]]]))


def test_replicas_draw_their_own_samples_of_one_batch():
    work = replace(testmodels.workload(testmodels.flux), batch=4)
    tensor = _input(work, "single")

    whole = _drawn(work, "single", 0)(tensor, 0)
    parts = [_drawn(work, "dp2", rank)(_input(work, "dp2"), 0) for rank in range(2)]

    assert torch.equal(torch.cat(parts), whole)


def _program(work, plan):
    from planner.lowering import lower

    return lower(testmodels.flux, work, parse_plan(plan))


def _input(work, plan):
    return _program(work, plan).inputs[0]


def _drawn(work, plan, rank):
    asked = ProvedWork(model=testmodels.flux, workload=work, plan=parse_plan(plan))
    return inputs_drawn(setting_for(asked, rank, torch.device("cpu"), torch.float32), 4)


def test_waiting_for_a_rank_is_taken_off_message_by_message():
    one = Inside(classes={"gemm": 1.0, "communication": 5.0}, messages=(4.0, 1.0), gaps=0.0, how="")

    assert one.merged([[4.0, 1.0], [1.0, 3.0]]) == ({"gemm": 1.0, "communication": 2.0}, 3.0)
    assert one.merged([[4.0, 1.0], [1.0]]) == (dict(one.classes), 0.0)


def test_a_rank_that_does_not_arrive_is_named(monkeypatch, port):
    monkeypatch.setattr(rendezvous, "RENDEZVOUS_S", 1)
    place = Place(rank=0, world=4, local=0, port=port)
    store = rendezvous.open_store(place)
    for rank in (1, 2):
        store.set(f"here/{rank}", "")

    begun = time.monotonic()
    with pytest.raises(ApartError, match=r"^rank 3 of 4 did not arrive within 1 s$"):
        gather(place, store)
    assert time.monotonic() - begun < 300
    assert rendezvous.absent(place, [1, 3]) == "ranks 1, 3 of 4 did not arrive within 1 s"


def started(words, env, folder, starter=()):
    asked = [
        "-m", "planner", "validate", "--model", str(folder / "tiny.json"), "--backend", "torch",
        "--device", "cpu", "--mode", "eager", "--height", "32", "--width", "32",
        "--text-tokens", "8", "--results", str(folder / "out"), "--gate", "100%",
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env}
    command = [*starter, sys.executable, *words, *asked, "--plan", "tp2"]
    return subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(testmodels.FLUX_CONFIG))
    return tmp_path


def test_torchrun_starts_the_ranks_of_the_planner(folder):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = started(torchrun, {}, folder)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("case ")
    assert "| tp2 | eager" in lines[1]
    assert sum(one.startswith("case ") for one in lines) == 1  # one rank speaks
    (row,) = (folder / "out" / "results.jsonl").read_text().splitlines()
    assert json.loads(row)["status"] == "done"
    assert json.loads(row)["machine"].startswith("2 ranks on ")


@pytest.mark.skipif(MPIRUN is None, reason="Open MPI is not installed")
def test_mpirun_starts_the_ranks_of_the_planner(folder, port):
    words = [MPIRUN, "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-np", "2"]
    done = started((), {"MASTER_PORT": str(port)}, folder, words)

    assert done.returncode == 0, done.stderr
    assert sum(one.startswith("case ") for one in done.stdout.splitlines()) == 1
    (row,) = (folder / "out" / "results.jsonl").read_text().splitlines()
    assert json.loads(row)["status"] == "done"
    assert json.loads(row)["machine"].startswith("2 ranks on ")


def test_ranks_of_mpirun_meet_too(folder, port):
    """Two processes, as Open MPI tells them their ranks."""
    from concurrent.futures import ThreadPoolExecutor

    def rank(number):
        env = {
            "OMPI_COMM_WORLD_RANK": str(number), "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": str(number), "MASTER_PORT": str(port),
        }  # fmt: skip
        return started((), env, folder)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "| tp2 | eager" in first.stdout
    assert second.stdout == ""
