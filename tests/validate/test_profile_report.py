"""Profiles that ship, as ``planner profile`` shows them."""

import json

import pytest
from commands import run

from costmodels.tables import read_profile, shipped_profiles
from validate.fit import report
from validate.fit.text import to_toml

BY_ITSELF, BY_NAME = "h100-sxm", "h100-sxm-x2-2026-11-28"


def test_the_list_says_what_each_profile_is_for():
    code, out, err = run("profile", "list")
    lines = {line.split()[0]: line for line in out.splitlines()}

    assert (code, err) == (0, "")
    assert set(shipped_profiles()) <= set(lines)
    assert "by itself for h100-sxm" in lines[BY_ITSELF]
    assert "by name, or with --detect on 2 x NVIDIA H100" in lines[BY_NAME]
    assert "curves" in lines[BY_NAME]
    assert "curves" not in lines[BY_ITSELF]


@pytest.mark.parametrize("words", [("list",), ("show", BY_ITSELF)])
def test_a_profile_is_taken_as_by_every_command(words):
    assert run("profile", *words, "--profile", BY_NAME) == run("profile", *words)
    assert run("profile", *words, "--profile", "/no/such")[:2] == (2, "")


def test_the_list_as_data():
    found = json.loads(run("profile", "list", "--format", "json")[1])

    assert found["profiles"] == list(shipped_profiles())
    default = {one["name"]: one["default"] for one in found["details"]}
    assert default[BY_ITSELF]
    assert not default[BY_NAME]


def test_a_profile_is_called_what_it_was_asked_for_by():
    _, out, _ = run("profile", "show", BY_ITSELF)
    _, text, _ = run("profile", "show", BY_ITSELF, "--format", "json")

    assert out.startswith(f"{BY_ITSELF} ({BY_NAME}): ")
    assert json.loads(text)["name"] == BY_ITSELF


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_two_profiles_are_titled_apart_and_lacks_are_summarised(style):
    _, out, _ = run("profile", "diff", BY_ITSELF, BY_NAME, "--format", style)

    assert f"{BY_ITSELF} and {BY_NAME}" in out.splitlines()[0]
    assert "nan" not in out.split()
    (line,) = [line for line in out.splitlines() if line.strip("| ").startswith("matmul")]
    assert "-" in line.replace("|", " ").split()
    assert "11 numbers" in line
    assert "alike in both: " in out


def test_what_one_profile_lacks_is_null_as_data():
    _, out, _ = run("profile", "diff", BY_ITSELF, BY_NAME, "--format", "json")
    found = json.loads(out, parse_constant=pytest.fail)
    lacking = [change for change in found["changes"] if change["name"] == "matmul.floor"]

    assert (found["first"], found["second"]) == (BY_ITSELF, BY_NAME)
    assert lacking[0]["first"] is None
    assert lacking[0]["second"] > 0
    assert "matmul" not in found["parts"]["first"]


def test_files_are_called_by_their_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(read_profile(BY_NAME)), encoding="utf-8")
    _, out, _ = run("profile", "diff", str(path), BY_NAME)

    assert out.startswith(f"{path} and {BY_NAME}")
    assert "in one of them" not in out


def test_parts_count_every_number():
    profile = read_profile(BY_NAME)

    assert sum(report.parts(profile).values()) >= len(report.values(profile))
