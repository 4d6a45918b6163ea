"""The exported runner in C++: it compiles, and does what the schedule says, on stand-ins."""

import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from cppengines import (
    BYTES,
    COMPILER,
    STRICT,
    STUBS,
    compiled,
    export,
    own_headers,
    write_engines,
    write_sources,
)

from planner.tensorrt import buffer_size
from planner.tensorrt.runner.external_weights import writer
from planner.tensorrt.runner.place import buffers_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("cpp"), "runner")


@pytest.mark.skipif(not own_headers(), reason="no headers of TensorRT, CUDA, NCCL or MPI")
@pytest.mark.parametrize("program", ["runner", "builder"])
def test_it_compiles_against_the_libraries_own_headers(program, tmp_path):
    """Of those that are here; stand-ins for the others."""
    own = own_headers()
    for path in STUBS.iterdir():
        if path.name not in own:
            shutil.copy(path, tmp_path)
    write_sources(tmp_path)
    found = {folder for folder in own.values() if not folder.is_relative_to("/usr/include")}
    words = [word for folder in found for word in ("-isystem", str(folder))]  # others it knows
    words = [*STRICT, "-fsyntax-only", f"-I{tmp_path}", *words, f"{program}.cpp"]
    subprocess.run([COMPILER, *words], cwd=tmp_path, check=True)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A small Wan 2.1 over two branches of two ranks."""
    return export(tmp_path_factory.mktemp("first") / "out", "wan2.1-1.3b", "cfg2.tp2")


@pytest.fixture
def exported(first, tmp_path):
    """A copy of it, to damage."""
    return shutil.copytree(first, tmp_path / "out")


def said(done, *kinds):
    """Lines of a run that begin so, in their order."""
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.partition(" ")[0] in kinds]


def test_stages_run_their_own_engines_and_send_between_them(binary, tmp_path):
    """Two forwards of a step follow one another through both stages."""
    folder = export(tmp_path / "out", "wan2.1-1.3b", "pp2.tp2")
    buffers = json.loads((folder / "plan.json").read_text())["buffers"]
    handed, predicted = (buffer_size(buffers[name]) for name in ("x.video", "predictions"))

    first, last = (
        said(start(binary, folder, rank, "--steps", "1"), "enqueue", "send", "receive", "join")
        for rank in (1, 2)
    )

    assert first == [
        "join 1 of 2", "join 1 of 4",
        "enqueue forward.stage0.rank1.engine", f"send {handed} to 3",
        "enqueue forward.stage0.rank1.engine", f"send {handed} to 3",
        f"receive {predicted} from 3", "enqueue combine.engine",
    ]  # fmt: skip
    assert last == [
        "join 0 of 2", "join 2 of 4",
        f"receive {handed} from 0", "enqueue forward.stage1.rank0.engine",
        f"receive {handed} from 0", "enqueue forward.stage1.rank0.engine",
        f"send {predicted} to 0", "enqueue combine.engine",
    ]  # fmt: skip


def test_a_stage_of_a_language_model_has_the_buffers_of_its_own_engines(binary, tmp_path):
    folder = export(tmp_path / "out", "llama-3.1-8b", "pp2", output_tokens=3)
    plan = json.loads((folder / "plan.json").read_text())

    for rank in range(2):
        done = start(binary, folder, rank, "--graph", world=2)

        sizes = [int(line.split()[1]) for line in said(done, "allocated")]
        own = [buffer_size(plan["buffers"][name]) for name in buffers_of(plan, rank)]
        assert set(own) <= set(sizes)
        assert len(sizes) == len(own) + 1  # and what engines work in
        engines = {line.split()[1] for line in said(done, "enqueue")}
        assert engines == {f"{part}.stage{rank}.engine" for part in ("prefill", "decode")}


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


def test_a_language_model_s_steps_follow_its_prompt(binary, tmp_path):
    """Their cache is one buffer for both sides, and they start behind the prompt."""
    folder = export(tmp_path / "out", "llama-3.1-8b", "tp2", output_tokens=3)
    path = folder / "cpp" / "schedule.txt"
    text = path.read_text()
    bound = dict(word.split("=") for word in re.findall(r"\S+=cache\S+", text))
    path.write_text(re.sub("^output .*$", "output filled", text, flags=re.MULTILINE))

    done = start(binary, folder, 1, world=2)

    assert done.returncode == 0, done.stderr
    engines = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("enqueue")]
    assert engines == ["prefill.rank1.engine", *["decode.rank1.engine"] * 3]
    caches = [name for name in bound if name.startswith("cache")]
    assert len(caches) > 1
    assert all(bound[name] == bound[f"new.{name}"] for name in caches)
    rows = json.loads((folder / "plan.json").read_text())["buffers"]["prompt.tokens"]["shape"][1]
    left = np.fromfile(folder / "results" / "output.rank1.bin", np.float32)
    assert left == [0.0]  # `next.filled` of stand-ins is zero, and is copied
    path.write_text(re.sub("^copy each next.filled.*\n", "", path.read_text(), flags=re.MULTILINE))
    assert start(binary, folder, 1, world=2).returncode == 0
    assert np.fromfile(folder / "results" / "output.rank1.bin", np.float32) == [rows]


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


def say(pattern, text):
    """Say something else in one line of a schedule."""

    def spoil(folder):
        path = folder / "cpp" / "schedule.txt"
        said, count = re.subn(pattern, text, path.read_text(), count=1, flags=re.MULTILINE)
        assert count == 1
        path.write_text(said)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        say(r"^(copy \S+ \S+ \S+) \d+$", r"\1 99999999"),
        say(r"^(copy \S+ \S+ \S+) \d+$", r"\1 -1"),
        say(r"^copy (\S+) \S+ ", r"copy \1 nothing "),
        say(r"=(\S+)\+0 ", r"=\1+99999999 "),
        say(r"=(\S+)\+0 ", r"=\1+99999999999999999999999 "),
        say(r"=(\S+)\+0 ", r"=\1+-1 "),
        say(r"=(\S+)\+0 ", "=nothing+0 "),
        say(r"^call (\S+) \S+ ", r"call \1 nothing "),
        say(r"^given \S+$", "given nothing"),
        say(r"^steps \d+$", "steps 0"),
        say(r"^steps \d+$", "steps many"),
        say(r"^device ", "gpu "),
        say(r"^copy( .*)$", r"send\1 0>4"),
        say(r"^copy( .*)$", r"send\1 -1>1"),
        say(r"^copy( .*)$", r"send\1"),
    ],
)  # fmt: skip
def test_a_schedule_that_leaves_its_buffers_is_refused(binary, exported, spoil):
    spoil(exported)

    done = start(binary, exported, 0)

    assert done.returncode == 2, done.stderr
    assert "cpp/schedule.txt is damaged" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("bytes_", [0, 1, 10**5])
def test_an_input_of_another_size_is_refused(binary, exported, bytes_):
    schedule = (exported / "cpp" / "schedule.txt").read_text()
    name = re.search(r"^given (\S+)$", schedule, re.MULTILINE)[1]
    (exported / "inputs").mkdir()
    (exported / "inputs" / f"{name}.rank0.bin").write_bytes(bytes(bytes_))

    done = start(binary, exported, 0)

    assert done.returncode == 2
    assert f"{name}.rank0.bin: {bytes_} bytes, wanted " in done.stderr


@pytest.mark.parametrize(("place", "said"), [(1, "is cut short"), (2, "is cut short")])
def test_weights_that_begin_beyond_their_file_are_refused(binary, exported, place, said):
    put_outside(exported, ["weight.a"])
    path = exported / "engines" / "forward.rank0.weights"
    head, line, rest = path.read_bytes().partition(b"\n\n")
    words = head.split(b" ")
    words[place] = str(2**64 - 8).encode()
    path.write_bytes(b" ".join(words) + line + rest)

    done = start(binary, exported, 0)

    assert done.returncode == 2
    assert said in done.stderr


def test_another_number_of_ranks_is_refused(binary, exported):
    done = start(binary, exported, 0, world=2)

    assert done.returncode == 2
    assert "started with 2 ranks, wanted 4" in done.stderr
