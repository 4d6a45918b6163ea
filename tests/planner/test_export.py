"""Exported folders: whole or not at all, complete, and telling engines what the plan says."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import FLUX as CONFIG
from commands import LLAMA, assert_refused, run

from planner.engines.tables import allowed
from planner.export import export as exporting
from planner.export import files as harness
from planner.export.export import backends, export, files
from planner.export.tables import checkpoints, cpp
from planner.export.tensorrt import tensorrt_folder
from planner.lowering import lower
from planner.models import names, read_model
from planner.recommendation import estimate_plan
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, enqueue
from planner.tensorrt.from_program import networks_of
from planner.tensorrt.runner.errors import InputError as Refused
from planner.tensorrt.runner.pictures import ENDS, check_made
from planner.tensorrt.runner.texts import text_of
from topology.base import IllegalPlanError, InputError, format_bytes
from validate.reference import shrink

TINY = CONFIG | {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2}
FLUX = Request(model="flux.1-dev", gpus=4)


def small(request, text, **more):
    """The folder of a shrunken model: every part of the large one, and quickly written."""
    scenario, plan = resolve(request), parse_plan(text)
    model, workload = shrink(scenario.model, scenario.workload, plan)
    little = replace(scenario, model=model, workload=workload)
    return tensorrt_folder(little, price(little, plan), **more)


@pytest.fixture(scope="module")
def flux():
    return files(FLUX, "ulysses4", "tensorrt")


@pytest.fixture(scope="module")
def plan(flux):
    return json.loads(flux["plan.json"])


def test_a_folder_for_tensorrt_has_all_that_builds_and_runs_it(flux):
    names = set(flux)

    assert {"plan.json", "README.md", "tables/forward.bin"} <= names
    assert {"networks/forward.json", "networks/forward.npz", "networks/combine.json"} <= names
    assert {"runner/__main__.py", "runner/build.py", "runner/run.py"} <= names
    assert {"cpp/runner.cpp", "cpp/builder.cpp", "cpp/CMakeLists.txt", "cpp/schedule.txt"} <= names


def test_the_plan_says_who_runs_what(plan):
    forward = plan["engines"][0]

    assert plan["schema"] == "1"
    assert (plan["model"], plan["plan"], plan["gpus"]) == ("flux.1-dev", "ulysses4", 4)
    assert plan["devices"] == [0, 1, 2, 3]
    assert [rank["index"] for rank in plan["ranks"]] == [{"ulysses": n} for n in range(4)]
    assert forward["files"] == ["engines/forward.engine"]
    assert forward["groups"] == [[0, 1, 2, 3]]
    assert forward["collectives"] == {"all_to_all ulysses": 114, "all_gather ulysses": 1}
    assert forward["inputs"]["input.image"] == [1, 4096, 64]
    assert plan["expected"]["latency_s"] > 0
    assert plan["needs"] == {"tensorrt": "11.0.0", "nccl": "2.28"}  # for the all-to-all
    assert plan["expected"]["memory_bytes"] > 24e9  # a 12 billion parameter model in 16 bits


def test_expected_engines_hold_the_weights_and_take_minutes(plan):
    """11.9 billion parameters, of which the blocks' matrices are 23.5 GB in 16 bits."""
    forward = plan["engines"][0]

    assert 22e9 < forward["expected_bytes"] < 25e9
    assert 200 < forward["expected_build_s"] < 2000


def test_weights_that_two_engines_hold_are_said():
    """A decoder's prefill and decode step; a diffusion model's engines have none in common."""
    made = files(Request(model="llama-3.1-8b", gpus=2), "tp2", "tensorrt")
    plan = json.loads(made["plan.json"])
    (said,) = plan["cautions"]

    weights = plan["engines"][1]["expected_bytes"] - allowed().overhead.value
    assert f"each has its own: {format_bytes(weights)} more on a GPU" in said
    assert f"{format_bytes(plan['expected']['memory_bytes'] + weights)} in all" in said
    assert said in made["README.md"].decode()
    for model in ("cosmos3", "wan2.1-1.3b"):
        plan = json.loads(small(Request(model=model, gpus=2), "tp2")["plan.json"])
        assert "each has its own" not in "".join(plan["cautions"])


@pytest.mark.parametrize(("model", "computed"), [("flux.1-dev", True), ("flux.2-dev", False)])
def test_networks_that_do_not_compute_a_model_say_so(model, computed):
    plan = json.loads(small(Request(model=model, gpus=2), "tp2")["plan.json"])

    said = [one for one in plan["cautions"] if "these networks are for timing" in one]
    assert (plan["computes"], len(said)) == (computed, 0 if computed else 1)


@pytest.mark.parametrize(
    "model",
    ["flux.1-dev", "wan2.1-1.3b", "wan2.2-5b", "wan2.1-i2v-14b", "cosmos3-nano", "sana-1.6b"],
)
def test_results_are_made_of_the_models_that_are_said_to_make_them(model):
    asked, single = Request(model=model, gpus=1, height=256, width=256), parse_plan("single")
    scenario = resolve(asked)
    short = tuple(replace(block, count=1) for block in scenario.model.blocks)
    scenario = replace(scenario, model=replace(scenario.model, blocks=short))
    plan = json.loads(tensorrt_folder(scenario, price(scenario, single))["plan.json"])

    if scenario.model.exports == "results":
        assert check_made(plan) in (".png", ".mp4")
    else:
        with pytest.raises(Refused, match=model):
            check_made(plan)


def test_families_that_make_results_are_those_that_the_runner_makes():
    models = [read_model(name) for name in names()]

    made = {one.family for one in models if one.exports == "results" and one.kind != "decoder"}
    assert made == set(ENDS)


@pytest.mark.parametrize(
    ("model", "tokens", "says"),
    [
        ("llama-3.1-8b", 16, "the engines go on from a prompt"),
        ("llama-3.1-8b", 0, "nothing here makes a result of a prompt yet"),
        ("mixtral-8x7b", 16, "This is a skeleton for timing"),
    ],
)
def test_folders_say_whether_they_make_a_text(model, tokens, says):
    request = Request(model=model, gpus=2, input_tokens=32, output_tokens=tokens)
    found = small(request, "tp2")
    plan, readme = json.loads(found["plan.json"]), found["README.md"].decode()

    assert says in readme
    text = text_of(plan)
    assert (text is not None) == (tokens > 0)
    if text is None:
        return
    assert text.room == text.rows + plan["steps"]
    lines = [line.split() for line in found["cpp/schedule.txt"].decode().splitlines()]
    assert ["start", "filled", str(text.rows)] in lines
    assert ["copy", "each", "next.filled", "filled", "4"] in lines
    assert f"the cache room for {text.room}" in readme or model == "mixtral-8x7b"


def test_tensor_parallel_ranks_have_engines_of_their_own(plan):
    """Modulation, a quarter of FLUX.1's weights, is whole on every rank."""
    whole = plan["engines"][0]
    forward, combine = json.loads(files(FLUX, "tp4", "tensorrt")["plan.json"])["engines"]

    assert forward["files"] == [f"engines/forward.rank{rank}.engine" for rank in range(4)]
    assert combine["files"] == ["engines/combine.engine"]
    assert forward["expected_bytes"] < 0.5 * whole["expected_bytes"]


def test_tables_hold_every_rank_s_rows(flux):
    document = json.loads(flux["networks/forward.json"])
    sizes = [np.prod(one["shape"]) * 4 * document["ranks"] for one in document["tables"]]

    assert sum(sizes) == len(flux["tables/forward.bin"])
    with np.load(io.BytesIO(flux["networks/forward.npz"])) as constants:
        named = {one["name"] for one in document["layers"] if one["kind"] == "constant"}
        assert set(constants) == named


def test_the_c_plus_plus_schedule_is_the_plan_s(flux, plan):
    lines = [line.split() for line in flux["cpp/schedule.txt"].decode().splitlines()]
    words = {line[0] for line in lines}

    assert words == {"world", "steps", "environment", "engine", "group", "meets", "buffer",
                     "given", "table", "device", "call", "copy", "output"}  # fmt: skip
    assert ["world", "4"] in lines
    assert ["steps", str(plan["steps"])] in lines
    calls = [line for line in lines if line[0] in ("call", "copy")]
    assert len(calls) == len(plan["once"]) + len(plan["each_step"])
    known = {line[1] for line in lines if line[0] == "buffer"}
    bound = {
        word.split("=")[1].rsplit("+", 1)[0] for call in calls for word in call[3:] if "=" in word
    }
    assert bound <= known


def test_each_forward_of_guidance_has_its_place_among_predictions():
    plan = json.loads(small(Request(model="wan2.1-1.3b", gpus=2), "ulysses2")["plan.json"])
    first, second, *_ = plan["each_step"]

    assert first["bind"]["prediction"] == ["predictions", 0]
    assert second["bind"]["prediction"] == ["predictions", 1]
    assert second["bind"]["input.text"] == ["input.text#1", 0]
    assert second["bind"]["time"] == ["time", 0]


def test_a_plan_that_tensorrt_cannot_run_says_why(tmp_path):
    with pytest.raises(IllegalPlanError, match="needs point-to-point messages"):
        export(FLUX, "ring4", "tensorrt", str(tmp_path / "out"))
    asked = replace(FLUX, tensorrt_version="11.2.1.2")
    with pytest.raises(IllegalPlanError, match=r"11\.2\.1\.2"):
        export(asked, "ulysses2.tp2", "tensorrt", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_a_stage_s_rank_counts_what_it_runs_itself():
    wan = Request(model="wan2.1-1.3b", gpus=2)
    plan, whole = (json.loads(small(wan, text)["plan.json"]) for text in ("pp2", "ulysses2"))

    assert plan["enqueue"]["calls_a_step"] == whole["enqueue"]["calls_a_step"] == 3
    assert [engine["groups"] for engine in plan["engines"]] == [[[0]], [[1]], []]
    assert plan["needs"]["nccl"]
    assert not any("more on a GPU" in one for one in plan["cautions"])


def test_collectives_stand_apart_where_tensorrt_would_lose_them():
    asked = replace(FLUX, tensorrt_version="11.0.0.114")

    made = small(asked, "tp4")
    plain, wide = (
        json.loads(folder["networks/forward.json"]) for folder in (small(FLUX, "tp4"), made)
    )

    def reduced(document):
        layers = [one for one in document["layers"] if one["kind"] == "collective"]
        return {one["outputs"][0]["dtype"] for one in layers}

    assert (reduced(plain), reduced(wide)) == ({"bf16"}, {"fp32"})
    cautions = json.loads(made["plan.json"])["cautions"]
    assert any("issue 4381" in line for line in cautions)


@pytest.mark.parametrize(
    ("backend", "flag"),
    [("xdit", "--ulysses_degree 4"), ("sglang", "--ulysses-degree 4"),
     ("vllm-omni", "--tensor-parallel-size 4"), ("trtmc", "--context-parallel-size 4"),
     ("diffusers", "torchrun --nproc-per-node 4")],
)  # fmt: skip
def test_other_engines_are_told_the_plan(backend, flag):
    plan_of = "tp4" if backend == "vllm-omni" else "ulysses4"  # which splits no FLUX.1 otherwise
    found = files(FLUX, plan_of, backend)

    assert flag in found["launch.sh"].decode()
    plan = json.loads(found["plan.json"])
    assert (plan["backend"], plan["plan"], plan["gpus"]) == (backend, plan_of, 4)
    assert plan["expected"]["latency_s"] > 0


@pytest.mark.parametrize(("gpus", "nodes"), [(4, 1), (16, 2)])
def test_the_readme_starts_ranks_where_they_sit(gpus, nodes):
    request = Request(model="wan2.1-1.3b", gpus=gpus, nodes=nodes)
    readme = files(request, f"cfg2.allgather_kv{gpus // 2}", "tensorrt")["README.md"].decode()

    alone = "    python -m runner run --graph                # one process a GPU of this host\n"
    assert (alone in readme) == (nodes == 1)
    where = " --host HOST0:8,HOST1:8" if nodes > 1 else ""
    assert f"    mpirun -np {gpus}{where} build/runner .\n" in readme
    address = " -x MASTER_ADDR=HOST0" if nodes > 1 else ""
    assert f"    mpirun -np {gpus}{where}{address} python -m runner run --graph\n" in readme


@pytest.mark.parametrize(
    ("words", "got"),
    [(("--runtime", "torch-eager"), "torch-eager"), (("--engine", "xdit"), "torch-compile")],
)
def test_tensorrt_s_folder_expects_what_tensorrt_takes(words, got, tmp_path):
    argv = ("export", "--model", "flux.1-dev", "--plan", "tp2", "--output", str(tmp_path / "out"))

    assert_refused(*run(*argv, *words), f"runtime: got {got}, wanted tensorrt")


@pytest.mark.parametrize(
    ("model", "plan", "backend", "runtime"),
    [
        ("flux.1-dev", "ulysses2", "diffusers", "tensorrt"),
        ("llama-3.1-8b", "tp2", "tensorrt-llm", "torch-eager"),
    ],
)
def test_a_runtime_that_an_engine_has_not_is_not_exported(tmp_path, model, plan, backend, runtime):
    output = tmp_path / "out"
    argv = ("export", "--model", model, "--gpus", "2", "--plan", plan, "--backend", backend)

    answer = run(*argv, "--runtime", runtime, "--output", str(output))

    assert_refused(*answer, f"runtime: got {runtime}, which {backend} has not: wanted ")
    assert not output.exists()
    assert not (tmp_path / "out").exists()


def test_sizes_reach_the_engine():
    asked = replace(FLUX, height=768, width=512, steps=4)

    line = files(asked, "ulysses4", "xdit")["launch.sh"].decode()

    assert "--height 768 --width 512 --num_inference_steps 4" in line


def test_the_diffusers_script_enables_the_plan():
    script = files(FLUX, "ulysses4", "diffusers")["run.py"].decode()

    compile(script, "run.py", "exec")
    assert "ContextParallelConfig(ulysses_degree=4)" in script


@pytest.mark.parametrize("backend", ["xdit", "sglang", "vllm-omni", "trtmc", "diffusers"])
def test_the_folder_of_an_engine_expects_what_that_engine_takes(tmp_path, backend):
    plan = "tp4" if backend == "vllm-omni" else "ulysses4"
    words = ("--model", "flux.1-dev", "--plan", plan, "--format", "json")
    priced = json.loads(run("estimate", *words, "--engine", backend)[1])

    code, _, _ = run("export", *words[:4], "--backend", backend, "--output", str(tmp_path / "out"))

    assert code == 0
    expected = json.loads((tmp_path / "out" / "plan.json").read_text())["expected"]
    assert expected == priced
    assert f", {priced['runtime']}. Expected:" in (tmp_path / "out" / "README.md").read_text()


def test_a_plan_that_an_engine_refuses_is_answered_with_the_nearest(tmp_path):
    words = ("--model", "wan2.1-14b", "--gpus", "2", "--plan", "tp2", "--backend", "xdit")
    code, _, error = run("export", *words, "--output", str(tmp_path / "out"))

    assert code == 2
    assert "plan tp2: xDiT has no tp axis; nearest that run: dp2, ring2, ulysses2" in error
    assert not (tmp_path / "out").exists()


def test_the_diffusers_script_keeps_what_it_made():
    script = files(FLUX, "ulysses4", "diffusers")["run.py"].decode()

    compile(script, "run.py", "exec")
    assert 'result.images[0].save("result.png")' in script
    assert 'export_to_video(result.frames[0], "result.mp4")' in script


def test_the_diffusers_script_does_not_fill_a_gpu_that_has_to_offload():
    whole, offloaded = (
        files(replace(FLUX, offload=offload), "ulysses4", "diffusers")["run.py"].decode()
        for offload in (False, True)
    )

    assert 'pipe.to("cuda")' in whole
    assert 'pipe.to("cuda")' not in offloaded
    assert "pipe.enable_model_cpu_offload" in offloaded


HOSTILE = (
    '""";open("{mark}","w");"""',
    "'''+open('{mark}','w').name+'''",
    "\\\";open('{mark}','w')#",
    "$(touch {mark})",
    "`touch {mark}`",
    "'; touch {mark}; '",
    '"; touch {mark}; "',
    "a\ntouch {mark}\nb",
    "--flag\\N{{DASH}} {mark}",
)
HARMLESS = """
import contextlib, os, sys, types
class Anything:
    def __getattr__(self, name): return Anything()
    def __call__(self, *a, **k): return Anything()
    def __getitem__(self, key): return Anything()
    def __eq__(self, other): return False
for name in ("torch", "torch.distributed", "diffusers", "diffusers.utils"):
    module = types.ModuleType(name)
    module.__getattr__ = lambda name: Anything()
    sys.modules[name] = module
os.environ["LOCAL_RANK"] = "0"
path = sys.argv.pop(1)
exec(compile(open(path, encoding="utf-8").read(), path, "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("backend", backends())
def test_the_name_of_a_folder_is_never_run(tmp_path, backend, name):
    """Whatever a folder is called: scripts parse, and running them runs nothing of the name."""
    folder = tmp_path / name.format(mark="MARK").replace("/", "_")
    folder.mkdir()
    served = backend in ("vllm", "sglang-llm", "tensorrt-llm")
    (folder / "config.json").write_text(json.dumps(LLAMA if served else TINY))
    sizes = {} if served else {"height": 256, "width": 256}
    request = Request(model=str(folder), gpus=2, **sizes)
    plain = tmp_path / "plain"
    plain.mkdir()
    try:
        plan = "tp2" if served or backend == "vllm-omni" else "ulysses2"
        made = export(request, plan, backend, str(plain / "out"))
    except IllegalPlanError as error:
        assert "by name" in str(error)  # noqa: PT017  # an engine that takes no folder
        return
    out = made.folder
    stubs = plain / "bin"
    stubs.mkdir()
    for engine in (
        "xdit",
        "torchrun",
        "sglang",
        "vllm",
        "trtmc",
        "python3",
        "python",
        "trtllm-serve",
    ):
        (stubs / engine).write_text("#!/bin/sh\nexit 0\n")
        (stubs / engine).chmod(0o755)
    shell = {"PATH": f"{stubs}:/usr/bin:/bin", "HOST": "a", "NODE_RANK": "0"}

    for script in out.rglob("*.py"):
        compile(script.read_text(encoding="utf-8"), str(script), "exec")
    if (out / "run.py").exists():
        words = [sys.executable, "-c", HARMLESS, "run.py", "a prompt"]
        subprocess.run(words, cwd=out, check=True, timeout=600)
    if (out / "launch.sh").exists():
        subprocess.run(["sh", "./launch.sh", "text"], cwd=out, env=shell, check=True, timeout=600)

    assert not list(tmp_path.rglob("MARK"))
    for page in out.glob("*.md"):
        assert page.read_text(encoding="utf-8").count("\n# ") == 0  # the name ends no heading


def test_a_plan_that_an_engine_cannot_run_says_why():
    with pytest.raises(IllegalPlanError, match="Model Connect has no ring axis"):
        files(FLUX, "ring4", "trtmc")
    with pytest.raises(InputError, match="engine: got xdit, which does not run decoder models"):
        files(Request(model="llama-3.1-8b", gpus=2), "tp2", "xdit")


def test_language_models_have_launch_scripts_of_what_serves_them_with_the_limits_of_a_load():
    request = Request(model="llama-3.1-8b", gpus=2, concurrency=64)
    for backend, line in {
        "vllm": "vllm serve {} --tensor-parallel-size 2 --max-num-seqs 64 ",
        "sglang": "python -m sglang.launch_server --model-path {} --tp-size 2 ",  # of its name
        "sglang-llm": "python -m sglang.launch_server --model-path {} --tp-size 2 ",
        "tensorrt-llm": "trtllm-serve {} --tp_size 2 --max_batch_size 64 ",
    }.items():
        made = {name: text.decode() for name, text in files(request, "tp2", backend).items()}
        assert line.format("meta-llama/Llama-3.1-8B-Instruct") in made["launch.sh"]
        assert "no flag" not in made["launch.sh"]
        priced = estimate_plan(resolve(replace(request, engine=backend)), "tp2")
        assert json.loads(made["plan.json"])["expected"] == json.loads(json.dumps(priced.to_dict()))
        rate = f"{priced.serving.tokens_per_s:,.0f} tokens/s with 64 at once"
        assert rate in made["README.md"]
    with pytest.raises(InputError, match="got tensorrt under a load, wanted an engine that serves"):
        files(request, "tp2", "tensorrt")
    with pytest.raises(InputError, match="got trtmc, which does not run decoder models"):
        files(request, "tp2", "trtmc")


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="unknown backend 'tensort': did you mean tensorrt"):
        files(FLUX, "ulysses4", "tensort")
    with pytest.raises(InputError, match="unknown backend 'repository'"):  # in its own folder
        files(FLUX, "ulysses4", "repository")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--engine", "diffusers"), "engine: got diffusers, wanted xdit, as --backend has it"),
        (("--tensorrt-version", "11.2"), "tensorrt_version: got one for --backend xdit"),
    ],
)
def test_what_another_backend_has_no_use_for_is_refused(tmp_path, option, said):
    words = ("export", "--model", "flux.1-dev", "--plan", "tp2", "--backend", "xdit", *option)

    assert_refused(*run(*words, "--output", str(tmp_path / "out")), said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("slo", "code"), [("1ms", 1), ("1s", 0)])
def test_a_plan_that_misses_what_is_wanted_is_exported_no_more_than_it_is_recommended(
    tmp_path, slo, code
):
    out = tmp_path / "out"
    load = ("--model", "llama-3.1-8b", "--concurrency", "4", "--slo-tpot", slo)

    did, _, said = run("export", *load, "--backend", "vllm", "--output", str(out))

    assert did == run("estimate", *load, "--engine", "vllm")[0] == code
    assert out.exists() is not bool(code)
    assert bool(re.search("single: misses what is wanted: TPOT .* of 1 ms", said)) is bool(code)


def test_an_existing_folder_is_left_alone(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine").write_text("kept")

    with pytest.raises(InputError, match=r"out: it exists; --force replaces it"):
        harness.write_folder({"a": b"1"}, str(target))

    assert (target / "mine").read_text() == "kept"
    assert inside(tmp_path) == ["out"]


def test_force_replaces_a_folder_whole(tmp_path):
    target = tmp_path / "out"
    harness.write_folder({"plan.json": b"1", "in/old": b"1"}, str(target))

    harness.write_folder({"new": b"2"}, str(target), force=True)

    assert inside(target) == ["new"]
    assert inside(tmp_path) == ["out"]


def test_a_folder_that_may_not_be_looked_into_is_one_line(tmp_path, monkeypatch):
    def barred(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "iterdir", barred)

    words = ("export", "--model", "flux", "--force", "--output", str(tmp_path / "out"))
    assert_refused(*run(*words), "out: Permission denied")


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_nothing_and_loses_nothing(tmp_path, monkeypatch, force):
    target = tmp_path / "out"
    if force:
        harness.write_folder({"plan.json": b"1"}, str(target))
    before = inside(tmp_path)

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left on device"):
        harness.write_folder({"new": b"2"}, str(target), force=force)

    assert inside(tmp_path) == before


def test_a_swap_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / "out"
    harness.write_folder({"plan.json": b"1"}, str(target))
    rename = Path.rename

    def failing(self, other):
        if (self / "new").exists():  # the draft
            raise OSError(5, "Input/output error")
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(InputError, match="Input/output error"):
        harness.write_folder({"new": b"2"}, str(target), force=True)

    assert inside(target) == ["plan.json"]
    assert inside(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["", "no/such/parent", "a\0b"])
def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="wanted the path of a folder"):
        harness.write_folder({"a": b""}, str(tmp_path / name) if name != "" else "/")


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    target = tmp_path / "out"
    target.write_text("kept")

    with pytest.raises(InputError, match="it is a file"):
        harness.write_folder({"a": b""}, str(target), force=True)
    assert target.read_text() == "kept"


def inside(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_runner_in_c_plus_plus_hands_over_communicators():
    text = cpp()["runner.cpp"].decode()

    for name in (
        "setCommunicator",
        "enqueueV3",
        "ncclCommInitRank",
        "MPI_Init",
        "setTensorAddress",
    ):
        assert name in text
    assert text.count("{") == text.count("}")


def test_a_model_of_two_transformers_is_written_down_once():
    """Wan 2.2's take turns over the steps; the folder says who runs which."""
    said = {}
    for name in ("wan2.1-14b", "wan2.2-a14b"):
        made = small(Request(model=name, gpus=2, hardware="b200"), "ulysses2")
        cautions = json.loads(made["plan.json"])["cautions"]
        said[name] = [one for one in cautions if one.startswith("2 transformers of one make")]
        assert all(one in made["README.md"].decode() for one in said[name])

    assert [len(one) for one in said.values()] == [0, 1]


def test_what_of_a_checkpoint_goes_nowhere_is_said():
    files = small(Request(model="flux.2-dev", gpus=2), "tp2")
    plan, readme = json.loads(files["plan.json"]), files["README.md"].decode()

    assert plan["checkpoint"]["unused"]["norm_out"]
    assert "- `norm_out`: the last norm is written without modulation" in readme


def test_what_starting_engines_costs_is_said_and_is_not_in_the_prediction(flux):
    plan = json.loads(flux["plan.json"])

    assert plan["enqueue"]["calls_a_step"] == sum("engine" in one for one in plan["each_step"])
    assert plan["enqueue"]["host_s_a_step"] == pytest.approx(2 * 50e-6)
    assert plan["enqueue"]["exposed_s_a_step"] == 0.0
    assert "graph that is replayed" in plan["enqueue"]["expected_assumes"]
    assert "Without --graph" not in flux["README.md"].decode()
    assert plan["excluded"] == ["dla", "ragged", "refit", "safety"]
    assert "with dla, ragged, refit or safety" in flux["README.md"].decode()


@pytest.mark.parametrize(("step", "exposed"), [(1e-3, 0.0), (60e-6, 40e-6)])
def test_the_gpu_waits_for_the_host_where_its_step_is_shorter(step, exposed):
    each = [{"engine": "forward"}, {"engine": "combine"}, {"copy": ["a", "b"]}]
    order = {"each_step": each, "groups": {}}

    assert enqueue(order, step, allowed()).exposed == pytest.approx(exposed)


def test_a_step_that_waits_for_the_host_is_said(tmp_path, monkeypatch):
    request = Request(model="flux.1-dev", gpus=2)
    waiting = {"plan.json": b'{"enqueue": {"exposed_s_a_step": 4e-05}}'}
    monkeypatch.setattr(exporting, "files", lambda *args, **kwargs: waiting)

    line = exporting.export(request, "tp2", "tensorrt", str(tmp_path / "out")).line()

    assert line.endswith("without a CUDA graph a step waits 40 us for the host")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("ring2", "point-to-point.*; nearest that run: allgather_kv2, "),
        ("pp2/patch4", "keys of the step before.*; nearest that run: pp2"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_with_those_that_can(plan, said, tmp_path):
    with pytest.raises(IllegalPlanError, match=said):
        exporting.export(replace(FLUX, gpus=2), plan, "tensorrt", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_wrote(tmp_path):
    line = exporting.export(FLUX, "ulysses4", "xdit", str(tmp_path / "out")).line()

    assert re.search(r"out: 3 files, [1-9][.0-9]* KiB; see README\.md$", line)
    assert os.access(tmp_path / "out" / "launch.sh", os.X_OK)


COMMAND = ("export", "--model", "flux.1-dev", "--plan", "ulysses2", "--output")


@pytest.mark.parametrize("backend", ["tensorrt", "xdit"])
def test_the_command_s_json_lists_the_files_and_what_to_expect(backend, tmp_path):
    code, out, err = run(*COMMAND, str(tmp_path / "out"), "--backend", backend, "--format", "json")
    said = json.loads(out)
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())

    assert (code, err) == (0, "")
    assert said["folder"] == str(tmp_path / "out")
    assert (said["backend"], said["plan"], said["gpus"]) == (backend, "ulysses2", 2)
    assert said["runtime"] == {"tensorrt": "tensorrt", "xdit": "torch-compile"}[backend]
    there = {
        str(path.relative_to(tmp_path / "out")): path.stat().st_size
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert {one["path"]: one["bytes"] for one in said["files"]} == there
    assert said["total_bytes"] == sum(there.values())
    for name in ("latency_s", "step_s", "memory_bytes"):
        assert said[name] == plan["expected"][name] > 0


def test_the_command_s_markdown_is_a_table_of_files(tmp_path):
    code, out, _ = run(*COMMAND, str(tmp_path / "out"), "--backend", "xdit", "--format", "markdown")

    assert code == 0
    assert re.search(r"a request, .* a step, .* on the fullest GPU$", out, re.MULTILINE)
    size = (tmp_path / "out" / "plan.json").stat().st_size
    assert f"| `plan.json` | {size:,} |" in out.splitlines()


def test_what_python_returns_is_what_json_prints(tmp_path):
    request, folder = replace(FLUX, gpus=2), str(tmp_path / "out")
    made = exporting.export(request, "ulysses2", "tensorrt", folder)
    _, out, _ = run(*COMMAND, folder, "--force", "--format", "json")

    assert json.loads(out) == made.to_dict()


@pytest.mark.parametrize("style", ["json", "markdown"])
def test_a_refusal_prints_no_document(style, tmp_path):
    (tmp_path / "out").mkdir()

    assert_refused(*run(*COMMAND, str(tmp_path / "out"), "--format", style), "it exists")


def spread_over_devices(text, **more):
    return small(Request(model="flux.1-dev", gpus=4, **more), text, multi_device=True)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_attention_over_several_devices_takes_the_place_of_gathers(precision):
    found = spread_over_devices("allgather_kv4", hardware="b200", precision=precision)
    document = json.loads(found["plan.json"])

    assert document["multi_device_attention"] is True
    assert document["needs"]["tensorrt"] == "11.0.0"
    forward = document["engines"][0]["collectives"]
    assert forward["attention allgather_kv"] > 0
    assert forward["all_gather allgather_kv"] == 1  # of the result


def test_attention_over_several_devices_is_priced_as_a_ring_inside_the_layer():
    """Pieces of keys pass while others are attended: other messages than those of a gather."""
    request = Request(model="flux.1-dev", gpus=4, hardware="b200")
    found = (
        files(request, "allgather_kv4", "tensorrt", multi_device=spread)["plan.json"]
        for spread in (False, True)
    )
    said = [json.loads(text) for text in found]
    scenario = resolve(request).unmixed
    gathers, ring = (price(scenario, parse_plan(text)) for text in ("allgather_kv4", "ring4"))

    assert [said[spread]["plan"] for spread in (False, True)] == ["allgather_kv4"] * 2
    assert said[False]["expected"]["latency_s"] == gathers.latency_s
    assert said[True]["expected"]["latency_s"] == ring.latency_s != gathers.latency_s
    assert any("priced as a ring" in line for line in said[True]["cautions"])
    assert not any("priced as a ring" in line for line in said[False]["cautions"])


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("allgather_kv4", {}, "needs compute capability 10.0 to below 12.0, h100-sxm has 9.0"),
        ("allgather_kv4", {"hardware": "rtx-pro-6000"}, "rtx-pro-6000 has 12.0"),
        ("ulysses4", {"hardware": "b200"}, "wanted allgather_kv beside none of"),
        ("allgather_kv2.tp2", {"hardware": "b200"}, "wanted allgather_kv beside none of"),
    ],
)
def test_attention_over_several_devices_is_refused_where_there_is_none(text, more, said):
    with pytest.raises(IllegalPlanError, match=said):
        spread_over_devices(text, **more)


def test_gathers_stay_where_nothing_else_is_asked_for(plan):
    assert plan["multi_device_attention"] is False


def test_other_backends_have_no_attention_over_several_devices(tmp_path):
    with pytest.raises(InputError, match="got --backend xdit, wanted tensorrt"):
        export(FLUX, "ulysses4", "xdit", str(tmp_path / "out"), multi_device=True)
    assert not (tmp_path / "out").exists()


def test_force_replaces_nothing_but_earlier_exports(tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="--force replaces earlier exports, and it is none"):
        harness.write_folder({"plan.json": b"{}"}, str(folder), force=True)
    assert (folder / "thesis.tex").read_text() == "mine"

    (folder / "thesis.tex").unlink()
    harness.write_folder({"plan.json": b"{}"}, str(folder), force=True)
    harness.write_folder({"plan.json": b"[]"}, str(folder), force=True)
    assert (folder / "plan.json").read_bytes() == b"[]"


@pytest.mark.parametrize(
    ("model", "plan", "first", "last"),
    [
        ("flux.1-dev", "tp2", "This is the model: ", 'python -m runner generate "..."'),
        ("cosmos3-nano", "tp2", "This is the model: ", 'python -m runner generate "..."'),
        ("wan2.2-a14b", "tp2", "This is the model: ", 'python -m runner generate "..."'),
        ("llama-3.1-8b", "tp2", "This is the model: ", 'python -m runner generate "..." --tokens'),
        ("flux.2-dev", "tp2", "This is a skeleton for timing: ", ""),
    ],
)
def test_the_readme_says_what_it_is_of_and_what_to_do_in_order(model, plan, first, last):
    found = small(Request(model=model, gpus=2), plan)
    readme = found["README.md"].decode()
    named, timed, *computed = re.split(
        r"^## (?:Time it|Compute.*|Other.*)$", readme, flags=re.MULTILINE
    )

    assert named.split("\n\n")[1].startswith(first)
    steps = [timed.find(f"python -m runner {one}") for one in ("build --weights filler", "run")]
    assert 0 < steps[0] < steps[1]
    assert len(computed) == (2 if last else 1)
    assert not last or 0 < computed[0].find("build --weights FOLDER") < computed[0].find(last)


@pytest.mark.parametrize("model", ["flux.1-dev", "flux.2-dev", "llama-3.1-8b"])
def test_the_readme_speaks_of_what_is_there(model):
    """Each engine has its part, and neither tables nor tensors are spoken of where none are."""
    for text in ("tp2", "ulysses2") if model != "llama-3.1-8b" else ("tp2",):
        found = small(Request(model=model, gpus=2), text)
        readme, plan = found["README.md"].decode(), json.loads(found["plan.json"])
        tables = any(path.startswith("tables/") for path in found)

        assert ("`tables` what differs" in readme) == tables
        assert ("have no place in the networks" in readme) == bool(plan["checkpoint"]["unused"])
        for engine in plan["engines"]:
            assert re.search(rf"^\| {engine['name']} \| \w.*? \|", readme, re.MULTILINE)
        oldest = allowed().packages["13"][0].partition(">=")[2].partition(",")[0]
        assert f"Needs TensorRT {plan['needs']['tensorrt']}, " in readme
        assert f"installs such, TensorRT {oldest} or newer, for CUDA 13:" in readme
