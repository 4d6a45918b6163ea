"""The exported runner in C++: it compiles, and does what the schedule says, on stand-ins."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

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
    """A small FLUX.1 over two branches of two ranks; engines hold their own names."""
    scenario, plan = resolve(Request(model="wan2.1-1.3b", gpus=4)), parse_plan("cfg2.tp2")
    model, workload = shrink(scenario.model, scenario.workload, plan)
    little = replace(scenario, model=model, workload=workload)
    folder = write_folder(tensorrt_folder(little, price(little, plan)), str(tmp_path / "out"))
    (folder / "engines").mkdir()
    for engine in json.loads((folder / "plan.json").read_text())["engines"]:
        for file in engine["files"]:
            (folder / file).write_text(file.split("/")[1])
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
    engine.write_text("\n".join([engine.read_text(), *weights]))
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
    (exported / "engines" / "combine.engine").write_text("alone")

    done = start(binary, exported, 0)

    assert done.returncode == 1
    assert "rank 0: combine: the engine says that it is not for several devices" in done.stderr


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
