"""What ``planner validate`` is asked for is refused in one line, or is of this machine."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands import FLUX as CONFIG
from commands import assert_refused, run

from costmodels.tables import read_profile, shipped_profile
from topology.base import InputError
from topology.base.table import document, terminal
from validate.bench import system as bench
from validate.fit.text import to_toml
from validate.launch import find_place, is_rank
from validate.plans import command, host, report, restarts, system
from validate.plans.cases import Case, digest_of
from validate.plans.checks import hardware_of
from validate.plans.compare import Comparison, Prediction, summarise
from validate.plans.host import Facts
from validate.plans.measured import Measured, kept, line, read_measured
from validate.plans.restarts import RunOptions

OWN = "h100-sxm-x2-2026-11-28"
H100 = "NVIDIA H100 80GB HBM3"
FLUX = Case(model="flux", height=1024, width=1024)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--plan", "tp4", "--gpus", "2"), "GPUs: got 2, wanted the 4 of plan tp4"),
        (("--plan", "tp2", "--gpus", "3"), "GPUs: got 3, wanted a multiple of the 2 of plan tp2"),
        (("--plan", "tp2", "--gpus", "-2"), "gpus: got -2, wanted a whole number from 1"),
        (("--plan", "tp2", "--gpus", "0"), "gpus: got 0, wanted a whole number from 1"),
        (("--plan", "tp2", "--seconds", "nan"), "seconds: got nan, wanted a number above 0"),
        (("--plan", "tp2", "--seconds", "-1"), "seconds: got -1, wanted a number above 0"),
        (("--plan", "tp2", "--precision", "int8"), "precision: got int8, wanted bf16, fp16, fp8"),
        (("--plan", "tp2", "--profile", "none.toml"), "profile none.toml: No such file"),
        (("--plan", "tp2", "--hardware", "l4", "--profile", OWN), "a profile of h100-sxm, wanted"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(monkeypatch, device, words, said):
    monkeypatch.setattr(system, "products", list)
    monkeypatch.setattr(restarts, "launch", None)
    monkeypatch.setattr(host, "facts", None)
    asked = ("validate", "--model", "flux", "--backend", "torch", "--device", device, *words)
    code, out, err = run(*asked)

    assert (code, out) == (2, "")
    (refusal,) = [one for one in err.splitlines() if one.startswith("planner: ")]
    assert said in refusal


def test_a_proof_runs_each_plan_on_its_own_ranks():
    asked = ("validate", "--model", "flux", "--plan", "ulysses2,tp3")

    code, out, _ = run(*asked)
    assert (code, "ulysses2: 2 ranks" in out, "tp3: 3 ranks" in out) == (0, True, True)
    assert_refused(*run(*asked, "--gpus", "3"), "wanted a multiple of the 2 of plan ulysses2")


def test_more_ranks_than_a_cpu_is_for_are_refused(monkeypatch):
    monkeypatch.setattr(restarts, "launch", None)
    monkeypatch.setattr(host, "facts", None)
    asked = ("--model", "flux", "--backend", "torch", "--device", "cpu", "--plan", "dp32")
    code, _, err = run("validate", *asked, "--batch", "32")

    assert code == 2
    assert "ranks on a CPU: got 32, wanted at most 16" in err


@pytest.mark.parametrize("backend", ["reference", "torch", "tensorrt"])
def test_a_wrong_profile_is_an_error_on_every_backend(backend):
    code, _, err = run(
        "validate", "--model", "flux", "--plan", "tp2", "--backend", backend, "--profile", "no.toml"
    )

    assert code == 2
    assert err == "planner: profile no.toml: No such file or directory\n"


def test_hardware_is_that_of_the_machine():
    assert hardware_of("NVIDIA H200") == "h200-sxm"
    assert hardware_of("NVIDIA H200", "h200-sxm") == "h200-sxm"
    assert hardware_of("Something new", "l4") == "l4"
    with pytest.raises(InputError, match="got h100-sxm, wanted h200-sxm: this machine has NVIDIA"):
        hardware_of("NVIDIA H200", "h100-sxm")
    with pytest.raises(InputError, match="'Something new' is not in the catalogue"):
        hardware_of("Something new")


@pytest.fixture
def setup_for(monkeypatch):
    """How the command finds out what it predicts with on a machine with such GPUs."""
    seen = {}
    monkeypatch.setattr(
        command,
        "_measured_rows",
        lambda cases, setup, arguments, work: (seen.update(setup=setup), [])[1],
    )

    def look(products, *words):
        monkeypatch.setattr(system, "products", lambda: products)
        _, _, err = run(
            "validate", "--model", "flux", "--plan", "tp2", "--backend", "torch", *words
        )
        assert "setup" in seen, err
        return seen.pop("setup")

    return look


def test_the_machine_gives_hardware_and_its_own_profile(setup_for, monkeypatch, tmp_path):
    monkeypatch.setenv("PLANNER_PROFILES", str(tmp_path))
    shipped, mine = read_profile(OWN), tmp_path / "mine.toml"
    mine.write_text(to_toml(replace(shipped, date="2031-01-01")), encoding="utf-8")

    assert setup_for(["NVIDIA L4"]).hardware == "l4"
    found = setup_for([H100, H100])
    assert (found.hardware, found.profile) == ("h100-sxm", str(mine))
    assert setup_for([H100, H100], "--profile", "none").profile == "none"
    assert setup_for([H100] * 8).profile == ""
    assert setup_for([]).hardware == "h100-sxm"


def test_what_torch_sees_is_not_predicted_as_something_else(monkeypatch, tmp_path):
    facts = Facts(seen={"torch": "2.13", "has_nccl": True, "gpus": ["NVIDIA L4"]})
    monkeypatch.setattr(host, "facts", lambda: facts)
    with pytest.raises(InputError, match="got h100-sxm, wanted l4: this machine has NVIDIA L4"):
        restarts.run([FLUX], RunOptions(gpus=1), tmp_path, lambda line: None)


def row(plan="single", status="done", **more):
    case = replace(FLUX, plan=plan)
    return Measured(
        case=case, status=status, **{"step_s": 1.0, "machine": "a", "digest": "d", **more}
    )


def past(rows, machine="a", digest="d", *, retry=False):
    cases = [replace(FLUX, plan=plan) for plan in ("single", "tp2", "ring2")]
    return kept(cases, rows, machine, {case.key: digest for case in cases}, retry=retry)


def test_rows_of_another_machine_or_model_are_left_alone():
    rows = [row(), row("tp2")]

    assert [case.plan for case in past(rows).todo] == ["ring2"]
    for changed in (past(rows, machine="b"), past(rows, digest="e")):
        assert len(changed.todo) == 3
        assert changed.remarks == ["2 rows of another machine or model left alone"]


def test_rows_of_two_machines_stand_side_by_side():
    rows = [row(), row(machine="b", step_s=2.0), row(step_s=3.0)]
    text = "".join(f"{line(one)}\n" for one in rows)

    assert read_measured(text) == rows[1:]
    assert past(read_measured(text)).rows == (rows[2],)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"step_s": None}, "step_s: got nothing, wanted a value"),
        ({"step_s": 0}, "step_s: got 0.0, wanted seconds, of a case that is done"),
        ({"step_s": float("nan")}, "step_s: got nan, wanted a number"),
        ({"memory_bytes": None}, "memory_bytes: got nothing, wanted a value"),
        ({"low_s": 10**400}, "low_s: got a number of more than 38 digits"),
        ({"classes_s": {"gemm": "x"}}, "classes_s: gemm: got 'x', wanted a number"),
        ({"attempts": True}, "attempts: got True, wanted a whole number"),
        ({"status": "fine"}, "unknown status in results, line 1 'fine'"),
        ({"speed": 1}, "wanted one result"),
        ({"case": []}, "case: got a list of 0, wanted an object"),
        ({"case": {"model": "flux", "plan": 3}}, "plan: got 3, wanted a text"),
        ({"case": {"model": "flux", "plan": "xx2"}}, "unknown axis 'xx'"),
        ({"case": {"model": "flux", "height": -1}}, "height: got -1, wanted a whole number"),
        ({"case": {"model": "flux", "precision": "fp7"}}, "unknown precision in results, line 1"),
    ],
)
def test_a_result_that_was_altered_is_refused(changed, said):
    with pytest.raises(InputError) as refused:
        read_measured(json.dumps({**row().to_dict(), **changed}) + "\n")
    assert said in str(refused.value)


def test_failures_are_run_again_and_counted_but_not_what_is_out_of_memory():
    rows = [row(status="failed", attempts=2), row("tp2", "out of memory"), row("ring2", "wrong")]
    found, again = past(rows), past(rows, retry=True)

    assert [case.plan for case in found.todo] == ["single"]
    assert found.attempts == {FLUX.key: 3}
    assert any("1 case out of memory earlier" in one for one in found.remarks)
    assert [case.plan for case in again.todo] == ["single", "tp2", "ring2"]


def test_a_machine_is_named_by_all_that_changes_times():
    seen = {"torch": "2.13", "nccl": "2.27.7", "gpus": [H100], "cudnn": "91002", "cuda": "13.0"}
    facts = Facts(seen=seen, driver="580.1", processor="EPYC")

    assert RunOptions(gpus=2).machine(facts) == (
        f"2 x {H100}, torch 2.13, cuda 13.0, cudnn 91002, nccl 2.27.7, driver 580.1, inductor"
    )
    others = [
        RunOptions(gpus=2).machine(replace(facts, seen={**seen, "torch": "2.14"})),
        RunOptions(gpus=4).machine(facts),
        RunOptions(gpus=2, device="cpu").machine(facts),
    ]
    assert len({RunOptions(gpus=2).machine(facts), *others}) == 4


def test_a_changed_config_is_another_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    case = replace(FLUX, model=str(path))
    before = digest_of(case, "h100-sxm")
    path.write_text(json.dumps({**CONFIG, "num_layers": 12}))

    assert before
    assert digest_of(case, "h100-sxm") != before
    assert digest_of(replace(case, model="no-such-model"), "h100-sxm") == ""


def prediction(basis="calibrated", **more):
    values = {
        "step_s": 1.0, "classes_s": {"gemm": 1.0}, "exposed_s": 0.0, "hidden_s": 0.0,
        "launch_s": 0.0, "memory_bytes": 1.0, "basis": basis,
    }  # fmt: skip
    return Prediction(**{**values, **more})


@pytest.mark.parametrize("show", [terminal, document])
def test_the_report_says_how_classes_were_taken_and_what_has_no_verdict(show):
    measured = row(
        "tp2",
        memory_bytes=1.0,
        classes_s={"gemm": 2.0, "communication": 0.5},
        classes_by="events in the running stream",
        waiting_s=0.25,
    )
    found = [Comparison(measured=measured, predicted=prediction("extrapolated"))]
    text = show(report.parts(found, 0.1))

    assert "gemm *" in text
    assert "instrumented, without a verdict" in text
    assert "events in the running stream" in text
    assert "waiting is left out: 250 ms at most here" in text
    assert "1 s (extrapolated)" in text
    assert "pass" in text  # classes are far off, step and memory are right


def test_rows_of_earlier_versions_hold_waiting():
    found = [Comparison(measured=row(classes_s={"communication": 1.0}), predicted=prediction())]

    assert report.instrumented_notes(found)[1] == (
        "* comm holds the time that a rank waits for another one"
    )
    assert report.instrumented_notes([]) == []


def test_the_gate_is_on_step_and_memory():
    one = Comparison(measured=row(memory_bytes=2.0), predicted=prediction())

    assert not one.passes(0.1)
    assert one.misses(0.1) == ["memory"]
    assert replace(one, predicted=prediction(memory_bytes=2.1)).passes(0.1)


def test_a_profile_is_installed_once_and_listed(monkeypatch, tmp_path):
    folder, mine = tmp_path / "settings" / "profiles", tmp_path / "mine.toml"
    monkeypatch.setenv("PLANNER_PROFILES", str(folder))
    profile = read_profile(OWN)
    mine.write_text(to_toml(replace(profile, date="2031-01-01")), encoding="utf-8")

    code, out, err = run("profile", "install", str(mine))
    assert (code, err) == (0, "")
    installed = folder / "h100-sxm-x2-2031-01-01.toml"
    assert out.startswith(f"{installed}: found by --detect and validate")
    assert installed.read_text() == mine.read_text()

    assert run("profile", "install", str(mine))[::2] == (
        2, f"planner: {mine}: is there already, as {installed}\n"
    )  # fmt: skip
    other = tmp_path / "other.toml"
    other.write_text(to_toml(replace(profile, date="2031-01-01", source="x")), encoding="utf-8")
    assert f"{folder}/h100-sxm-x2-2031-01-01-2.toml" in run("profile", "install", str(other))[1]

    (folder / "broken.toml").write_text("no", encoding="utf-8")
    code, out, err = run("profile", "list")
    assert code == 0
    assert str(installed) in out
    assert "broken.toml" in err
    assert shipped_profile("h100-sxm") is not None


def test_a_folder_of_results_is_one_runs_at_a_time(tmp_path):
    words = ("--model", "flux", "--plan", "tp2", "--backend", "torch", "--device", "cpu")
    with system.alone_in(tmp_path / "out"):
        code, _, err = run("validate", *words, "--results", str(tmp_path / "out"))

    assert code == 2
    assert err.endswith("out: another run writes there, wanted another --results\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("port", ["0", "65536", "-1", "9" * 30])
def test_a_port_that_cannot_be_is_refused(port):
    with pytest.raises(InputError, match=r"MASTER_PORT: got .*, wanted a port from 1 to 65535"):
        find_place({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": port})


def test_ranks_of_others_are_known_and_slurm_is_not_taken_for_one():
    assert is_rank({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert not is_rank({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})


def test_ranks_that_were_started_are_all_used(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(system, "products", list)
    asked = ("--model", "flux", "--plan", "tp2", "--backend", "torch", "--gpus", "2")
    code, _, err = run("validate", *asked)

    assert (code, err) == (2, "planner: gpus: got 2, wanted the 4 ranks that were started\n")


def test_a_calibration_says_how_it_is_used_and_may_be_installed(monkeypatch, tmp_path):
    from validate import calibrate
    from validate.fit.report import Calibrated

    folder, mine = tmp_path / "profiles", tmp_path / "mine.toml"
    monkeypatch.setenv("PLANNER_PROFILES", str(folder))
    profile = replace(read_profile(OWN), date="2031-01-01")
    mine.write_text(to_toml(profile), encoding="utf-8")
    made = Calibrated(profile=profile, output=mine, failures=())
    monkeypatch.setattr(calibrate, "calibrate", lambda task, say: made)
    words = ("calibrate", "--output", str(mine))

    code, _, err = run(*words)
    assert code == 0
    assert f"use it with --profile {mine}" in err
    assert f"planner profile install {mine}" in err
    assert not folder.exists()
    assert "found by --detect" in run(*words, "--install")[2]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("words", [("--minutes", "nan"), ("--minutes", "-1"), ("--gpus", "-2")])
def test_a_calibration_of_no_time_or_gpus_is_refused(words, tmp_path):
    code, out, err = run("calibrate", "--output", str(tmp_path / "x.toml"), *words)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{words[0][2:]}: got {words[1]}" in err


def test_a_proof_has_a_largest_number_of_ranks():
    refused = run("validate", "--model", "flux", "--plan", "dp4096")

    assert_refused(*refused, "plan dp4096: got 4096 ranks, wanted at most 128")


def test_results_that_cannot_be_a_folder_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is no folder"):
        system.check_folder(tmp_path / "file")
    with pytest.raises(InputError, match="is no folder"):
        system.check_folder(tmp_path / "file" / "below")
    with pytest.raises(InputError, match="is no folder"):
        system.check_folder(Path("/dev/null"))

    system.check_folder(tmp_path / "new" / "below")
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_files_that_cannot_be_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # long names are cut
    Path("rows").write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match=r"rows: no text \(byte 0\)"):
        system.read(Path("rows"))
    with pytest.raises(InputError, match="Is a directory"):
        system.read(Path())
    with pytest.raises(InputError, match=r"job.json: No such file"):
        system.write(Path("/proc/x/job.json"), "{}")
    with pytest.raises(InputError, match=r"results.jsonl: No such file"):
        system.append_line(Path("/proc/x/results.jsonl"), "{}")
    assert system.read(Path("none")) == ""


def test_measurements_where_no_folder_can_be_are_one_line():
    session = bench.BenchSession(ranks=1, folder=Path("/proc/x"), minutes=0.1, device="cpu")

    with pytest.raises(InputError, match=r"^/proc/x: No such file"):
        bench.run(session)


@pytest.mark.parametrize("words", [("doctor",), ("calibrate", "--output", "never.toml")])
def test_a_profile_is_checked_where_nothing_is_predicted(words):
    assert_refused(*run(*words, "--profile", "/no/such/profile"), "/no/such/profile")


@pytest.mark.parametrize("style", ["table", "json", "markdown"])
def test_without_tensorrt_layers_are_proved_and_the_answer_is_no(style, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", None)
    words = ("validate", "--model", "flux", "--plan", "tp2", "--backend", "tensorrt")
    code, out, _ = run(*words, "--results", str(tmp_path), "--format", style)

    assert code == 1
    assert "pip install" in out
    assert ("- layers on numbers" in out) == (style == "markdown")
    if style == "json":
        assert json.loads(out)["engines"][0]["passed"] is True  # of what was done
