"""The examples run, and say what they are there to say."""

import runpy
import sys

import pytest
from commands import ROOT

SAID = {
    "own_model_and_hardware": ("my_model: 28 layers", "1 x my_gpu: single, ", "4 x my_gpu: "),
    "sweep": ("h100-sxm x 8: ", "l40s     x 8: ", "seconds a video", "h h100-sxm, l l40s"),
    "cells": ("denoise", "a tenth slower: 1.0", "h200-sxm: ", "l40s: "),
    "compare_log": ("all_reduce on 2 x h200-sxm", "median error", "farthest apart: "),
}


def test_every_example_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_an_example_says(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    said = capsys.readouterr().out

    for words in SAID[name]:
        assert words in said
