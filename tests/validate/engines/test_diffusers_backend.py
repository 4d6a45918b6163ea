"""``planner validate --backend diffusers``: what is refused, what a row is, how cases are run."""

import json
from dataclasses import replace

import pytest

from planner.command.cli import main
from validate.engines import checks
from validate.engines import diffusers_models as models
from validate.engines.diffusers_rank import measure
from validate.plans import command, restarts
from validate.plans.cases import Case, look_up, read_case
from validate.plans.compare import predict
from validate.plans.measured import Measured, line, read_measured

FLUX = Case(model="flux.1-dev", mode="eager", engine="diffusers")


def asked(*words: str) -> list[str]:
    return ["validate", "--backend", "diffusers", "--hardware", "h200-sxm", *words]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--model", "flux", "--plan", "single", "--mode", "graph"), "mode: got graph, wanted"),
        (("--model", "flux", "--plan", "single", "--precision", "fp8"), "wanted bf16 with"),
        (("--model", "flux", "--plan", "single", "--batch", "2"), "batch: got 2, wanted 1"),
        (("--model", "z-image", "--plan", "ulysses2"), "diffusers has no ulysses axis"),
        (("--model", "flux", "--plan", "allgather_kv2"), "plan allgather_kv2: diffusers"),
        (("--model", "flux", "--plan", "single"), "diffusers: got none, wanted it: pip install"),
    ],
)
def test_what_cannot_run_is_a_line(capsys, monkeypatch, words, complaint) -> None:
    """Before anything starts; what is missing is said with what to install, exit 2."""
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "diffusers" else True)
    assert main(asked(*words)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert complaint in err


def test_a_case_of_an_engine_has_its_own_name_and_one_forward() -> None:
    """It is priced with the engine's habits, and never mistaken for one of the executor."""
    qwen = Case(model="qwen-image", mode="compile", engine="diffusers")
    own = Case(model="qwen-image", mode="compile")
    assert qwen.key == "qwen-image | single | compile | diffusers"
    assert read_case(qwen.to_dict()) == qwen
    assert "engine" not in own.to_dict()
    assert (look_up(qwen).workload.passes, look_up(own).workload.passes) == (1, 2)
    assert predict(qwen, "h200-sxm").step_s < predict(own, "h200-sxm").step_s


@pytest.mark.filterwarnings("ignore")
def test_a_row_is_what_diffusers_took(monkeypatch) -> None:
    """Of a narrow transformer on a CPU; what it refuses is a row with its reason."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    family, config = models.transformer_config("flux.1-dev")
    narrow = {**models.shallow_config(config, 1), "num_attention_heads": 2}
    monkeypatch.setattr(models, "configured", lambda _: (family, narrow))
    row = measure(replace(FLUX, height=64, width=64), torch.device("cpu"))
    assert (row.status, row.note) == ("done", "")
    assert row.repeats >= 2
    assert row.low_s <= row.step_s <= row.high_s
    assert read_measured(line(row) + "\n")[0].case.height == 64
    refused = measure(replace(FLUX, height=8, width=8), torch.device("cpu"))
    assert (refused.status, "wanted 16 at least" in refused.note) == ("failed", True)


def test_plans_run_by_their_ranks_and_are_compared(tmp_path, monkeypatch, capsys) -> None:
    """A stand-in for the processes: groups of as many ranks, the fewest first, then one answer."""
    started = []

    def stand_in(cases, options, output):
        started.append((options.module, options.gpus, [case.plan for case in cases]))
        return [
            Measured(case=case, status="done", step_s=0.17, memory_bytes=24e9) for case in cases
        ]

    monkeypatch.setattr(command, "run", stand_in)
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    words = ("--model", "flux.1-dev", "--plan", "ulysses2,single,ring2", "--gate", "90%")
    code = main(asked(*words, "--results", str(tmp_path), "--format", "json"))
    answer = json.loads(capsys.readouterr().out)
    module = "validate.engines.diffusers_rank"
    assert code == 0
    assert started == [(module, 1, ["single"]), (module, 2, ["ulysses2", "ring2"])]
    assert [case["measured"]["case"]["plan"] for case in answer["cases"]] == [
        "ulysses2",
        "single",
        "ring2",
    ]
    assert module != restarts.EXECUTED_BY


def test_a_model_that_diffusers_has_no_transformer_of_is_one_line(capsys):
    code = main(
        ["validate", "--model", "llama-3.1-8b", "--plan", "single", "--backend", "diffusers"]
    )
    message = "planner: model: got llama-3.1-8b, wanted one whose transformer diffusers has\n"
    assert (code, capsys.readouterr().err) == (2, message)
