"""What a parser takes stands in its help and in docs/commands.md, and examples parse."""

import argparse
import re
import shlex
import subprocess
import sys
from typing import get_args

import pytest
from commands import ROOT, run

from planner.command.cli import OWN_COMMANDS, UPPER_COMMANDS, WHOLE, command_of
from planner.command.cli import parser_of as whole_parser

NEVER = ("networkx", "scipy", "torch")  # for a question that is asked every day
SEARCH = ("planner.lowering", "planner.search", "planner.recommendation")
PAGES = {name: command_of(name) for name in (*OWN_COMMANDS, *UPPER_COMMANDS)}
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## planner (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def parser_of(command):
    (commands,) = [
        action
        for action in whole_parser(command)._actions  # noqa: SLF001  # argparse lists them nowhere else
        if isinstance(action.choices, dict)
    ]
    return commands.choices[command]


def shown(command):
    found = parser_of(command)._actions  # noqa: SLF001  # argparse lists them nowhere else
    return [one for one in found if one.help is not argparse.SUPPRESS]


def parsed(line):
    """What a line's own command reads, without what is piped into it."""
    words = shlex.split(line.rpartition("| ")[2])
    assert words[0] == "planner"
    return whole_parser(words[1]).parse_args(words[1:])


@pytest.mark.parametrize("command", PAGES)
def test_every_option_has_a_word_of_help(command):
    said = [one.option_strings or one.dest for one in shown(command) if not one.help]

    assert said == []


@pytest.mark.parametrize("command", PAGES)
def test_help_has_a_sentence_examples_and_exit_codes(command):
    code, out, err = run(command, "--help")

    assert (code, err) == (0, "")
    assert PAGES[command].text in out
    assert out.count("  planner ") + out.count("| planner ") >= 2
    assert "exit codes:\n  0   done" in out
    assert "  2   bad input" in out
    assert "  130 stopped by Ctrl-C" in out


@pytest.mark.parametrize("command", PAGES)
def test_defaults_are_shown(command):
    for one in shown(command):
        if one.default not in (None, "", 0, False, argparse.SUPPRESS) and one.option_strings:
            assert "(default: " in one.help, one.option_strings


def test_the_whole_help_lists_all_commands_and_what_exit_codes_mean():
    code, out, _ = run("--help")

    assert code == 0
    assert all(page.help.split()[0] in out for page in PAGES.values())
    assert "no plan can run, a gate was missed, or doctor says that something is missing" in out


@pytest.mark.parametrize(
    "line",
    [line for page in PAGES.values() for line in page.examples.splitlines() if line[0] != " "],
)
def test_examples_of_the_help_parse(line):
    assert parsed(line).command in PAGES


@pytest.mark.parametrize("line", [WHOLE.examples.splitlines()[0]])
def test_the_first_example_parses(line):
    assert parsed(line).gpus == 8


def test_the_page_has_every_command():
    assert set(SECTIONS) == set(PAGES)


@pytest.mark.parametrize("command", PAGES)
def test_the_page_has_every_option_and_action(command):
    section = SECTIONS[command]
    if command in ("estimate", "simulate", "export"):  # these refer to the options of a request
        section += SECTIONS["recommend"]
    for one in shown(command):
        for option in one.option_strings:
            assert option in ("-h", "--help") or f"`{option}`" in section, option
        for action in one.choices or () if one.dest == "action" else ():
            assert f"planner {command} {action}" in section, action


@pytest.mark.parametrize("command", PAGES)
def test_the_page_names_no_option_that_is_not_there(command):
    taken = {option for one in shown(command) for option in one.option_strings}
    others = (
        {"--topology", "--hardware", "--profile"} if command in ("topology", "calibrate") else set()
    )

    named = set(re.findall(r"`(--[a-z-]+)", SECTIONS[command]))

    assert named - taken - others == set()


@pytest.mark.parametrize("command", PAGES)
def test_examples_of_the_page_parse(command):
    lines = re.findall(r"^planner .*$", SECTIONS[command], re.MULTILINE)

    assert lines
    assert all(parsed(line).command == command for line in lines)


def test_the_names_that_help_gives_are_those_there_are():
    from costmodels.collectives import LAUNCHES, OPS
    from planner.export.export import backends
    from planner.request.request import Objective

    said = {one.dest: one.help for name in PAGES for one in shown(name) if one.help}
    exported = {one.dest: one.help for one in shown("export")}

    assert all(name in exported["backend"] for name in backends())
    assert all(f"{name}," in said["objective"] for name in get_args(Objective))
    assert all(f"{name}," in said["launch"] for name in LAUNCHES)
    assert all(name in said["op"] for name in OPS)


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ([], ("numpy._core", "tomllib", "rich", *NEVER, *SEARCH)),
        (["--help"], ("numpy._core", "tomllib", "rich", *NEVER, *SEARCH)),
        (["recommend", "--help"], ("numpy._core", "rich", *NEVER, *SEARCH)),
        (["models", "list"], ("numpy._core", *NEVER, *SEARCH)),
        (["models", "show", "cosmos3"], ("numpy._core", *NEVER, *SEARCH)),
        (["topology", "list"], ("numpy._core", "planner.models", *NEVER, *SEARCH)),
        (["collectives", "--gpus", "8"], ("numpy._core", "planner.models", *NEVER, *SEARCH)),
        (["estimate", "--model", "flux.1-dev", "--plan", "single"], ("numpy._core", *NEVER)),
        (
            ["recommend", "--model", "cosmos3", "--gpus", "8"],
            ("numpy._core", *NEVER),
        ),
    ],
)
def test_no_package_is_loaded_that_is_not_needed(words, heavy):
    code = f"""
import sys
from planner.command.cli import main
try:
    main({words})
finally:
    print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"
