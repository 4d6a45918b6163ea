"""The command line as people and scripts use it."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import pytest
from commands import (
    CLUSTER,
    COMMANDS,
    FLUX,
    LLAMA,
    NOTHING,
    REQUEST,
    ROOT,
    assert_refused,
    python,
    run,
)

import planner

pytestmark = pytest.mark.usefixtures("asked_once")


@pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("style", ["table", "json", "markdown"])
def test_every_command_answers_on_standard_output(argv, style):
    code, out, err = run(*argv, "--format", style)

    assert (code, err) == (0, "")
    assert out.strip()
    if style == "json":
        document, end = json.JSONDecoder().raw_decode(out)
        assert out[end:].strip() == ""
        assert isinstance(document, dict)


def test_a_machine_can_be_a_page():
    code, out, err = run("topology", "show", "h100-sxm", "--format", "html")

    assert (code, err) == (0, "")
    assert out.lstrip().lower().startswith("<!doctype html")


SAME = {
    "recommend": (
        ("recommend", "--model", "cosmos3", "--gpus", "2", "--objective", "memory"),
        lambda: planner.recommend("cosmos3", gpus=2, objective="memory"),
    ),
    "at most": (
        ("recommend", "--model", "flux", "--gpus", "4", "--at-most-gpus", "--hardware", "l40s"),
        lambda: planner.recommend("flux", gpus=4, at_most_gpus=True, hardware="l40s"),
    ),
    "decoder": (
        ("recommend", "--model", "llama-3.1-8b", "--gpus", "2", "--input-tokens", "512"),
        lambda: planner.recommend("llama-3.1-8b", gpus=2, input_tokens=512),
    ),
    "nothing": (NOTHING, lambda: planner.recommend("flux.1-dev", gpus=1, hardware="rtx-4090")),
    "estimate": (
        ("estimate", *REQUEST, "--plan", "tp2", "--height", "512", "--width", "768", "--offload"),
        lambda: planner.estimate(
            "flux.1-dev", gpus=2, plan="tp2", height=512, width=768, offload=True
        ),
    ),
    "eager": (
        ("estimate", "--model", "flux", "--runtime", "torch-eager", "--steps", "4"),
        lambda: planner.estimate("flux", runtime="torch-eager", steps=4),
    ),
    "model": (("models", "show", "wan2.1-14b"), lambda: planner.read_model("wan2.1-14b")),
    "language model": (("models", "show", "qwen3-8b"), lambda: planner.read_model("qwen3-8b")),
    "topology": (
        ("topology", "show", CLUSTER),
        lambda: planner.read_topology(CLUSTER),
    ),
    "on a machine": (
        ("estimate", *REQUEST, "--plan", "tp2", "--topology", CLUSTER),
        lambda: planner.estimate("flux.1-dev", gpus=2, plan="tp2", topology=CLUSTER),
    ),
}


@cache
def in_json(*argv):
    """Run a command once, for whoever asks what it prints."""
    return json.loads(run(*argv, "--format", "json")[1])


@pytest.mark.parametrize(("argv", "call"), SAME.values(), ids=SAME)
def test_json_is_what_python_returns(argv, call):
    assert in_json(*argv) == json.loads(json.dumps(call().to_dict()))


BYTES = {
    **SAME,
    "decoder": (
        ("estimate", "--model", "llama-3.1-8b", "--batch", "3", "--precision", "fp8"),
        None,
    ),
    "collectives": (("collectives", "--bytes", "1.3KiB:1MiB"), None),
    "hardware": (("topology", "list"), None),
}


def amounts(document):
    """Every number under a name that ends in bytes, or in a table of such a name."""
    if isinstance(document, list):
        return [found for one in document for found in amounts(one)]
    if not isinstance(document, dict):
        return []
    found = [amounts(value) for key, value in document.items() if not key.endswith("_bytes")]
    own = [value for key, value in document.items() if key.endswith("_bytes")]
    flat = [list(value.values()) if isinstance(value, dict) else [value] for value in own]
    return [number for numbers in (*found, *flat) for number in numbers]


@pytest.mark.parametrize("argv", [argv for argv, _ in BYTES.values()], ids=BYTES)
def test_bytes_in_json_are_whole(argv):
    found = amounts(in_json(*argv))

    assert found or argv[0] in ("models", "recommend")
    assert all(isinstance(number, int | None) for number in found)


def test_memory_is_the_sum_of_its_parts_to_the_byte():
    for more in ({"plan": "cfg2.ulysses2.tp2"}, {"plan": "cfg2.pp2.tp2", "height": 192}):
        found = planner.estimate("cosmos3", gpus=8, **more)
        apart = found.memory_parts_bytes[found.memory_apart]
        assert sum(found.memory_parts_bytes.values()) - apart == found.memory_bytes


def test_what_a_model_makes_no_images_by_is_not_said_of_it():
    said = {name: run("models", "show", name)[1] for name in ("llama-3.1-8b", "flux.1-dev")}

    assert [name for name, text in said.items() if re.search(r"defaults .*steps", text)] == [
        "flux.1-dev"
    ]


def test_a_collective_in_json_is_what_python_returns():
    _, out, _ = run("collectives", "--op", "all_to_all", "--bytes", "1MiB:4MiB", "--format", "json")

    for row in json.loads(out)["rows"]:
        assert row["time_s"] == planner.collective("all_to_all", row["message_bytes"], gpus=8)


def test_as_many_plans_as_were_asked_for():
    def lines(*more):
        return json.loads(run(*COMMANDS["recommend"], *more, "--format", "json")[1])["plans"]

    assert len(lines("--top", "3")) == 3
    assert lines("--top", "1000") == lines()


def test_rejected_plans_on_request():
    _, out, _ = run(*COMMANDS["recommend"], "--rejected")

    assert "a step has one forward (no guidance), which cfg2 does not divide" in out


def test_a_file_of_a_model_is_a_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    code, out, err = run("estimate", "--model", str(path), "--gpus", "2", "--plan", "tp2")

    assert (code, err) == (0, "")
    assert tmp_path.name in out


# Exit codes


@pytest.mark.parametrize("style", ["table", "json", "markdown"])
def test_no_feasible_plan_is_an_answer_and_exit_code_one(style):
    code, out, err = run(*NOTHING, "--format", style)

    assert (code, err) == (1, "")
    assert "no plan of 1 GPU can run; would fit: " in out


def test_an_interrupt_is_exit_code_130(monkeypatch):
    def interrupt(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.rendering.report.recommendation", interrupt)

    assert run(*COMMANDS["recommend"]) == (130, "", "planner: interrupted\n")


@pytest.mark.parametrize("argv", [["--help"], ["recommend", "--help"], ["--version"]])
def test_help_and_version_are_answers(argv):
    code, out, err = run(*argv)

    assert (code, err) == (0, "")
    assert out.startswith(("usage: planner", "planner "))


BAD = [
    (("recommend",), "--model"),
    (("fly",), "unknown command 'fly'"),
    (("recommend", *REQUEST, "--colour", "red"), "unknown option '--colour'"),
    (("recommend", "--model", "cosmos4"), "unknown model 'cosmos4'", "did you mean cosmos3"),
    (("recommend", "--model", ""), "unknown model ''"),
    (("recommend", "--model", "a\nb"), "unknown model"),
    (("recommend", *REQUEST, "--hardware", "h1000"), "unknown hardware 'h1000'", "h100-sxm"),
    (("recommend", *REQUEST, "--runtime", "torch"), "unknown runtime 'torch'", "torch-eager"),
    (("recommend", *REQUEST, "--precision", "fp64"), "unknown precision 'fp64'"),
    (("recommend", *REQUEST, "--objective", "speed"), "unknown objective 'speed'"),
    (("recommend", *REQUEST, "--algorithm", "rings"), "unknown algorithm 'rings'", "ring"),
    (("recommend", *REQUEST, "--text-tower", "never"), "unknown text_tower 'never'"),
    (("recommend", *REQUEST, "--format", "xml"), "invalid choice: 'xml'"),
    (("recommend", *REQUEST, "--nodes", "3"), "3 nodes"),
    (("recommend", *REQUEST, "--nodes", "0"), "--nodes: got 0"),
    (("recommend", *REQUEST, "--steps", "1_0"), "--steps: got '1_0'"),
    (("recommend", *REQUEST, "--steps", "\u0663"), "--steps: got"),
    (("recommend", *REQUEST, "--top", "0"), "top: got 0, wanted a whole number from 1 to 1000"),
    (("recommend", *REQUEST, "--frames", "5"), "frames: got 5, wanted 1"),
    (("recommend", *REQUEST, "--topology", "/no/such/file"), "no such file"),
    (("recommend", *REQUEST, "--topology", str(ROOT)), "is a folder, wanted a file"),
    (("topology", "show", "/"), "'/' is a folder, wanted a file"),
    (("collectives", "--compare", str(ROOT)), "not a file but a folder"),
    (("collectives", "--compare", "-", "--topology", "-"), "got - for both, wanted one file"),
    (("recommend", *REQUEST, "--attention", "fa9"), "unknown attention kernel 'fa9'"),
    (("recommend", "--model", "llama-3.1-8b", "--offload"), "offload: got True, wanted none: "),
    (
        ("recommend", "--model", "llama-3.1-8b", "--text-tower", "once"),
        "text_tower: got once, wanted none: llama-3.1-8b is a language model",
    ),
    (("estimate", *REQUEST), "a plan is needed for 2 GPUs"),
    (("estimate", *REQUEST, "--plan", ""), "expected axes and degrees"),
    (("estimate", *REQUEST, "--plan", "sp2"), "unknown axis 'sp'"),
    (
        ("estimate", *REQUEST, "--plan", "tp4"),
        "degrees multiply to 4 (4), not to 2 GPUs: it takes --gpus 4",
    ),
    (("estimate", *REQUEST, "--plan", "cfg2"), "nearest that can on 2 GPUs: "),
    (("estimate", *NOTHING[1:], "--plan", "single"), " GiB short, at ", "would fit: "),
    (("collectives", "--gpus", "1"), "gpus: got 1, wanted a whole number from 2 to 131072"),
    (("collectives", "--gpus", "0", "--link", "pcie=2"), "gpus: got 0, wanted a whole number"),
    (("collectives", "--op", "all_reduces"), "unknown collective 'all_reduces'", "all_reduce"),
    (("collectives", "--bytes", "2KiB:1KiB"), "wanted low:high"),
    (("collectives", "--bytes", "1e400"), "not a finite quantity"),
    (("collectives", "--bytes", "1K;1M"), "wanted 1MiB, 1KiB:1GiB, or several with commas"),
    (("collectives", "--bytes", "1K,"), "'' is not a quantity in B: wanted 1MiB"),
    (("collectives", "--nodes", "-1"), "nodes: got -1"),
    (("collectives", "--algorithm", "multishot", "--op", "broadcast"), "serves all_reduce only"),
    (("collectives", "--compare", "/no/such/log"), "--compare /no/such/log"),
    (("collectives", "--compare", CLUSTER), "nccl-tests"),
    (("estimate", "--model", "llama-3.1-8b", "--plan", "tp2/vae2"), "vae2: llama-3.1-8b has no"),
    (("recommend", "--model", "flux", "--nodes", "3"), "gpus: got none beside 3 nodes"),
    (("recommend", *REQUEST, "--pcie-generation", "5"), "pcie_generation: got 5, wanted none"),
    (("recommend", *REQUEST, "--tensorrt-version", "11.9"), "tensorrt_version: got 11.9, wanted"),
    (
        ("recommend", "--model", "flux", "--engine", "xdit", "--tensorrt-version", "11.2"),
        "tensorrt_version: got 11.2 beside engine xdit, wanted none",
    ),
    (("collectives", "--pcie-generation", "5"), "pcie_generation: got 5, wanted none beside"),
    (("collectives", "--op", ""), "--op: got ''"),
    (("topology", "show", "h100-sxm", "--pcie-generation", "5"), "got 5, wanted none beside"),
    (("topology", "list", "--nodes", "5"), "topology list: got --nodes 5, wanted none"),
    (("calibrate", "--output", "c.toml", "--minutes", "0"), "minutes: got 0"),
    (("calibrate", "--output", "c.toml", "--gpus", "0"), "gpus: got 0"),
    (("validate", "--model", "flux", "--plan", "tp2", "--decode"), "wanted a language model"),
    (("models",), "list|show|import"),
    (("profile",), "list|show|diff|install"),
    (("profile", "show", "nosuch"), "unknown profile or file 'nosuch'", "h100-sxm"),
    (("profile", "list", "h100-sxm"), "profile list: got 1 name, wanted 0"),
    (("models", "show"), "wanted a name or a file"),
    (("models", "show", "/no/such.json"), "no such file or folder"),
    (("models", "import", "no-such.onnx"), "no such file or folder"),
    (("models", "forget"), "invalid choice: 'forget'"),
    (("topology", "show"), "wanted a catalogue name or a file"),
    (("topology", "show", "--topology", "x.txt"), "the file stands by itself here"),
    (("topology", "show", "/no/such/file"), "no such file"),
    (("topology", "show", "h100-sxm", "--nodes", "0"), "nodes"),
    (("topology", "show", "h100-sxm", "--nodes", "1000000"), "nodes: got 1000000"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: " ".join(case[0])[:60] or "nothing")
def test_bad_input_is_one_line_and_exit_code_two(case):
    argv, *said = case

    assert_refused(*run(*argv), *said)


@pytest.mark.parametrize("option", ["gpus", "height", "width", "frames", "steps", "batch"])
def test_numbers_that_cannot_be_are_named(option):
    for value in ("0", "-1", "1.5", "nan", "inf", "eight", "", "1e3", "9" * 400):
        argv = ("estimate", "--model", "flux.1-dev", "--plan", "single", f"--{option}={value}")

        assert_refused(*run(*argv), option, "wanted a whole number")


CONFIGS = {
    "empty": "",
    "truncated": json.dumps(LLAMA)[:-20],
    "not an object": "[1, 2]",
    "null": "null",
    "unknown class": json.dumps({**FLUX, "_class_name": "FluxTransformer4DModel"}),
    "unknown type": json.dumps({**LLAMA, "model_type": "lama"}),
    "no class": json.dumps({"hidden_size": 4096}),
    "text for a number": json.dumps({**LLAMA, "hidden_size": "wide"}),
    "no heads": json.dumps({**LLAMA, "num_attention_heads": 0}),
    "negative": json.dumps({**LLAMA, "num_hidden_layers": -1}),
    "absurd": json.dumps({**LLAMA, "intermediate_size": 10**30}),
    "fraction": json.dumps({**LLAMA, "num_attention_heads": 2.5}),
    "not a number": json.dumps({**LLAMA, "vocab_size": float("nan")}),
    "missing": json.dumps({"model_type": "llama"}),
    "deep": "[" * 100_000,
    "bytes": "\xff\xfe\x00",
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("command", ["recommend", "estimate", "show"])
def test_a_config_that_is_no_model_is_one_line(tmp_path, command, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    argv = ("models", "show", str(path)) if command == "show" else (command, "--model", str(path))

    assert_refused(*run(*argv))


# Files


def inside(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_gets_what_would_be_printed(tmp_path):
    path = tmp_path / "answer.json"
    argv = (*COMMANDS["estimate"], "--format", "json")

    assert run(*argv, "--output", str(path)) == (0, "", "")
    assert path.read_text() == run(*argv)[1]
    assert inside(tmp_path) == ["answer.json"]


def test_a_dash_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert run("models", "list", "--output", "-") == run("models", "list")
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "answer.md"
    path.write_text("old " * 10_000)

    assert run("models", "list", "--output", str(path))[0] == 0
    assert "old" not in path.read_text()


def test_bad_input_leaves_a_file_as_it_was(tmp_path):
    path = tmp_path / "answer.json"
    path.write_text("old")

    assert_refused(*run("recommend", "--model", "cosmos4", "--output", str(path)))
    assert path.read_text() == "old"
    assert inside(tmp_path) == ["answer.json"]


@pytest.mark.parametrize("name", ["missing/answer.json", "", "/", "folder", "a\x00b", "x" * 300])
def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, name):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)

    assert_refused(*run("models", "list", "--output", name), "--output")
    assert inside(tmp_path) == ["folder"]
    assert inside(tmp_path / "folder") == []


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "answer.json"
    path.write_text("old")

    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)

    assert_refused(*run("models", "list", "--output", str(path)), "No space left on device")
    assert path.read_bytes() == b"old"
    assert inside(tmp_path) == ["answer.json"]


# In a process of its own


def test_the_main_command_answers():
    done = python("recommend", "--model", "cosmos3", "--gpus", "8")

    assert (done.returncode, done.stderr) == (0, "")
    assert "cfg2.ulysses4" in done.stdout


def test_errors_and_answers_have_their_streams():
    done = python("recommend", "--model", "cosmos4", "--gpus", "8")

    assert_refused(done.returncode, done.stdout, done.stderr, "did you mean cosmos3")


def test_a_terminal_without_bars_gets_question_marks():
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = python("collectives", "--bytes", "1MiB", env=ascii_only)

    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout


def test_a_reader_that_leaves_early_is_no_error():
    """As in ``planner models list | head -1``."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "planner", "models", "list"]
    with os.fdopen(write, "w") as gone:
        done = subprocess.run(
            command, cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, check=False, timeout=600
        )

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["/dev/zero", "/dev", "/no/such/log", "a\0b"])
def test_a_log_that_is_none_is_refused(name):
    assert_refused(*run("collectives", "--compare", name), "--compare")


def test_a_log_has_a_largest_size(tmp_path):
    (tmp_path / "log").write_bytes(b"#" * (16 * 2**20 + 1))

    assert_refused(
        *run("collectives", "--compare", str(tmp_path / "log")), "at most 16777216 bytes"
    )


@pytest.mark.parametrize("words", [("topology", "show", "h100-sxm"), ("models", "show", "flux")])
def test_commands_that_predict_nothing_check_a_profile_all_the_same(words):
    code, out, _ = run(*words, "--profile", "h100-sxm")
    assert (code, out) == run(*words)[:2]

    assert_refused(*run(*words, "--profile", "/no/such/profile"), "/no/such/profile")


def test_an_answer_goes_through_links_and_into_pipes(tmp_path):
    """What a link points at is written, with the mode it has; a pipe stays a pipe."""
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    assert run("models", "list", "--output", str(link))[0] == 0
    assert link.is_symlink()
    assert "cosmos3-nano" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600

    os.mkfifo(pipe)
    reader = threading.Thread(target=pipe.read_text)
    reader.start()
    assert run("models", "list", "--output", str(pipe))[0] == 0
    reader.join(10)
    assert pipe.is_fifo()


def test_a_profile_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    for argv in (("profile", "show"), ("topology", "show"), ("collectives", "--compare")):
        assert_refused(*run(*argv, str(tmp_path / "pipe")), "pipe or device")


@pytest.mark.parametrize("text", ["format = " + "[" * 100_000, "format = " + "1" * 5000])
def test_a_profile_that_breaks_the_parser_is_refused(text, tmp_path):
    (tmp_path / "deep.toml").write_text(text)

    assert_refused(*run("profile", "show", str(tmp_path / "deep.toml")), "no TOML")


@pytest.mark.parametrize("plan", ["ulysses4", "cfg2.tp2", "single"])
def test_a_plan_says_how_many_gpus_it_takes(plan):
    said = ("estimate", "--model", "wan2.1-1.3b", "--plan", plan, "--format", "json")

    code, out, err = run(*said)
    again = run(*said, "--gpus", "1" if plan == "single" else "4")

    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(again[1])
    assert json.loads(out) == planner.estimate("wan2.1-1.3b", plan=plan).to_dict()
