"""What the documents show is what happens: commands run, code runs, paths exist."""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from planner.command.cli import main, parser_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [
    line for block in _blocks("sh") for line in block.splitlines() if line.startswith("planner ")
]


ON_GPUS = [
    line[line.index("planner ") :] for block in _blocks("bash") for line in block.splitlines()
]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder with the examples, where commands may write."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_run(command):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(shlex.split(command)[1:])

    assert code == 0
    assert out.getvalue().strip()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("command", ON_GPUS)
def test_commands_for_gpus_are_understood_and_say_what_they_lack(command):
    words = shlex.split(command)[1:]

    assert parser_of(words[0]).parse_args(words).command == words[0]
    if shutil.which("nvidia-smi") is None:
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = main(words)
        assert code in (1, 2)
        assert len(err.getvalue().splitlines()) == (code == 2)


def test_the_two_commands_that_do_all_are_there():
    """They make their own environment, so they run in CI, not here."""
    lines = [line for block in _blocks("sh") for line in block.splitlines()]

    assert sum("planner recommend --model cosmos3 --gpus 8" in line for line in lines) == 1
    assert sum(" -m pytest -q -n 2 " in line for line in lines) == 1


def test_python_of_the_readme_runs():
    out = io.StringIO()
    for block in _blocks("python"):
        with contextlib.redirect_stdout(out):
            exec(compile(block, "README.md", "exec"), {})

    assert "of the time" in out.getvalue()


def test_the_first_output_is_what_the_command_prints():
    """Every line shown is printed, but for lines cut short with dots."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["recommend", "--model", "cosmos3", "--gpus", "8"])
    printed = [line.split() for line in out.getvalue().splitlines()]

    for line in _blocks("text")[0].splitlines():
        words = line.removesuffix("...").split()
        assert not words or words in [found[: len(words)] for found in printed], line


def test_the_picture_is_what_the_command_draws():
    """On a white ground, so that it can be read in dark pages too."""
    drawn = (ROOT / "docs" / "ring4.svg").read_text(encoding="utf-8").strip()
    command = next(line for line in COMMANDS if line.startswith("planner simulate"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*shlex.split(command)[1:], "--format", "html"])

    page = out.getvalue()
    chart = re.search(r"<figcaption>layer.*?<svg [^>]*>(.*?)</svg>", page)[1]
    assert chart in drawn
    assert 'fill="white"' in drawn
    assert set(re.findall(r"<i></i>([^<]+)", page)) >= set(
        re.findall(r'class="key.*?>([a-z -]+)</text>', drawn)
    )


def test_rooms_of_the_architecture_exist():
    rooms = re.findall(r"`((?:topology|costmodels|planner|validate|docs)/[\w./*]+)`", README)
    rooms += re.findall(
        r"`((?:topology|costmodels|planner|validate|tests)/[\w./*]+)`",
        (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"),
    )

    assert rooms
    for room in rooms:
        assert list(ROOT.glob(room.rstrip("/"))), room


def test_architecture_is_one_page():
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 100
