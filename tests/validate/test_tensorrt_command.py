"""What ``planner validate --backend tensorrt`` takes, refuses and answers; nothing is built."""

import json
import socket
import sys
import threading
from itertools import groupby
from pathlib import Path

import pytest
from commands import assert_refused, run

from validate.launch import Place
from validate.plans import system
from validate.plans.cases import Case
from validate.tensorrt import check as checking
from validate.tensorrt import command as tensorrt_command
from validate.tensorrt import start
from validate.tensorrt.check import How, Report, check, median, predicted_step
from validate.tensorrt.command import answer, place_among
from validate.tensorrt.start import Execution, RankResult, build_and_run, command, meets_at

ASKED = ("validate", "--model", "flux", "--plan", "tp2", "--backend", "tensorrt")
CASE = Case(model="flux", plan="tp2")
TIMED = Report(
    case=CASE, number_error=0.0, collectives={"all_reduce tp": 4}, library="tensorrt 11.4.1",
    engines=3, engine_bytes=2**20, error=0.01, bound=0.05, step_s=0.1, predicted_s=0.109,
)  # fmt: skip


@pytest.fixture
def no_tensorrt(monkeypatch):
    for name in ("tensorrt", "tensorrt_rtx_bindings", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(system, "products", list)


def test_without_tensorrt_the_answer_is_no_and_says_what_to_install(no_tensorrt, tmp_path):
    code, out, _ = run(*ASKED, "--results", str(tmp_path))

    assert code == 1
    assert "left out: engines: TensorRT is not installed" in out
    assert "pip install 'tensorrt-cu13>=11.0,<12'" in out


@pytest.mark.parametrize("style", ["table", "json", "markdown"])
def test_numbers_alone_are_proved_where_they_are_asked_for(no_tensorrt, tmp_path, style):
    words = ("--numbers-only", "--results", str(tmp_path), "--format", style)
    code, out, _ = run(*ASKED, *words)

    assert code == 0
    assert out.startswith("**") == (style == "markdown")
    if style == "json":
        assert json.loads(out)["built"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mode", "compile"), "mode: got compile, wanted graph or eager for --backend tensorrt"),
        (("--gpus", "3"), "GPUs: got 3, wanted a multiple of the 2 of plan tp2"),
        (("--gpus", "1"), "GPUs: got 1, wanted the 2 of plan tp2"),
        (("--gate", "much"), "gate: got 'much', wanted a share such as 10%"),
        (("--profile", "/no/such"), "profile /no/such: No such file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_proved(no_tensorrt, monkeypatch, words, said):
    monkeypatch.setattr(checking, "run_networks", None)

    assert_refused(*run(*ASKED, *words), said)


@pytest.mark.parametrize(
    ("backend", "words", "got"),
    [
        ("reference", "--small", "it"),
        ("torch", "--numbers-only", "it"),
        ("vllm", "--keep file", "'file'"),
        ("reference", "--mode eager", "'eager'"),
        ("reference", "--gate 5%", "'5%'"),
        ("reference", "--results rows", "'rows'"),
        ("reference", "--device cpu", "'cpu'"),
        ("reference", "--retry", "it"),
        ("tensorrt", "--seconds 60", "60.0"),
        ("tensorrt", "--device cpu", "'cpu'"),
    ],
)
def test_options_that_a_backend_has_no_use_for_are_refused(backend, words, got):
    asked = ("validate", "--model", "flux", "--plan", "tp2", "--backend", backend)
    option, *_ = words.split()

    said = f"{option}: got {got} with --backend {backend}, wanted none"
    assert_refused(*run(*asked, *words.split()), said)


@pytest.mark.parametrize(("gate", "code"), [(0.1, 0), (0.05, 1)])
def test_a_step_beyond_the_gate_is_a_no(gate, code):
    assert answer([TIMED], gate, "table")[1] == code
    found = json.loads(answer([TIMED], gate, "json")[0])
    assert found["engines"][0]["within_gate"] is (code == 0)


def test_what_was_timed_is_shown_beside_what_was_predicted():
    assert "step: 0.1000 s, predicted 0.1090 s" in answer([TIMED], 0.1, "table")[0]
    assert "step: 0.1000 s, predicted 0.1090 s" in answer([TIMED], 0.1, "markdown")[0]


def test_the_slowest_rank_tells_how_long_a_step_takes():
    ranks = [
        RankResult(error=0.0, seconds=(9, 1, 2, 3)),
        RankResult(error=0.0, seconds=(9, 2, 1, 4)),
    ]

    assert median(ranks) == 2.0


def test_steps_are_timed_at_full_size_where_gpus_are(monkeypatch, tmp_path):
    """Everything but the GPUs: what is run, how, and against what it is held."""
    works = []

    def ran(files, path, execution, judge, tell):
        works.append((path.name, execution, json.loads(files["plan.json"])))
        (tmp_path / "engine").write_bytes(b"x")
        return [RankResult(error=0.01, seconds=(9.0, 0.1, 0.1))] * 2, [tmp_path / "engine"]

    monkeypatch.setattr(checking, "load", TensorRT)
    monkeypatch.setattr(checking, "probe", lambda env: Machine)
    monkeypatch.setattr(checking, "build_and_run", ran)
    monkeypatch.setattr(checking, "build_network", lambda *told: [b"x"])

    case = Case(model="wan2.1-1.3b", plan="cfg2", frames=5, height=256, width=256)
    report = check(case, "h100-sxm", tmp_path, print, How(full=True, profile="none", outside=True))
    few = check(case, "h100-sxm", tmp_path, print, How(full=True, gpus=1))

    assert [(name, one.weights, one.steps, one.graph) for name, one, _ in works] == [
        ("small", "drawn", 0, True),
        ("full", "filler", 5, True),
    ]
    assert works[1][2]["request"]["profile"] == "none"
    assert all(one.outside for _, one, _ in works)
    assert (report.step_s, report.engines, report.bound) == (0.1, 1, 0.05)
    assert report.predicted_s > 0
    assert few.left_out == ("run: 1 GPUs here, wanted 2",)


class Machine:
    gpus = (1, 2)


def test_without_a_graph_a_step_is_no_shorter_than_its_launches():
    sizes = {"model": "wan2.1-1.3b", "plan": "cfg2", "frames": 5, "height": 128, "width": 128}
    graph, eager = (
        predicted_step(checking.engines_of(Case(mode=mode, **sizes), "h100-sxm"), "none")
        for mode in ("graph", "eager")
    )

    assert eager == pytest.approx(max(graph, 2 * 50e-6))


@pytest.mark.parametrize(
    ("names", "local"),
    [
        (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_LOCAL_RANK"),
        (("RANK", "WORLD_SIZE"), "LOCAL_RANK"),
    ],
)
def test_ranks_of_mpirun_and_torchrun_are_known(monkeypatch, names, local):
    env = {names[0]: "5", names[1]: "8", local: "1", "MASTER_ADDR": "first"}
    monkeypatch.setattr(tensorrt_command, "environment", lambda: env)
    place = place_among(None, ["ulysses8"])

    assert (place.rank, place.world, place.local) == (5, 8, 1)
    assert meets_at(place, 1) == ("first", 29501)
    assert command(Path("f"), Execution(weights="filler", place=place))[-2:] == ["--device", "1"]


def test_another_number_of_ranks_is_refused(monkeypatch):
    monkeypatch.setattr(tensorrt_command, "environment", lambda: {"RANK": "0", "WORLD_SIZE": "4"})

    with pytest.raises(Exception, match="ranks: got 4 started, wanted the 8 of ulysses8"):
        place_among(None, ["ulysses8"])


def test_several_hosts_need_to_know_the_first():
    with pytest.raises(Exception, match="MASTER_ADDR: got none"):
        meets_at(Place(rank=0, world=8, local=0, here=4), 1)


@pytest.mark.parametrize("fails", [False, True])
def test_ranks_that_were_started_build_once_a_host_and_hear_each_other(
    monkeypatch, tmp_path, port, fails
):
    built, heard = [], {}
    monkeypatch.setattr(
        start, "_build", lambda folder, execution, tell: built.append(folder.path) or []
    )
    monkeypatch.setattr(start.harness, "open_folder", lambda path: type("F", (), {"path": path}))

    def one(path, execution, judge):
        if fails and execution.place.rank:
            return "no memory", RankResult(error=0.0, seconds=())
        return "", RankResult(error=0.1 * execution.place.rank, seconds=(1.0, 2.0))

    monkeypatch.setattr(start, "_run_own_rank", one)

    def rank(number):
        place = Place(rank=number, world=2, local=number, port=port - 1)
        execution = Execution(weights="filler", place=place)
        files = {"plan.json": b'{"digest": "1"}'}
        try:
            heard[number] = build_and_run(files, tmp_path / "small", execution, None, print)[0]
        except start.RunError as error:
            heard[number] = str(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    [thread.start() for thread in threads]
    [thread.join(600) for thread in threads]

    assert [path.name for path in built] == [f"small.{socket.gethostname()}"]
    assert heard[0] == heard[1]
    if fails:
        assert heard[0] == "rank 1: no memory"
    else:
        assert [one.error for one in heard[0]] == [0.0, 0.1]


def test_two_ways_to_launch_share_their_engines(monkeypatch, tmp_path):
    """Each plan is proved once, and its engines of both sizes are built once."""
    done, proved = [], checking.run_networks

    def build(library, share, options, path, source, tell):
        path.write_bytes(b"engine")
        done.append(f"build {path.parents[1].name}")

    def run_ranks(argv, world, limit, environment):
        mode = "graph" if "--graph" in argv else "eager"
        done.append(f"run {Path(argv[argv.index('--folder') + 1]).name} {mode}")

    def prove(*told):
        done.append("prove")
        return proved(*told)

    monkeypatch.setattr(checking, "run_networks", prove)
    monkeypatch.setattr(checking, "load", TensorRT)
    monkeypatch.setattr(checking, "probe", lambda env: Machine)
    monkeypatch.setattr(checking.harness, "load", TensorRT)
    monkeypatch.setattr(checking.harness, "_build", build)
    monkeypatch.setattr(start, "start", run_ranks)
    layers = (("forward", "norm", 0.125), ("forward", "attend", 0.25))
    ran = RankResult(error=0.0, seconds=(1.0, 1.0), layers=layers)
    monkeypatch.setattr(start, "_rank_result", lambda *told: ran)
    monkeypatch.setattr(system, "products", list)
    sizes = ("--height", "128", "--width", "128", "--frames", "5", "--results", str(tmp_path))
    words = ("validate", "--model", "wan2.1-1.3b", "--backend", "tensorrt", "--gate", "100%")
    code, out, err = run(*words, *sizes, "--plan", "cfg2,tp2", "--mode", "graph,eager")

    assert code == 0, err
    longest = [line.strip() for line in out.splitlines() if "longest layer" in line][:2]
    assert longest == [
        "longest layer: 0.250000 s, attend of forward",
        "longest layer: 0.125000 s, norm of forward",
    ]
    assert [what for what, _ in groupby(done)] == [
        "prove",
        *("build small", "run small graph", "build full", "run full graph"),
        *("run small eager", "run full eager"),
    ] * 2


class TensorRT:
    __name__ = "tensorrt"
    __version__ = "11.4.1"
