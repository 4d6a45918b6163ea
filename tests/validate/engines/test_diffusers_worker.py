"""Cases of diffusers are read strictly, and one that hangs or dies costs nothing but itself."""

import json
import sys

import pytest

from topology.base import InputError
from validate.engines import diffusers_worker as worker
from validate.engines.diffusers_worker import Forward, read_cases, supervise


def test_a_case_is_described_as_the_rows_of_plans_are() -> None:
    case = Forward(model="wan2.1-1.3b", height=480, width=832, frames=81, plan="ring2")
    assert case.ranks == 2
    assert case.to_dict() == {
        "model": "wan2.1-1.3b",
        "height": 480,
        "width": 832,
        "frames": 81,
        "plan": "ring2",
        "mode": "eager",
        "batch": 1,
        "precision": "bf16",
        "stage": "denoise",
        "engine": "diffusers",
    }


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ('[{"model": "flux", "height": 64, "width": 64, "plan": "pp2"}]', "plan: got 'pp2'"),
        ('[{"model": "flux", "height": 64, "width": 64, "mode": "fast"}]', "mode: got 'fast'"),
        ('[{"model": "flux"}]', "missing"),
        ("[", "wanted a list of cases"),
    ],
)
def test_bad_cases_are_refused_in_a_line(tmp_path, said: str, complaint: str) -> None:
    path = tmp_path / "cases.json"
    path.write_text(said, encoding="utf-8")
    with pytest.raises(InputError, match=complaint) as caught:
        read_cases(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "missing", "complaint"),
    [
        (None, "", "No such file or directory, wanted a list of cases"),
        ("[" * 10**5, "", "wanted a list of cases"),
        ("[", "", "wanted a list of cases"),
        ("[]", "torch", "torch: got none, wanted it: pip install 'torch>=2.6,<3'"),
        ("[]", "diffusers", "diffusers: got none, wanted it: pip install 'diffusers>=0.42,<1'"),
    ],
)
def test_a_run_that_cannot_start_is_a_line(
    tmp_path, monkeypatch, capsys, text: str | None, missing: str, complaint: str
) -> None:
    path, rows = tmp_path / "cases.json", tmp_path / "rows.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(worker, "find_spec", lambda name: None if name == missing else True)
    monkeypatch.setattr(sys, "argv", ["worker", str(path), str(rows)])

    assert worker.main() == worker.BAD_INPUT
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert complaint in err
    assert not rows.exists()


PLAYED = """
import json, os, sys, time
from validate.launch import begin, find_place

cases, rows = sys.argv[1:3]
progress = begin(find_place(os.environ))
for case in json.loads(open(cases).read()):
    progress.phase(case["model"], 1.5 if case["model"] == "two" else 600)
    if case["model"] == "two":
        time.sleep(600)
    if case["model"] == "three":
        sys.exit(3)
    with open(rows, "a") as file:
        file.write(json.dumps({"case": case}) + "\\n")
"""


def test_after_a_case_that_hangs_and_one_that_dies_the_others_run(tmp_path, monkeypatch) -> None:
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setattr(worker, "WORKER", ("-c", PLAYED))
    cases = [Forward(model=name, height=64, width=64) for name in ("one", "two", "three", "four")]

    supervise(cases, rows, ranks=1, limit=600)

    notes = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    assert [note["case"]["model"] for note in notes] == ["one", "two", "three", "four"]
    assert notes[1]["note"].startswith("rank 0: late in two, after 2 s")
    assert notes[2]["note"].startswith("rank 0: ended with code 3 in three")
    assert not rows.with_suffix(".left.json").exists()


@pytest.mark.filterwarnings("ignore")
def test_what_an_engine_refuses_is_a_row_with_its_reason() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    case = Forward(model="flux.1-dev", height=8, width=8, layers=1)
    row = worker.measure(case, torch.device("cpu"), "a host")
    assert row["status"] == "failed"
    assert "wanted 16 at least" in str(row["note"])
