"""The exported runner in C++: it compiles, and does what the schedule says, on stand-ins."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cppengines import BYTES, write_engines

from planner.export.files import write_folder
from planner.export.tables import cpp
from planner.export.tensorrt import tensorrt_folder
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import parse_plan
from planner.tensorrt.runner.external_weights import writer
from validate.reference import shrink

STUBS = Path(__file__).parent.parent / "cppstubs"
COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "runner.cpp").write_bytes(cpp()["runner.cpp"])
    words = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{STUBS}", "runner.cpp"]
    subprocess.run([COMPILER, *words, "-o", "runner"], cwd=folder, check=True)
    return folder / "runner"


@pytest.fixture
def exported(tmp_path):
    """A small Wan 2.1 over two branches of two ranks."""
    scenario, plan = resolve(Request(model="wan2.1-1.3b", gpus=4)), parse_plan("cfg2.tp2")
    model, workload = shrink(scenario.model, scenario.workload, plan)
    little = replace(scenario, model=model, workload=workload)
    folder = write_folder(tensorrt_folder(little, price(little, plan)), str(tmp_path / "out"))
    write_engines(folder)
    return folder


def start(binary, folder, rank, *words, world=4):
    environment = {**os.environ, "STUB_RANK": str(rank), "STUB_WORLD": str(world)}
    return subprocess.run(
        [str(binary), str(folder), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_rank_runs_its_own_engine_in_the_schedule_s_order(binary, exported):
    plan = json.loads((exported / "plan.json").read_text())

    done = start(binary, exported, 3)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "device 3"
    assert lines.count("join 1 of 2") == 2  # its pair along tp, and its pair of branches
    assert lines.count("enqueue forward.rank1.engine") == plan["steps"]
    assert lines.count("enqueue combine.engine") == plan["steps"]
    bound = [n for n, line in enumerate(lines) if line.startswith("communicator")]
    first = next(n for n, line in enumerate(lines) if line.startswith("enqueue"))
    assert len(bound) == 2
    assert max(bound) < first
    closed = [n for n, line in enumerate(lines) if line.startswith("closed")]
    assert lines.count("left") == 2
    assert max(closed) < lines.index("left")  # contexts go before their communicators


def test_every_input_and_output_is_bound(binary, exported):
    done = start(binary, exported, 0)

    document = json.loads((exported / "networks" / "forward.json").read_text())
    wanted = {one["name"] for key in ("inputs", "tables", "outputs") for one in document[key]}
    lines = [line.split() for line in done.stdout.splitlines()]
    bound = {words[2] for words in lines if words[:2] == ["address", "forward.rank0.engine"]}
    assert bound == wanted


def put_outside(folder, weights):
    """Let an engine read weights from the file beside it."""
    engine = folder / "engines" / "forward.rank0.engine"
    write_engines(folder, forward=weights)
    layers = [
        {
            "kind": "weight", "part": "values", "encoding": "plain",
            "outputs": [{"name": name, "shape": [3, 5], "dtype": "bf16"}],
        }
        for name in weights
    ]  # fmt: skip
    with engine.with_suffix(".weights").open("wb") as file:
        put = writer({"layers": layers}, file.write)
        for name in weights:
            put(name, np.zeros((3, 5), np.uint16))


def test_weights_beside_an_engine_are_bound(binary, exported):
    put_outside(exported, ["weight.a", "weight.b"])

    done = start(binary, exported, 0)

    lines = [line.split() for line in done.stdout.splitlines()]
    bound = {words[2] for words in lines if words[:2] == ["address", "forward.rank0.engine"]}
    assert done.returncode == 0, done.stderr
    assert {"weight.a", "weight.b"} < bound


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "has no weight.a, which its engine reads"),
        (lambda path: path.write_bytes(path.read_bytes()[:-300]), "is cut short"),
        (lambda path: path.write_bytes(path.read_bytes()[:10]), "build it again"),
        (lambda path: path.write_text("nonsense\n\n"), "its table cannot be read"),
    ],
)
def test_weights_that_are_not_beside_their_engine_end_the_run(binary, exported, spoil, said):
    put_outside(exported, ["weight.a", "weight.b"])
    spoil(exported / "engines" / "forward.rank0.weights")

    done = start(binary, exported, 0)

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_graph_replaces_all_steps_but_the_first(binary, exported):
    plan = json.loads((exported / "plan.json").read_text())

    lines = start(binary, exported, 0, "--graph").stdout.splitlines()

    assert lines.count("graph") == plan["steps"] - 1
    assert lines.count("enqueue combine.engine") == 2  # the first step, and the recording


def test_an_engine_for_one_device_ends_the_run(binary, exported):
    path = exported / "engines" / "combine.engine"
    name, _, *rest = path.read_text().splitlines()
    path.write_text("\n".join([name, "1", *rest]))

    done = start(binary, exported, 0)

    assert done.returncode == 1
    assert "rank 0: combine: the engine says that it is not for several devices" in done.stderr


def test_an_engine_that_lacks_a_tensor_ends_the_run(binary, exported):
    path = exported / "engines" / "combine.engine"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))

    done = start(binary, exported, 0)

    assert done.returncode == 1
    assert "rank 0: combine: its engine has no tensor " in done.stderr


def test_engines_work_in_one_memory_and_everything_is_freed(binary, exported):
    lines = start(binary, exported, 0).stdout.splitlines()

    engines = json.loads((exported / "plan.json").read_text())["engines"]
    memory = [line.split()[2:] for line in lines if line.startswith("memory ")]
    assert len(memory) == len(engines)
    assert len({tuple(words) for words in memory}) == 1
    assert memory[0][1] == str(BYTES + len(engines) - 1)  # as much as the largest needs
    assert sum(line.startswith("allocated") for line in lines) == lines.count("freed") > 0
    left, unloaded = lines.index("left"), [n for n, x in enumerate(lines) if x.startswith("unl")]
    assert len(unloaded) == len(engines)
    assert left < min(unloaded) < lines.index("freed")


def test_options_say_how_it_runs(binary, exported):
    words = ["--steps", "3", "--device", "5", "--results", "mine", "--budget", "0"]
    done = start(binary, exported, 1, *words)

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == "device 5"
    assert lines.count("enqueue combine.engine") == 3
    assert "budget combine.engine 0" in lines
    assert (exported / "mine" / "output.rank1.bin").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps"], "--steps: got nothing, wanted a number of at least 1"),
        (["--steps", "0"], "--steps: got 0, wanted a number of at least 1"),
        (["--limit", "soon"], "--limit: got soon, wanted a number of at least 1"),
        (["--grph"], "got --grph; usage: mpirun -np N runner FOLDER"),
        (["there"], "got there behind the folder; usage"),
        (["--graph", "--budget", "8"], "--graph: got it beside --budget, wanted one"),
        (["--budget", "8"], "build it with --streaming"),
    ],
)
def test_options_that_cannot_be_right_are_one_line(binary, exported, words, said):
    done = start(binary, exported, 0, *words)

    assert done.returncode == (1 if "streaming" in said else 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def cut(folder, share):
    path = folder / "cpp" / "schedule.txt"
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "engines" / "combine.engine").unlink(), "python -m runner build"),
        (
            lambda folder: (folder / "engines" / "combine.engine").write_bytes(b""),
            "python -m runner build",
        ),
        (lambda folder: (folder / "cpp" / "schedule.txt").unlink(), "cannot read"),
        (shutil.rmtree, "cannot read"),
        *[(lambda folder, n=n: cut(folder, n / 16), "cpp/schedule.txt") for n in range(16)],
    ],
)
def test_what_is_missing_or_damaged_is_named(binary, exported, spoil, said):
    spoil(exported)

    done = start(binary, exported, 0)

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_another_number_of_ranks_is_refused(binary, exported):
    done = start(binary, exported, 0, world=2)

    assert done.returncode == 2
    assert "started with 2 ranks, wanted 4" in done.stderr
