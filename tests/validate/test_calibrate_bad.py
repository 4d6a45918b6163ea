"""What a calibration cannot go on from, or write to, is one line before anything is started."""

import json

import pytest
from commands import assert_refused, run

from topology.base import InputError
from validate.bench import system as harness
from validate.calibrate import CalibrationTask, finish
from validate.fit.rows import Row, line, read_rows

ROW = Row(key="k", family="matmul", sizes={"m": 1}, mode="short", values={"seconds": 1e-5})
GOOD = line(ROW) + "\n"
GPU = {"name": "NVIDIA H100 80GB HBM3"}
MANIFEST = json.dumps({"machine": {"gpus": [GPU], "ranks": 1}, "software": {}})
HUGE = "1" * 400
LONG = "1" * 5000

DAMAGED = [
    (b"\xff\xfe\x00\n", MANIFEST, "rows.jsonl: no text"),
    (b"not json\n", MANIFEST, "rows.jsonl, line 1: not JSON: Expecting value"),
    (b"[" * 100_000 + b"\n", MANIFEST, "line 1: nests too deep"),
    (GOOD.replace("1e-05", HUGE).encode(), MANIFEST, "line 1: values: seconds: got"),
    (GOOD.replace("1e-05", LONG).encode(), MANIFEST, "line 1: a number is too long"),
    (GOOD.replace('"m":1', '"m":[1]').encode(), MANIFEST, "line 1: sizes: m: got a list of 1"),
    (GOOD.encode(), "", "manifest: not JSON: Expecting value"),
    (GOOD.encode(), "[]", "manifest: got JSON of something else, wanted an object"),
    (GOOD.encode(), "[" * 100_000, "manifest: nests too deep"),
    (GOOD.encode(), LONG, "manifest: a number is too long"),
    (GOOD.encode(), '{"machine": null}', "manifest: machine: got nothing, wanted GPUs with"),
    (GOOD.encode(), '{"machine": {"gpus": 3}}', "manifest: machine: got an object, wanted GPUs"),
    (GOOD.encode(), '{"machine": {"gpus": [{}]}}', "manifest: machine: got an object, wanted GPUs"),
    (GOOD.encode(), '{"machine": {}, "software": 3}', "manifest: software: got 3, wanted"),
    (
        GOOD.encode(),
        MANIFEST.replace('"ranks": 1', f'"ranks": {HUGE}'),
        "manifest: machine: ranks:",
    ),
]


@pytest.mark.parametrize(("rows", "manifest", "says"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_measurements_are_one_line_and_nothing_is_started(
    tmp_path, monkeypatch, rows, manifest, says
):
    folder = tmp_path / "mine.measurements"
    folder.mkdir()
    (folder / harness.ROWS).write_bytes(rows)
    (folder / harness.MANIFEST).write_text(manifest)
    monkeypatch.setattr(harness, "run", None)
    output = str(tmp_path / "mine.toml")

    refused = run("calibrate", "--output", output, "--resume", "--device", "cpu")

    assert_refused(*refused, says)
    assert refused[2].strip().isprintable()
    assert (folder / harness.ROWS).read_bytes() == rows


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_without_torch_nothing_is_started(tmp_path, monkeypatch, device):
    monkeypatch.setattr("validate.calibrate.importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(harness, "run", None)

    refused = run("calibrate", "--output", str(tmp_path / "mine.toml"), "--device", device)

    assert_refused(*refused, "calibrate: got no PyTorch, wanted it: pip install 'torch>=2.6,<3'")
    assert not list(tmp_path.iterdir())


NOTHING = ["", ".", "x" * 300, "x" * 5000, "a\0b", "/"]
LONG = "x" * 245 + ".toml"  # the folder beside a profile has a longer name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((("calibrate",), name) for name in (*NOTHING, LONG)),
        *((("export", "--model", "flux"), name) for name in NOTHING),
    ],
)
def test_a_name_that_nothing_can_have_is_one_line(tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*command, "--output", name)

    assert_refused(code, out, err, "--output")
    assert err.strip().isprintable()
    assert len(err) < 400
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("calibrate",), ("export", "--model", "flux"), ("doctor",)])
def test_a_circle_of_links_is_no_place(tmp_path, command):
    (tmp_path / "loop").symlink_to("loop")

    assert_refused(*run(*command, "--output", str(tmp_path / "loop")), "wanted the path of a")


@pytest.mark.parametrize("minutes", ["inf", "nan", "-1", "1e300"])
def test_minutes_that_nobody_waits_are_refused(tmp_path, minutes):
    output = str(tmp_path / "mine.toml")

    assert_refused(*run("calibrate", "--output", output, "--minutes", minutes), "minutes: got")
    assert list(tmp_path.iterdir()) == []


ODD = [
    GOOD * 40,
    GOOD.replace('"m":1', '"m":"one"') * 40,
    GOOD.replace('"seconds"', '"minutes"') * 40,
    GOOD.replace('"matmul"', '"collective"') * 40,
    GOOD.replace('"matmul"', '"memory"') * 40,
]


@pytest.mark.parametrize("rows", ODD, ids=range(len(ODD)))
def test_rows_that_nothing_can_be_fitted_to_are_one_line(tmp_path, rows):
    with pytest.raises(InputError) as caught:
        finish(CalibrationTask(output=tmp_path / "mine.toml"), rows, MANIFEST)

    assert not list(tmp_path.iterdir())
    assert str(caught.value).isprintable()


def test_a_worker_that_refuses_is_heard_in_one_line(tmp_path, monkeypatch, capfd):
    code = "import sys; print('rank 0: rows of another machine', file=sys.stderr); sys.exit(2)"
    monkeypatch.setattr(harness, "WORKER", ("-c", code))

    with pytest.raises(InputError, match=r"^rows of another machine$"):
        harness.run(harness.BenchSession(ranks=1, folder=tmp_path, minutes=1, device="cpu"))
    assert capfd.readouterr().err == ""


def test_a_row_keeps_its_sizes():
    assert read_rows(GOOD) == [ROW]
