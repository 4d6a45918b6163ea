"""The runner in an exported folder: it stands alone, and bad input is one line and exit code 2."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import wanmodel as wan
from computedmodels import save

from planner.engines.tables import allowed
from planner.export.export import files
from planner.export.files import write_folder
from planner.export.tables import runner
from planner.export.tensorrt import tensorrt_folder
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import parse_plan
from planner.tensorrt.runner import __main__ as running
from planner.tensorrt.runner import harness, library
from planner.tensorrt.runner.build import Built, Options, build
from planner.tensorrt.runner.errors import InputError, LateError, RunError
from planner.tensorrt.runner.layers import Share
from planner.tensorrt.runner.place import meets_at, rank_of
from planner.tensorrt.runner.processes import start
from validate.reference import shrink

STARTED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29511"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A small FLUX.1 over two tensor-parallel ranks."""
    scenario, plan = resolve(Request(model="flux.1-dev", gpus=2)), parse_plan("tp2")
    model, workload = shrink(scenario.model, scenario.workload, plan)
    little = replace(scenario, model=model, workload=workload)
    files = tensorrt_folder(little, price(little, plan))
    return write_folder(files, str(tmp_path_factory.mktemp("exported") / "out"))


@pytest.fixture
def folder(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "here", "said"),
    [
        ("tensorrt", "11.5.0.12", ""),
        ("tensorrt", "11.0.0.114", "planner export --tensorrt-version 11.0.0.114 minds its faults"),
        ("tensorrt_rtx", "1.7.1", "does not run those of several GPUs"),
    ],
)
def test_engines_of_another_tensorrt_than_networks_were_written_for_are_said(name, here, said):
    found = SimpleNamespace(__name__=name, __version__=here)
    lines = [*running._other_version(found, {"tensorrt_version": "11.5.0"})]  # noqa: SLF001

    assert len(lines) == bool(said)
    assert said in "".join(lines)


@pytest.mark.parametrize(
    ("name", "here", "ranks", "said"),
    [
        ("tensorrt", "11.0.0", 2, ""),
        ("tensorrt", "10.16.1", 2, "TensorRT 10.16.1: this plan needs 11.0.0 or newer"),
        ("tensorrt_rtx", "1.7.1", 1, ""),
        (
            "tensorrt_rtx",
            "1.7.1",
            2,
            "TensorRT-RTX 1.7.1 is here, which runs no engines of",
        ),
    ],
)
def test_a_library_that_cannot_run_a_plan_is_called_what_it_is(name, here, ranks, said):
    found = SimpleNamespace(__name__=name, __version__=here)
    if not said:
        running._check_library(found, "11.0.0", ranks)  # noqa: SLF001
        return
    with pytest.raises(RunError, match=said):
        running._check_library(found, "11.0.0", ranks)  # noqa: SLF001


def test_weights_that_are_streamed_are_in_no_graph(built, capsys, monkeypatch):
    code, said = run(capsys, monkeypatch, built, "run", "--graph", "--budget", "8")

    assert code == 2
    assert said.startswith("runner: --graph: got it beside --budget, wanted one: ")


@pytest.fixture
def built(folder):
    """A folder whose engines are there, and are none."""
    for engine in json.loads((folder / "plan.json").read_text())["engines"]:
        for file in engine["files"]:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(b"engine")
    return folder


def run(capsys, monkeypatch, folder, *words, **environment):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = running.main([*words, "--folder", str(folder)])
    return code, capsys.readouterr().err


def assert_wrong(answer, said):
    code, err = answer
    assert code == 2
    assert err.startswith("runner: ")
    assert said in err
    assert err.count("\n") == 1


def started(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "runner", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_runner_in_the_folder_stands_alone(folder):
    """It starts without the planner on the path, and says what is there."""
    sources = [source.decode() for source in runner().values()]

    done = started(folder, "show")

    assert not any(
        "planner" in line for text in sources for line in text.splitlines() if "import" in line
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "flux.1-dev tp2 on h100-sxm, bf16"
    assert "forward:" in done.stdout
    assert "0 of 2 engines built" in done.stdout


@pytest.mark.parametrize("words", [("build", "--weights", "nowhere"), ("run", "--total", "60")])
def test_the_exported_runner_refuses_in_one_line(folder, words):
    done = started(folder, *words)

    assert_wrong((done.returncode, done.stderr), "not built yet" if "run" in words else "No such")


def test_ranks_of_several_hosts_are_not_started_on_one(capsys, monkeypatch, built):
    text = (built / "plan.json").read_text().replace('"host": 0', '"host": 1', 1)
    (built / "plan.json").write_text(text)
    monkeypatch.setattr(harness, "digest_of", lambda plan, documents: plan["digest"])

    answer = run(capsys, monkeypatch, built, "run")

    assert_wrong(answer, "the ranks are on 2 hosts: start them by mpirun or torchrun")


def test_commands_of_the_readme_are_those_there_are(capsys, monkeypatch, folder):
    """What it says to type parses, and what it says to install has been chosen by its CUDA."""
    said = (folder / "README.md").read_text()
    lines = re.findall(r"python -m runner (.*?) *(?:#.*)?$", said, re.MULTILINE)

    assert len(lines) > 5
    for line in lines:
        answer = run(capsys, monkeypatch, folder / "none", *line.split())  # judged after options
        assert_wrong(answer, "none/plan.json: No such file")
    wanted = " ".join(map(repr, allowed().packages["13"]))
    assert f"for CUDA 13:\n\n    pip install {wanted} numpy\n" in said


def test_no_module_of_the_runner_hides_one_of_python():
    """As where a file of it is started by its path, and its folder is searched first."""
    assert not {Path(name).stem for name in runner()} & sys.stdlib_module_names


def test_software_that_is_missing_is_one_line(capsys, monkeypatch, folder):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(library, "import_module", missing)

    assert_wrong(run(capsys, monkeypatch, folder, "build"), "TensorRT is not installed")


NO_PLANS = (
    "", "{", "[]", "7", "null", '"plan"', '{"schema": {}}', '{"schema": "1"}', "[" * 100_000,
    '{"schema": "1", "engines": 3}', '{"schema": "1", "engines": [{}]}', "\ufeff{}", "\udcff",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_PLANS, ids=range(len(NO_PLANS)))
def test_a_plan_that_is_none_is_refused(capsys, monkeypatch, folder, text):
    (folder / "plan.json").write_bytes(text.encode("utf-8", "surrogateescape"))

    assert_wrong(run(capsys, monkeypatch, folder, "show"), str(folder))


@pytest.mark.parametrize("name", ["plan.json", "networks/forward.json"])
def test_a_document_that_is_cut_short_or_missing_is_named(capsys, monkeypatch, folder, name):
    text = (folder / name).read_text()
    (folder / name).write_text(text[: len(text) // 2])
    assert_wrong(run(capsys, monkeypatch, folder, "show"), f"{name}: it is damaged, or cut short")

    (folder / name).unlink()
    assert_wrong(run(capsys, monkeypatch, folder, "show"), f"{name}: No such file")


@pytest.mark.parametrize("name", ["plan.json", "networks/forward.json"])
def test_a_document_that_was_changed_is_refused(capsys, monkeypatch, folder, name):
    document = json.loads((folder / name).read_text())
    document["ranks"] = 3
    (folder / name).write_text(json.dumps(document))

    assert_wrong(run(capsys, monkeypatch, folder, "show"), "were changed since they were exported")


def test_a_file_in_place_of_a_folder_is_refused(capsys, monkeypatch, folder):
    assert_wrong(run(capsys, monkeypatch, folder / "plan.json", "show"), "Not a directory")
    assert_wrong(run(capsys, monkeypatch, "x" * 5000, "show"), "File name too long")


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        ({"RANK": "x"}, "RANK: got 'x', wanted a whole number"),
        ({"RANK": ""}, "RANK: got '', wanted a whole number"),
        ({"RANK": "-1"}, "RANK: got '-1', wanted a whole number"),
        ({"RANK": "٣"}, "RANK: got '٣', wanted a whole number"),
        ({"RANK": "9" * 5000}, "wanted a whole number"),
        ({"RANK": "2"}, "RANK: got 2, wanted a rank from 0 to 1"),
        ({"WORLD_SIZE": "1.5"}, "WORLD_SIZE: got '1.5', wanted a whole number"),
        ({"WORLD_SIZE": "3"}, "started with 3 ranks, wanted 2"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT: got 'x', wanted a whole number"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT: got 70000, wanted a port from 1 to 65535"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT: got 0, wanted a port"),
        ({"MASTER_ADDR": "." * 3}, "MASTER_ADDR: got '...', wanted a host"),
        ({"MASTER_ADDR": "a" * 300}, "wanted a host"),
    ],
)
def test_variables_that_cannot_be_are_refused(rank, said):
    environment = {**STARTED, **rank}

    with pytest.raises(InputError) as caught:
        (rank_of(environment, 2), meets_at(environment))
    assert said in str(caught.value)


def test_a_rank_that_cannot_be_ends_the_command(capsys, monkeypatch, built):
    answer = run(capsys, monkeypatch, built, "run", **{**STARTED, "RANK": "two"})

    assert_wrong(answer, "RANK: got 'two', wanted a whole number")


@pytest.mark.parametrize("rank", [{}, STARTED])
def test_engines_that_are_missing_are_named_before_anything_starts(
    capsys, monkeypatch, built, rank
):
    monkeypatch.setattr(running, "start", None)
    (built / "engines" / "forward.rank0.engine").unlink()

    answer = run(capsys, monkeypatch, built, "run", **rank)

    assert_wrong(answer, "forward.rank0.engine: not built yet; run: python -m runner build")


def test_results_want_engines_of_the_model_s_weights(capsys, monkeypatch, built):
    monkeypatch.setattr(running, "start", None)
    monkeypatch.setattr(running.pictures, "check_made", lambda plan: ".png")
    words = ("generate", "a fox")
    harness.save(built / "engines", "built", {"weights": "filler"})

    answer = run(capsys, monkeypatch, built, *words)
    assert_wrong(answer, "filler weights, which make noise; run: python -m runner build --weights")

    (built / "engines" / "forward.rank0.engine").unlink()
    answer = run(capsys, monkeypatch, built, *words)
    assert_wrong(answer, "not built yet; run: python -m runner build --weights FOLDER")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.write_text("{}"), "Not a directory"),
        (lambda path: path.mkdir(), "no safetensors files"),
        (lambda path: (path / "a.safetensors").mkdir(parents=True), "Is a directory"),
        (lambda path: path.mkdir() or (path / "a.safetensors").touch(), "damaged, or cut short"),
        (
            lambda path: path.mkdir() or (path / "a.safetensors").write_bytes(b"\1" * 99),
            "not a safetensors file",
        ),
        (
            lambda path: (
                path.mkdir()
                or (path / "a.safetensors").write_bytes(
                    (90_000).to_bytes(8, "little") + b"[" * 90_000
                )
            ),
            "its table of contents cannot be read",
        ),
    ],
)
def test_weights_that_are_none_are_refused(capsys, monkeypatch, folder, tmp_path, make, said):
    make(tmp_path / "weights")

    answer = run(capsys, monkeypatch, folder, "build", "--weights", str(tmp_path / "weights"))

    assert_wrong(answer, said)
    assert not (folder / "engines").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--steps", "-1"),
        ("run", "--steps", "many"),
        ("run", "--device", "-1"),
        ("run", "--budget", "-2"),
        ("run", "--limit", "0"),
        ("run", "--limit", "nan"),
        ("run", "--total", "inf"),
        ("build", "--level", "6"),
        ("build", "--workspace", "-1"),
        ("fly",),
    ],
)
def test_options_that_cannot_be_are_refused(capsys, monkeypatch, folder, words):
    assert_wrong(run(capsys, monkeypatch, folder, *words), words[-2] if len(words) > 1 else "fly")


def test_a_record_of_what_was_built_that_is_damaged_is_named(folder):
    harness.save(folder / "engines", "built", {})

    with pytest.raises(InputError, match=r"built\.json: it is damaged, or cut short: 'weights'"):
        harness.built_of(harness.open_folder(folder))


def test_constants_and_tables_that_are_damaged_are_named(folder):
    opened = harness.open_folder(folder)
    raw = (folder / "networks" / "forward.npz").read_bytes()
    for damaged in (b"", raw[: len(raw) // 2], b"PK\3\4" + b"\0" * 99):
        (folder / "networks" / "forward.npz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"forward\.npz: it is damaged, or cut short"):
            opened.constants("forward")

    document = {**opened.documents[0], "tables": [{"name": "a", "shape": [4], "dtype": "fp32"}]}
    (folder / "tables").mkdir(exist_ok=True)
    (folder / "tables" / "forward.bin").write_bytes(b"\0" * 17)
    with pytest.raises(InputError, match=r"forward\.bin: it is damaged, or cut short"):
        opened.tables(document, 0)


@pytest.mark.parametrize("inside", ["", "transformer"])
def test_weights_lie_in_the_folder_or_in_that_of_a_pipeline(folder, tmp_path, inside):
    text = json.dumps({"x_embedder.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})
    raw = np.array([3, 4], np.float32).tobytes()
    (tmp_path / "model" / inside).mkdir(parents=True)
    file = tmp_path / "model" / inside / "diffusion_pytorch_model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text.encode() + raw)

    found = harness.weights_from(str(tmp_path / "model"), harness.open_folder(folder).plan)

    entry = {"kind": "bias", "name": "embed", "layer": -1, "once": False, "degree": 1}
    assert found.learned({**entry, "parts": [[2, 1]]}, 0).tolist() == [3, 4]


def test_engines_are_mapped(built):
    """One that is empty was cut short."""
    engine = harness.engine_of(harness.open_folder(built), 1)

    assert bytes(engine("forward")) == b"engine"
    (built / "engines" / "forward.rank1.engine").write_bytes(b"")
    with pytest.raises(InputError, match=r"forward\.rank1\.engine: it is damaged, or cut short"):
        engine("forward")


def test_a_folder_without_weights_is_named(folder, tmp_path):
    (tmp_path / "model" / "transformer").mkdir(parents=True)

    with pytest.raises(InputError, match=r"model: no safetensors files, and none in a folder tra"):
        harness.weights_from(str(tmp_path / "model"), harness.open_folder(folder).plan)


def test_engines_outlive_weights_that_lack_a_tensor(built, tmp_path, capsys):
    """What is missing is said before engines that are there make room for new ones."""
    (tmp_path / "model").mkdir()
    text = json.dumps({"x_embedder.bias": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    before = {*built.glob("engines/*")}

    for more in ([], ["--record"]):
        words = ["build", "--weights", str(tmp_path / "model"), "--again", *more]
        assert running.main([*words, "--folder", str(built)]) == 2
        assert ": the checkpoint has no " in capsys.readouterr().err
        assert {*built.glob("engines/*")} == before


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """A folder of a model of two transformers, their weights, and what is built of them."""
    weights, parts = tmp_path / "weights", ("transformer", "transformer_2")
    for number, part in enumerate(parts):
        (weights / part).mkdir(parents=True)
        tensors = {name: one + number for name, one in wan.checkpoint(wan.CONFIG).items()}
        save(weights / part, wan.CONFIG, tensors)
    index = {part: ["diffusers", "WanTransformer3DModel"] for part in parts}
    (weights / "model_index.json").write_text(json.dumps(index))
    request = Request(model=str(weights), steps=4, **wan.SIZES)
    folder = write_folder(files(request, "single", "tensorrt"), str(tmp_path / "out"))
    made = {}

    def build(library, share, options, tell, write):
        for layer in share.document["layers"]:
            if layer["kind"] == "weight" and layer["weight"] == "embed":
                made.setdefault(layer["name"], []).append(share.weights(layer, 0).sum())
        write(b"engine")
        return Built(b"")

    monkeypatch.setattr(harness, "build", build)
    monkeypatch.setattr(harness, "load", lambda: None)
    monkeypatch.setattr(running, "load", lambda: SimpleNamespace(__name__="tensorrt_rtx"))
    monkeypatch.setattr(running, "version", lambda library: "1.7.1")
    return folder, weights, made


def test_engines_of_both_transformers_of_a_pipeline_are_built(pair):
    folder, weights, made = pair
    words = ["build", "--weights", str(weights), "--folder", str(folder)]

    assert running.main([*words, "--keep", "engine"]) == 0
    for name in ("engines", "engines_2"):
        assert (folder / name / "forward.engine").read_bytes() == b"engine"
    ((first, second),) = made.values()
    size = wan.checkpoint(wan.CONFIG)["patch_embedding.weight"].size
    np.testing.assert_allclose(second - first, size, rtol=1e-3)


def test_a_tensor_that_the_second_transformer_lacks_is_said_before_any_engine(pair, capsys):
    folder, weights, _ = pair
    tensors = wan.checkpoint(wan.CONFIG)
    del tensors["proj_out.weight"]
    save(weights / "transformer_2", wan.CONFIG, tensors)

    assert running.main(["build", "--weights", str(weights), "--folder", str(folder)]) == 2
    assert "the checkpoint has no proj_out.weight" in capsys.readouterr().err
    assert not list(folder.glob("engines*"))


def test_a_runner_that_is_stopped_says_nothing(folder):
    """Ctrl-C ends it with the code of a program that was stopped, as in a shell's foreground."""
    (folder / "tensorrt.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('here', flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-m", "runner", "build"]
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout.readline() == "here\n"
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=300)

    assert started.returncode == 130
    assert said == ""


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((2, 3)), r"\[2, 3\], wanted \[2, 2\]"),
        (np.array(["a"]), "damaged"),
        (None, "damaged"),
    ],
)
def test_inputs_that_cannot_be_are_refused(folder, array, said):
    path = folder / "inputs" / "text#0.npy"
    path.parent.mkdir()
    if array is None:
        path.write_bytes(b"\x93NUMPY")
    else:
        np.save(path, array)

    with pytest.raises(InputError, match=said):
        harness.given_from(folder / "inputs")("text", 0, (2, 2))


def test_results_that_cannot_be_written_are_said(tmp_path):
    (tmp_path / "results").write_text("a file")

    with pytest.raises(RunError, match=r"output\.rank0\.npy: "):
        harness.save(tmp_path / "results", "output.rank0", np.zeros(2))


def ends(line, world=2, limit_s=300.0):
    start(
        ["-c", f"import os, sys, time; rank = int(os.environ['RANK']); {line}"],
        world,
        limit_s,
        os.environ,
    )


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("planner.tensorrt.runner.processes.SETTLE_S", 0.3)


def test_what_ranks_blame_on_their_input_is_bad_input(monkeypatch):
    monkeypatch.setattr("planner.tensorrt.runner.processes.SETTLE_S", 300)  # both end in it

    with pytest.raises(InputError, match=r"^rank 0: no folder; rank 1: no folder$"):
        ends("print('runner: no folder', file=sys.stderr); sys.exit(2)")


def test_a_rank_that_fails_ends_those_that_wait():
    with pytest.raises(RunError, match=r"^rank 1: no memory$") as caught:
        ends("rank or time.sleep(600); sys.stderr.write('runner: rank 1: no memory'); sys.exit(1)")
    assert not isinstance(caught.value, InputError)


def test_ranks_that_do_not_end_are_late():
    with pytest.raises(LateError, match=r"^ranks 0, 1 are late, after 0\.5 s$"):
        ends("time.sleep(600)", limit_s=0.5)


def test_a_library_that_lets_no_thread_run_is_ended_by_the_system():
    """As a handshake with a missing rank may be, in a call that keeps Python's lock."""
    text = (
        "import signal, ctypes; from functools import partial\n"
        "from planner.tensorrt.runner import processes\n"
        "processes.SPARE_S = 0.3\n"
        "guard = processes.Guard(print, partial(signal.setitimer, signal.ITIMER_REAL)).start()\n"
        "guard.phase('binding', 0.2)\n"
        "ctypes.PyDLL(None).sleep(600)\n"
    )

    done = subprocess.run([sys.executable, "-c", text], check=False, timeout=300)

    assert done.returncode == -signal.SIGALRM


def test_a_builder_that_is_none_is_one_line():
    """Without a GPU TensorRT logs why, makes nothing, and its bindings raise a TypeError."""

    class Logger:
        ERROR, INTERNAL_ERROR = "error", "internal"

    def refuse(logger):
        logger.log("error", "CUDA initialization failure with error: 35.\nPlease check it")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    tensorrt = SimpleNamespace(__name__="tensorrt", ILogger=Logger, Builder=refuse)
    share = Share(document={"name": "forward"}, arrays={}, weights=None)

    said = r"^TensorRT makes no builder here: CUDA initialization failure with error: 35\. Please"
    with pytest.raises(RunError, match=said):
        build(tensorrt, share, Options())
