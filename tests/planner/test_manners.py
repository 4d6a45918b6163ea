"""Terminals and files: help, names that are mistyped, widths, formats by endings, progress."""

import csv
import io
import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import COMMANDS, assert_refused, run

import planner
from planner.command import cli, files
from planner.command.options import ENDINGS

pytestmark = pytest.mark.usefixtures("asked_once")

PLANS = ("recommend", "--model", "flux", "--gpus", "2")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ((), "usage: planner [-h]"),
        (("help",), "usage: planner [-h]"),
        (("help", "sweep"), "usage: planner sweep"),
    ],
)
def test_help_is_shown_where_nothing_is_asked(words, first):
    code, out, err = run(*words)

    assert (code, err) == (0, "")
    assert out.startswith(first)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("recommend", "--modle", "flux"), "unknown option '--modle': did you mean --model"),
        (("recommend", "--modle=flux"), "unknown option '--modle': did you mean --model"),
        ((*PLANS, "-gpus", "2"), "unknown option '-gpus': did you mean --gpus"),
        (("--vesion",), "unknown option '--vesion': did you mean --version"),
        (("help", "sweeep"), "unknown command 'sweeep': did you mean sweep"),
        (("serve", "--prot", "1"), "unknown option '--prot': did you mean --port"),
    ],
)
def test_what_is_mistyped_is_answered_with_the_nearest(words, said):
    assert_refused(*run(*words), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate", "--model", "flux", "--slow", "-1=2"), "slow: got rank -1, wanted one from 0"),
        (("simulate", "--model", "flux", "--mixed", "-1"), "got '-1', wanted a rank and a kind"),
        (("estimate", "--model", "qwen3-8b", "--rate", "-5/s"), "rate: got '-5/s', wanted more"),
        (("estimate", "--model", "qwen3-8b", "--prefix-hit", "-95%"), "got -0.95, wanted a share"),
        (("capacity", "--model", "flux", "--rate", "1/s", "--slo", "-.5s"), "slo: got '-.5s'"),
        (("collectives", "--gpus", "8", "--bytes", "-1KiB:1GiB"), "bytes: '-1KiB' is not a"),
        (("sweep", "--model", "flux", "--output=--"), "--output: got '--', wanted a value"),
        (("estimate", "--model", "flux", "--gpus=--"), "--gpus: got '--', wanted a value"),
    ],
)
def test_a_value_that_begins_as_a_negative_number_is_no_option(words, said):
    assert_refused(*run(*words), said)


@pytest.mark.parametrize("columns", ["70", "200"])
def test_columns_are_honoured_through_a_pipe(monkeypatch, columns):
    """On a narrow terminal columns are left out, and names stay whole."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = run(*PLANS)[1].splitlines()
    names = {str(plan.plan) for plan in planner.recommend("flux", gpus=2).runnable}

    assert (max(map(len, lines)) > 118) == (columns == "200")
    assert max(map(len, lines)) <= int(columns)
    assert names <= {word for line in lines for word in line.split()}


@pytest.mark.parametrize("columns", ["", "-1", "many", "9" * 40])
def test_columns_that_are_no_number_say_nothing(monkeypatch, columns):
    usual = run(*PLANS)[1]
    monkeypatch.setenv("COLUMNS", columns)

    assert run(*PLANS)[1] == usual


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_format_follows_the_ending_of_its_file(tmp_path, ending):
    path = tmp_path / f"plans{ending}"
    assert run(*PLANS, "--output", str(path)) == (0, "", "")
    asked = run(*PLANS, "--format", ENDINGS[ending])[1]
    written = path.read_text()

    def same(text):
        return re.sub(r"<footer>.*</footer>", "", text)

    assert same(written) == same(asked)


@pytest.mark.parametrize(
    ("words", "name", "said"),
    [
        ((*PLANS, "--format", "json"), "a.html", "got --format json, wanted --format html"),
        (("models", "list"), "a.html", "wanted a name that ends in .json, .md, .csv"),
        (PLANS, "a.PDF", "wanted a name that ends in .json, .md, .csv, .html"),
        (("models", "import", "flux"), "a.csv", "models import: got csv, wanted json"),
        (("topology", "import", "h100-sxm"), "a.md", "topology import: got markdown, wanted json"),
    ],
)
def test_another_format_than_the_ending_says_is_refused(tmp_path, words, name, said):
    assert_refused(*run(*words, "--output", str(tmp_path / name)), said)
    assert list(tmp_path.iterdir()) == []


def leaf(data, name):
    for key in name.split("."):
        data = data[int(key)] if isinstance(data, list) else data[key]
    return data


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("recommend", lambda data: data["plans"]),
        ("estimate", lambda data: [data]),
        ("simulate", lambda data: data["ranks"]),
        ("capacity", lambda data: data["answers"][0]["fleets"]),
        ("collectives", lambda data: data["rows"]),
        ("models list", lambda data: data["details"]),
        ("models show", lambda data: [data]),
        ("topology show", lambda data: data["links"]),
    ],
)
def test_csv_has_the_rows_of_the_json(name, rows):
    """Every cell is what stands at its name in the data."""
    data = rows(json.loads(run(*COMMANDS[name], "--format", "json")[1]))
    table = list(csv.DictReader(io.StringIO(run(*COMMANDS[name], "--format", "csv")[1])))
    own = {"runs", "demand", "rate_per_s"}

    assert len(table) == len(data) > 0
    for row, one in zip(table, data, strict=True):
        assert None not in row
        for column, cell in row.items():
            if cell and column not in own:
                assert cell == str(leaf(one, column))


def test_a_request_as_resolved_gives_the_same_plans():
    """Defaults are filled in: asked again in full, it is the same question."""
    for model in ("flux", "llama-3.1-8b"):
        found = planner.recommend(model, gpus=2).to_dict()
        again = planner.recommend(**found["request"]).to_dict()

        assert again["request"] == found["request"]
        assert again["plans"] == found["plans"]
        assert found["request"]["nodes"] == 1
    assert found["request"]["kv_precision"] == "bf16"


@pytest.mark.parametrize("shell", cli.SHELLS)
def test_shells_complete_commands_and_options(shell):
    pytest.importorskip("shtab")
    code, out, err = run("--print-completion", shell)

    assert (code, err) == (0, "")
    for word in ("recommend", "calibrate", "slo-ttft", "objective"):
        assert word in out
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=out, text=True, check=True, timeout=300)


def test_without_its_package_completion_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert_refused(
        *run("--print-completion", "bash"), "pip install 'multi-gpu-planner[completion]'"
    )


class Screen(io.StringIO):
    """Standard error as a terminal, or as a log."""

    def __init__(self, *, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def fileno(self):
        return 2


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_its_time_says_so(monkeypatch, terminal):
    """A terminal in one line that goes again, a log in lines."""
    monkeypatch.setattr(files, "QUIET_S", 0.01)
    monkeypatch.setattr(files, "LOGGED_S", 0.01)
    screen = Screen(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    options = cli.parsed(["models", "list"])
    with files.at_work(options):
        options.note("h100-sxm, 1 of 2")
        limit = time.monotonic() + 300
        while "models: " not in screen.getvalue() and time.monotonic() < limit:
            time.sleep(0.01)
    said = screen.getvalue()

    assert "models: 0 s so far, h100-sxm, 1 of 2" in said
    assert said.endswith("\r\x1b[K") == terminal
    assert said.endswith("1 of 2\n") != terminal


def test_what_is_answered_soon_says_nothing(monkeypatch):
    screen = Screen(terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(files, "QUIET_S", 3600.0)

    assert cli.main(["models", "show", "flux"]) == 0
    assert screen.getvalue() == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", ["--version", "--help", "topology list", "models list"])
def test_an_answer_that_cannot_be_printed_is_said(words, monkeypatch, capfd):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(words.split()) == 2
    assert capfd.readouterr().err == "planner: standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("closed", [True, False])
def test_a_line_that_nobody_can_be_told_is_not_taken_for_an_answer(closed, monkeypatch, capfd):
    """Standard error is closed, or on a disk that is full."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", None if closed else full)
        assert cli.main(["recommend", "--modle", "x"]) == 2
        with suppress(OSError):
            full.close()
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("lacks", "code", "said"),
    [
        (ModuleNotFoundError("No module", name="numpy.linalg"), 2, "numpy.linalg is not installed"),
        (MemoryError(), 1, "this machine has too little memory"),
    ],
)
def test_what_a_machine_lacks_is_said(lacks, code, said, monkeypatch):
    def never(_):
        raise lacks

    monkeypatch.setattr(cli, "answer", never)
    assert run(*PLANS)[0] == code
    assert said in run(*PLANS)[2]


def test_a_text_that_every_rank_holds_whole_is_said():
    plan = ("--hardware", "h100-sxm", "--plan", "ulysses2")
    asked = ("estimate", *PLANS[1:], *plan, "--text-tokens")

    assert "511 text tokens do not divide over 2 ranks" in run(*asked, "511")[1]
    assert "do not divide" not in run(*asked, "510")[1]


def test_fewer_gpus_on_fewer_hosts_are_said():
    asked = ("--model", "flux", "--gpus", "4", "--nodes", "2", "--at-most-gpus")
    code, out, _ = run("recommend", *asked, "--hardware", "h100-sxm")

    assert code == 0
    assert re.search(r"allgather_kv2 +2 on 1 host ", out)
    assert re.search(r"allgather_kv4 +4 on 2 hosts ", out)
