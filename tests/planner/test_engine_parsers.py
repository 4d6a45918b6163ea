"""Every launch line against the parser of its engine: flags that it has, values that they take.

What the parsers take is in ``engineparsers.toml``, read from their code at named versions.
"""

import ast
import itertools
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from engineparsers import PARSERS, complaints

from planner.engines.tables import engines
from planner.models import names, read_model
from planner.request.plan import Plan
from planner.runners.launch import Launch, launches
from planner.runners.launch_settings import Settings
from planner.runners.worker_lines import worker_lines
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.search.plans import plans
from planner.strategies import parse_pools
from validate.engines.served import command
from validate.plans.cases import Case

BATCH, STEPS = 2, 7
LLAMA = {"model": "llama-3.1-8b", "plan": "tp2", "input_tokens": 2048}
EXTRA = "1 words that belong to no flag"


def parser_of(engine, limits):
    """Find the parser of a launch line: of its engine, or of the line, at its version or any."""
    key = f"{engine.name} {limits.line}".strip()
    return PARSERS.get(f"{key} {engine.version}") or PARSERS[key]


def check(engine, model, plan, settings, checked):
    """Check a launch line once; give what was launched, None where it was refused."""
    alone = type(engines())((engine,))
    (one,) = launches(alone, model, plan, settings)
    if one.reason:
        return None
    limits = engine.limits_of(model.name, model.family)
    if engine.line_of(limits).python:
        _check_script(one, model)
    elif one.command not in checked:
        checked.add(one.command)
        typed = f"{one.command} {one.prompt}"
        assert not list(complaints(typed, parser_of(engine, limits))), typed
    return one


def _check_script(one: Launch, model):
    """Check calls of a script: methods and keywords that diffusers has."""
    facts = PARSERS["diffusers"]
    script = {"start": ["run.py"], "source": facts["source"], "positional": 1}
    assert not list(complaints(f"{one.command} {one.prompt}", script))
    for call in (node for text in one.calls for node in ast.walk(ast.parse(text))):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", "") or call.func.id
            assert {keyword.arg for keyword in call.keywords} <= set(facts["calls"][name])
            if name == "set_attention_backend":
                assert call.args[0].value in facts["attention"]
            if name == "compile_repeated_blocks":
                assert model.family in facts["repeated_blocks"]
    kind = "video" if model.defaults.frames > 1 else "image"
    assert set(one.request) <= set(facts["request"].get(model.family, facts["request"][kind]))


def every(kind):
    listed = engines()
    return [
        version
        for engine in listed.engines
        for version in listed.versions(engine)
        if engine.kind == kind
    ]


def models(kind):
    """Give a model of each family that engines do not tell apart: dense, of experts, of frames."""
    found = {}
    for model in map(read_model, names()):
        if model.kind == kind:
            limits = [id(engine.limits_of(model.name, model.family)) for engine in every(kind)]
            found.setdefault((model.family, *limits, _video(model), *plans(model, 2)), model)
    return found.values()


def shapes(model):
    """Yield plans of 1, 2 and 8 GPUs, of two axes of 16, and of two with a parallel decode."""
    for gpus in (1, 2, 8):
        yield from plans(model, gpus)
    yield from (plan for plan in plans(model, 16) if len(plan.axes) < 3)
    if model.vae is not None:
        yield from (Plan(plan.axes, 2) for plan in plans(model, 2))


@pytest.mark.parametrize("kind", ["diffusion", "decoder"])
def test_a_line_of_any_plan_is_one_that_its_engine_parses(kind):
    checked = set()
    for model in models(kind):
        for engine, plan in itertools.product(every(kind), shapes(model)):
            hosts = 2 if plan.gpus == 16 else 1
            check(engine, model, plan, Settings(hosts=hosts, video=_video(model)), checked)
    assert len(checked) > 300


@pytest.mark.parametrize("kind", ["diffusion", "decoder"])
def test_a_line_of_anything_asked_is_one_that_its_engine_parses(kind):
    checked, launched = set(), set()
    for model in models(kind):
        few = [Plan(()), *(Plan(((axis, 2),)) for axis in ("cfg", "ulysses", "tp"))]
        for engine, plan, told in itertools.product(every(kind), few, asked(model)):
            if check(engine, model, plan, told, checked):
                launched.add(engine.title)
    assert launched == {engine.title for engine in every(kind)}
    assert len(checked) > 100


def asked(model):
    """Yield settings, each with one thing that is not usual."""
    usual, video = model.defaults, _video(model)
    sizes = {"height": usual.height, "width": usual.width, "steps": STEPS, "batch": BATCH}
    sizes |= {"frames": usual.frames} if video else {}
    if model.kind == "decoder":
        sizes = {"batch": BATCH, "length": 4096, "chunk": 2048}
    yield Settings(sizes=sizes, video=video)
    for precision in ("", "fp16", "fp8", "int8", "nvfp4"):
        yield Settings(precision=precision, video=video)
    for runtime in ("tensorrt", "torch-compile", "torch-eager"):
        yield Settings(runtime=runtime, video=video)
    for attention in ("cudnn", "fa2", "fa3", "fa4", "sage", "trtllm", "xformers"):
        yield Settings(attention=attention, video=video)
    if model.kind == "diffusion":
        yield Settings(offload=True, video=video)
    else:
        yield from (Settings(cache=kept) for kept in ("bf16", "fp8"))
        yield Settings(drafter="mtp", drafted=2)
        yield Settings(drafter="draft", drafted=2, draft="a/b")


def _video(model):
    return model.defaults.frames > 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("xdit --model a/b --data_parallel_degree 2 --ulysses_degree 4", []),
        ("xdit --model a/b --ulysses-degrees 4", ["no flag --ulysses-degrees", EXTRA]),
        ("xdit --model a/b --ulysses_degree four", ["--ulysses_degree four: no int"]),
        ("xdit --model a/b --height 1 --height 2", ["--height twice"]),
        ("xdit --ulysses_degree", ["--ulysses_degree without a value", "no --model"]),
        ("xdit --model a/b c/d", [EXTRA]),
        ("torchrun --nproc_per_node 2 --nodes=3 xdit --model a/b", ["no flag --nodes"]),
        ("ydit --model a/b", ["starts with ['ydit', '--model'], not with ['xdit']"]),
    ],
)
def test_the_check_finds_what_is_wrong(line, said):
    """A test of the test: it is worth no more than what it refuses."""
    assert list(complaints(line, PARSERS["xdit"])) == said


def test_every_line_has_a_parser_with_a_source():
    for kind in ("diffusion", "decoder"):
        for engine in every(kind):
            for limits in (engine.limits, *engine.models.values()):
                if engine.line_of(limits).command and not limits.reason:
                    assert parser_of(engine, limits)["source"]


@pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed")
def test_the_facts_of_diffusers_are_those_of_its_code():
    """Where it is installed: the classes and methods are read, not imported."""
    folder = Path(find_spec("diffusers").submodule_search_locations[0])
    calls = {name: set(words) for name, words in PARSERS["diffusers"]["calls"].items()}
    tree = ast.parse((folder / "models" / "_modeling_parallel.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in calls:
            fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
            assert calls[node.name] <= fields
    text = (folder / "models" / "modeling_utils.py").read_text("utf-8")
    assert all(f"def {name}(" in text for name in ("enable_parallelism", "set_attention_backend"))


TRANSFORMERS = {
    "cogvideox": "cogvideox_transformer_3d", "cosmos": "transformer_cosmos",
    "cosmos3": "transformer_cosmos3", "flux": "transformer_flux", "flux2": "transformer_flux2",
    "hidream": "transformer_hidream_image", "hunyuanvideo": "transformer_hunyuan_video",
    "hunyuanvideo-1.5": "transformer_hunyuan_video15", "ltx": "transformer_ltx",
    "ltx2": "transformer_ltx2", "lumina2": "transformer_lumina2", "mochi": "transformer_mochi",
    "pixart": "pixart_transformer_2d", "qwen-image": "transformer_qwenimage",
    "sana": "sana_transformer", "sd3": "transformer_sd3", "wan": "transformer_wan",
    "z-image": "transformer_z_image",
}  # fmt: skip
"""Files of diffusers that have the transformers of families."""


@pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed")
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_diffusers_splits_what_its_transformers_have_plans_for(family):
    folder = Path(find_spec("diffusers").submodule_search_locations[0]) / "models" / "transformers"
    text = (folder / f"{TRANSFORMERS[family]}.py").read_text("utf-8")
    limits = engines().named("diffusers").limits_of("", family)

    assert ("ulysses" in limits.axes, "ring" in limits.axes) == (("_cp_plan = {" in text),) * 2
    assert ("tp" in limits.axes) == ("_tp_plan = {" in text)
    assert (limits.words == "compile_repeated_blocks") == ("    _repeated_blocks = [" in text)


@pytest.mark.parametrize("gpus", [8, 32])
def test_lines_of_workers_are_ones_that_their_engines_parse(gpus):
    pools = {"prefill_plan": f"tp{gpus // 4}", "prefill_workers": 2}
    pools["decode_plan"] = f"adp{gpus // 2}/ep{gpus // 2}"
    scenario = resolve(request_of("deepseek-v3", gpus, {"hardware": "h200-sxm", **pools}))
    told = {"decode": {"batch": 8}}
    lines = worker_lines(scenario, parse_pools(scenario.request), told)
    by_title = {engine.title: engine for engine in engines().of_kind("decoder")}
    workers = [line for line in lines if line.engine.endswith((", prefill", ", decode"))]

    assert len(workers) == 3 * len(by_title)
    for line in workers:
        engine = by_title[line.engine.partition(",")[0]]
        words = line.command.split(" ")
        bare = " ".join(word for word in words if not word.startswith("VLLM_NIXL"))
        assert not list(complaints(bare, parser_of(engine, engine.limits))), line.command
    assert len(lines) == len(workers) + len(by_title)  # and a router each


@pytest.mark.parametrize("engine", ["vllm", "sglang-llm"])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize(
    "more", [{}, {"precision": "fp8"}, {"precision": "fp16", "batch": 8}, {"mode": "eager"}]
)
def test_a_benchmark_takes_all_that_it_is_told(tmp_path, engine, stage, more) -> None:
    """Its parser has every flag, and the plan's are those of the launch line."""
    case = Case(**{**LLAMA, **more}, engine=engine, stage=stage)
    words = command(case, "h100-sxm", tmp_path, tmp_path / "rows.json")
    parser = PARSERS[f"{engine} benchmark"]
    start = "vllm bench latency" if engine == "vllm" else "python -m sglang.bench_one_batch"
    own = words.index("--model" if engine == "vllm" else "--model-path")
    assert list(complaints(f"{start} {shlex.join(words[own:])}", parser)) == []
    assert (
        words[words.index("--tensor-parallel-size" if engine == "vllm" else "--tp-size") + 1] == "2"
    )
