"""The exported builder in C++: it makes the calls that were recorded, on a stand-in."""

import os
import re
import shutil
import subprocess

import pytest
from cppengines import COMPILER, compiled, export

from planner.tensorrt.runner import harness
from planner.tensorrt.runner.__main__ import main

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("cpp"), "builder")


def recorded(path, model, plan, *words, **asked):
    """Write the folder of a small model, with the calls of its engines and no engine."""
    folder = export(path, model, plan, **asked)
    shutil.rmtree(folder / "engines")
    assert main(["build", "--record", *words, "--folder", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("first") / "out", "flux.1-dev", "ulysses2.tp2")


@pytest.fixture
def folder(first, tmp_path):
    """A copy of it with the calls of one engine, to damage."""
    copy = shutil.copytree(first, tmp_path / "out")
    for path in (copy / "engines").glob("*.calls"):
        if path.name != "forward.rank3.calls":
            path.unlink()
    return copy


def start(binary, folder, calls, **variables):
    environment = {**os.environ, "STUB_CALLS": str(calls), **variables}
    return subprocess.run(
        [str(binary), str(folder)], env=environment, capture_output=True, text=True, check=False
    )


def asked(calls):
    """Lines that TensorRT shall see: with the sum of a constant's bytes in place of where it is."""
    numbers = calls.with_suffix(".numbers").read_bytes()
    bits = {"float32": 32, "float16": 16, "bfloat16": 16, "fp8": 8, "fp4": 4, "int8": 8}

    def summed(match):
        dtype, count, start = match[1], int(match[2]), int(match[3])
        size = -(-count * bits.get(dtype, 32) // 8)
        return f"Weights({dtype},{count},{sum(numbers[start : start + size])})"

    text = re.sub(r"Weights\((\w+),(\d+),@(\d+)\)", summed, calls.read_text())
    return [line for line in text.splitlines() if " expect " not in line]


@pytest.mark.parametrize(
    ("model", "plan", "more", "options", "wanted"),
    [
        (
            "flux.1-dev",
            "tp2",
            {"precision": "nvfp4", "hardware": "b200"},
            "",
            "add_dynamic_quantize",
        ),
        ("gemma-4-26b-a4b", "tp2", {"output_tokens": 3}, "", "add_topk"),
        ("sana-1.6b", "tp2", {}, "--keep file", "add_convolution_nd"),
        ("llama-3.1-8b", "pp2", {"output_tokens": 3}, "--workspace 64", "67108864"),
        ("wan2.1-i2v-14b", "cfg2.ulysses2.tp2", {}, "--streaming", "[0,2]"),
    ],
)
def test_the_calls_that_tensorrt_sees_are_those_recorded(
    binary, tmp_path, model, plan, more, options, wanted
):
    folder = recorded(tmp_path / "out", model, plan, *options.split(), **more)
    kept = tmp_path / "kept"
    (folder / "engines").rename(kept)
    said = set()
    for calls in kept.glob("*.calls"):
        shutil.rmtree(folder / "engines", ignore_errors=True)
        (folder / "engines").mkdir()
        for path in (calls, calls.with_suffix(".numbers")):
            shutil.copy(path, folder / "engines")

        done = start(binary, folder, calls)

        assert done.returncode == 0, done.stderr
        engine = (folder / "engines" / calls.name).with_suffix(".engine")
        assert engine.read_bytes() == b"engine"
        made = re.compile(r"(Weights\(\w+,\d+,)[1-9]\d*\)")  # whatever was made up, it is there
        seen = [
            line
            for line in done.stdout.splitlines()
            if not line.startswith(("timings", engine.name))
        ]
        for line, one in zip(seen, asked(calls), strict=True):
            assert (made.sub(r"\1made)", line) if "made)" in one else line) == one
        said |= {word for line in seen for word in line.split()}
    assert wanted in said
    assert ("BuilderFlag.WEIGHT_STREAMING" in said) == (options == "--streaming")
    assert any(kept.glob("*.weights")) == (options == "--keep file")
    assert ("made)" in "".join(path.read_text() for path in kept.glob("*.calls"))) == (
        not any(kept.glob("*.weights"))
    )


def test_engines_of_a_second_transformer_are_built_too(binary, folder):
    second = (folder / "engines").rename(folder / "engines_2")
    calls = second / "forward.rank3.calls"

    done = start(binary, folder, calls)

    assert done.returncode == 0, done.stderr
    assert calls.with_suffix(".engine").read_bytes() == b"engine"


def test_engines_that_are_there_stay_and_timings_are_kept(binary, folder):
    calls = folder / "engines" / "forward.rank3.calls"
    before = start(binary, folder, calls)
    again = start(binary, folder, calls)
    calls.with_suffix(".engine").unlink()
    third = start(binary, folder, calls)

    assert "timings 0" in before.stdout
    assert again.stdout == "forward.rank3.engine: there already\n"
    assert "timings 5" in third.stdout
    assert (folder / "engines" / "timing.cache").read_bytes() == b"times"
    assert not list(folder.glob("engines/*.draft"))


@pytest.mark.parametrize(
    ("pattern", "text", "said", "code"),
    [
        (r"^\d+ add_unary", "7 add_unary", "got layer 7, wanted ", 2),
        (r"^(\d+) add_unary .*$", r"\1 add_unary", "add_unary: it is cut short", 2),
        (r"add_elementwise \S+", "add_elementwise 9999.0", "got 9999, wanted a layer", 2),
        (r"add_unary \S+", "add_unary 12.-1", "got 12.-1, wanted a tensor", 2),
        (r"add_cast \S+", "add_cast x.0", "got x, wanted a number", 2),
        (r"add_cast (\S+) \S+", r"add_cast \1 fp7", "this builder knows no fp7", 2),
        (r"UnaryOperation.SQRT", "UnaryOperation.CBRT", "knows no UnaryOperation.CBRT", 2),
        (r" add_unary ", " add_everything ", "knows no network add_everything", 2),
        (r" reshape_dims= \S+", " reshape_dims= 4", "got 4, wanted a list", 2),
        (r" reshape_dims= ", " shape= ", "knows no layer shape=", 2),
        (r"expect \[\d+,", "expect [99,", "TensorRT makes [", 1),
        (r"@0\)", "@99999999)", "numbers is cut short", 2),
        (r"@0\)", "@-1)", "numbers is cut short", 2),
        (r"\nbuild\n", "\n", "forward.rank3.calls is cut short", 2),
        (r"\nbuild\n", "\n3\nbuild\n", "3: it is cut short", 2),
        (r"num_ranks= 2", "num_ranks= 0", "TensorRT does not take it", 1),
    ],
)
def test_calls_that_cannot_be_made_are_one_line(binary, folder, pattern, text, said, code):
    calls = folder / "engines" / "forward.rank3.calls"
    whole = folder / "whole.calls"
    shutil.copy(calls, whole)
    spoilt, count = re.subn(pattern, text, calls.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    calls.write_text(spoilt)

    done = start(binary, folder, whole)

    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(folder.glob("engines/*.engine"))


@pytest.mark.parametrize("refused", ["add_unary", "build"])
def test_what_tensorrt_refuses_leaves_no_engine(binary, folder, refused):
    done = start(binary, folder, folder / "engines" / "forward.rank3.calls", STUB_REFUSES=refused)

    assert done.returncode == 1
    assert (
        f"TensorRT {'adds nothing by add_unary' if refused != 'build' else 'built nothing'}"
        in done.stderr
    )
    assert not list(folder.glob("engines/*.engine"))


def test_a_folder_without_calls_says_how_they_are_written(binary, tmp_path):
    (tmp_path / "engines").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        done = start(binary, folder, "")

        assert done.returncode == 2
        assert "python -m runner build --record" in done.stderr
        assert done.stderr.count("\n") == 1


def test_calls_are_recorded_as_engines_are_built(first, capsys):
    """Those that are there stay, and other options are refused."""
    word = ["build", "--record", "--folder", str(first)]
    assert main(word) == 0
    assert "forward.rank3.calls: there already" in capsys.readouterr().out
    assert main([*word, "--level", "0"]) == 2
    assert "built with --level 3, got 0; --again builds it anew" in capsys.readouterr().err
    assert main([*word, "--capability", "SM120", "--again"]) == 2
    assert "--capability: got one, wanted none with --record" in capsys.readouterr().err
