"""Lists of what has a name; machines that are piped in; a model as a person reads it."""

import io
import json
import subprocess
import sys

import pytest
import testpastes as pastes
from commands import ROOT, assert_refused, run

from planner.models import names, read_model
from planner.rendering import models
from topology.base import MOST_CHARACTERS
from topology.base.facts import shown
from topology.catalogue import all_hardware, find_hardware

pytestmark = pytest.mark.usefixtures("asked_once")


@pytest.mark.parametrize("style", ["table", "markdown", "json"])
def test_all_hardware_is_listed(style):
    code, out, err = run("topology", "list", "--format", style)

    assert (code, err) == (0, "")
    assert all(name in out for name in all_hardware())
    if style == "json":
        (entry,) = [one for one in json.loads(out)["hardware"] if one["name"] == "gb200"]
        found = find_hardware("gb200")
        assert (entry["gpus"], entry["domain"], entry["link"]) == (4, 72, "nvswitch")
        assert entry["memory_bytes"] == found.device.memory.value
        assert "nvfp4" in entry["precisions"]
    else:
        assert "NVSwitch of 72, 900" in out


def test_a_list_is_no_page():
    assert_refused(
        *run("topology", "list", "--format", "html"), "wanted table, json, markdown or csv"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nosuch", "unknown hardware or file 'nosuch': expected one of h100-sxm"),
        ("h100", "unknown hardware or file 'h100': did you mean h100-sxm"),
        ("nothing.txt", "no such file: 'nothing.txt'"),
    ],
)
def test_a_name_that_is_none_is_answered_with_the_nearest(name, said):
    assert_refused(*run("topology", "show", name), said)


def test_a_gpu_of_another_vendor_is_no_misspelt_one():
    asked = ("recommend", "--model", "flux", "--gpus", "1", "--hardware", "mi300x")
    said = "got 'mi300x', wanted a GPU of NVIDIA: none of AMD is in the catalogue"
    assert_refused(*run(*asked), said)


@pytest.fixture
def piped(monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def test_a_machine_is_piped_in(piped):
    piped(pastes.HGX.encode())
    code, out, err = run("topology", "show", "-", "--hardware", "h100-sxm", "--format", "json")

    assert (code, err) == (0, "")
    assert len(json.loads(out)["gpus"]) == 8


@pytest.mark.parametrize("more", [(), ("--gpus", "2")])
def test_a_request_on_a_machine_that_is_piped_in(piped, more):
    piped(pastes.square("NV12", 2).encode())
    request = ("recommend", "--model", "flux.1-dev", "--hardware", "a100-sxm-80gb", *more)
    code, out, err = run(*request, "--topology", "-", "--format", "json")

    assert (code, err) == (0, "")
    assert json.loads(out)["request"]["gpus"] == 2


def test_collectives_of_a_machine_that_is_piped_in(piped):
    piped(pastes.HGX.encode())
    options = ("--hardware", "h100-sxm", "--bytes", "1MiB")

    assert "all_reduce on 8 x h100-sxm" in run("collectives", "--topology", "-", *options)[1]


LOG = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20
#   Rank  0 Group  0 Pid   1 on a device  0 [0x00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    40.00   26.21   45.87      0
     2097152        524288     float     sum      -1    55.00   38.13   66.73      0
"""


def test_a_log_is_piped_in_and_answered_as_a_file(piped, tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(LOG)
    options = ("--op", "all_reduce", "--gpus", "8", "--format", "json")
    piped(LOG.encode())
    code, out, err = run("collectives", "--compare", "-", *options)

    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(run("collectives", "--compare", str(path), *options)[1])
    sizes = [row["message_bytes"] for row in json.loads(out)["tables"][0]["rows"]]
    assert all(isinstance(size, int) for size in sizes)


@pytest.mark.parametrize(
    ("text", "sizes"), [("2MiB", [2**21]), ("1KiB,1MiB", [2**20]), ("1MiB:1GiB", [2**20, 2**21])]
)
def test_rows_of_a_log_by_their_sizes(piped, text, sizes):
    piped(LOG.encode())
    options = ("--op", "all_reduce", "--gpus", "8", "--bytes", text, "--format", "json")
    (table,) = json.loads(run("collectives", "--compare", "-", *options)[1])["tables"]

    assert [row["message_bytes"] for row in table["rows"]] == sizes


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "nccl-tests"), (b"x" * (2**24 + 1), "standard input: more than")]
)
def test_a_log_that_is_piped_in_is_one(piped, data, said):
    piped(data)

    assert_refused(*run("collectives", "--compare", "-"), said)


def test_a_closed_standard_input_is_no_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)

    assert_refused(*run("collectives", "--compare", "-"), "standard input: closed")
    assert_refused(*run("topology", "show", "-"), "standard input: closed")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x" * (MOST_CHARACTERS + 1), "standard input: more than"),
        (b"", "got an empty text"),
        (b"h100-sxm", "no topology in a text that begins 'h100-sxm'"),
        (b"GPU0 \xfa\xff", "standard input: line 1 is not text"),
    ],
)
def test_what_is_piped_in_is_bounded_and_text(piped, data, said):
    piped(data)

    assert_refused(*run("topology", "show", "-"), said)


@pytest.mark.parametrize("style", ["table", "markdown", "json"])
def test_models_that_cannot_be_planned_are_marked_with_the_reason(style, monkeypatch):
    def unsupported(model):
        return ["it is not modelled yet"] if model.family == "mixtral" else []

    monkeypatch.setattr(models, "unsupported", unsupported)
    code, out, _ = run("models", "list", "--format", style)
    marked = {name: "; ".join(models.unsupported(read_model(name))) for name in names()}
    marked = {name: reason for name, reason in marked.items() if reason}

    assert code == 0
    assert marked
    if style == "json":
        found = json.loads(out)
        assert (found["models"], found["not_planned"]) == (list(names()), marked)
        for one in found["details"]:
            shown = read_model(one["name"]).to_dict()
            assert one.pop("not_planned") == marked.get(one["name"], "")
            assert one == {key: shown[key] for key in one}
            assert one.keys() >= {"family", "kind", "parameters", "layers", "hidden", "heads"}
        assert [one["name"] for one in found["details"]] == found["models"]
        return
    lines = {name: line for line in out.splitlines() for name in names() if f"{name} " in line}
    assert set(lines) == set(names())
    for name in names():
        reason = marked.get(name, "")
        assert ("not planned" in lines[name]) == bool(reason)
        assert reason in lines[name]


def test_a_model_is_shown_without_what_it_lacks():
    for name in names():
        lines = shown(read_model(name).to_dict())

        assert all(lines.values()), name
        assert not {"None", "[]", "{}", "False"} & {
            word for line in lines.values() for word in line.split()
        }, name
        assert lines["parameters"].endswith(("billion", "million")), name


def test_a_model_without_an_autoencoder_has_no_line_for_one():
    _, out, _ = run("models", "show", "llama-3.1-8b")

    assert "latent" not in out
    assert "8.03 billion" in out


@pytest.mark.parametrize("count", [0, -1])
def test_no_gpus_are_no_eight_gpus(count):
    assert_refused(*run("collectives", "--gpus", str(count)), f"gpus: got {count}")


def test_one_gpu_is_one_gpu():
    said = "1 GPU of h100-sxm over 2 nodes: got 0.5 a node, wanted a whole number up to 8"

    assert_refused(*run("recommend", "--model", "flux.1-dev", "--gpus", "1", "--nodes", "2"), said)


def test_a_pipe_of_two_processes():
    done = subprocess.run(
        [sys.executable, "-m", "planner", "topology", "import", "-", "--hardware", "h100-sxm"],
        input=pastes.HGX, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["gpus"]) == 8


def test_words_of_profiles_stand_below_their_headers():
    _, text, _ = run("profile", "list")
    header, *rows = text.splitlines()

    assert rows
    for name in ("hardware", "used", "parts"):
        place = header.index(name)
        assert all(row[place - 2 : place] == "  " and row[place] != " " for row in rows)


def test_a_machine_is_shown_and_kept_with_the_links_that_it_is_left(piped):
    words = ("topology", "import", "v100-sxm", "--link", "GPU0-GPU1=0")
    code, out, _ = run(*words)
    piped(out.encode())
    read = run("topology", "import", "-")

    assert code == 0
    assert json.loads(read[1])["links"] == json.loads(out)["links"]
    assert out != run(*words[:3])[1]
    assert "GPU0-GPU1 is down" in out
    assert_refused(*run("topology", "list", "--link", "nvlink=2"), "got --link nvlink, wanted none")
