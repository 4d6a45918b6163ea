"""How to run a plan: a line that says all of it, or the reason why there is none."""

import re
import tomllib
from dataclasses import replace
from typing import get_args

import pytest
from generators import asked
from hypothesis import given
from hypothesis import strategies as st

from costmodels.kernels.attention import KERNELS
from planner.engines import tables
from planner.engines.engine import load_engines
from planner.engines.tables import engines
from planner.models import names, read_model
from planner.models.catalogue import repositories
from planner.recommendation import recommend_plans
from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners import launch as launching
from planner.runners.launch import launches
from planner.runners.refusal import DIVISIONS, refusal
from planner.scenario import scenario as scenarios
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import axes, parse_plan, strategies
from topology.base import CatalogueError
from topology.catalogue import Precision

ENGINES = engines()
EVERY = [one for engine in ENGINES.engines for one in ENGINES.versions(engine)]
RUNTIMES = ("tensorrt", "torch-compile", "torch-eager")
SIZES = ("height", "width", "frames", "steps", "batch", "length", "chunk")
MODELS = ("flux.1-dev", "wan2.1-14b", "cosmos3-nano", "llama-3.1-70b", "qwen3-8b")


def said(model, plan):
    return {one.engine: one for one in launches(ENGINES, read_model(model), parse_plan(plan))}


@pytest.mark.parametrize(
    ("model", "plan", "engine", "line"),
    [
        (
            "cosmos3-nano",
            "cfg2.ulysses4",
            "xDiT",
            (
                "xdit --model nvidia/Cosmos3-Nano --use_cfg_parallel --ulysses_degree 4 "
                '--use_torch_compile --prompt "..."'
            ),
        ),
        (
            "flux.1-dev",
            "ulysses2.ring2",
            "SGLang Diffusion",
            (
                "sglang generate --model-path black-forest-labs/FLUX.1-dev --num-gpus 4 "
                "--ulysses-degree 2 --ring-degree 2 --enable-torch-compile "
                '--dit-cpu-offload false --text-encoder-cpu-offload false --prompt "..."'
            ),
        ),
        (
            "flux.1-dev",
            "ulysses2",
            "diffusers",
            (
                'torchrun --nproc-per-node 2 run.py "..."  # pipe.transformer.'
                "enable_parallelism(config=ContextParallelConfig(ulysses_degree=2)); "
                "pipe.transformer.compile_repeated_blocks(); "
                "run.py: as planner export --backend diffusers writes it"
            ),
        ),
        (
            "sana-1.6b",
            "cfg2",
            "xDiT",
            (
                "torchrun --nproc_per_node 2 examples/sana_example.py "
                "--model Efficient-Large-Model/Sana_1600M_1024px_diffusers --use_cfg_parallel "
                '--use_torch_compile --prompt "..."  # examples/ of github.com/xdit-project/xDiT'
            ),
        ),
        (
            "flux.1-dev",
            "tp8",
            "TensorRT Model Connect",
            (
                "trtmc build black-forest-labs/FLUX.1-dev --tensor-parallel-size 8 "
                "--precision bf16  # run the bundle: mpirun -np 8 trtmc generate-image BUNDLE"
            ),
        ),
        (
            "llama-3.1-70b",
            "pp2.tp4",
            "vLLM",
            (
                "vllm serve meta-llama/Llama-3.1-70B-Instruct --pipeline-parallel-size 2 "
                "--tensor-parallel-size 4"
            ),
        ),
        (
            "mixtral-8x7b",
            "dp2.tp4",
            "vLLM",
            (
                "vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 --tensor-parallel-size 4  # start "
                "2 of these, each on GPUs of its own: --data-parallel-size 2 would be one group, "
                "whose ranks share the experts"
            ),
        ),
    ],
)
def test_lines_as_the_engines_document_them(model, plan, engine, line):
    assert said(model, plan)[engine].line == line


@pytest.mark.parametrize(
    ("model", "plan", "engine", "reason"),
    [
        # NVIDIA/TensorRT-Model-Connect, multi-device.md: sizes 1, 2, 4, 8; one of TP and CP
        ("cosmos3-nano", "cfg2.ulysses4", "TensorRT Model Connect", "has no cfg axis"),
        ("cosmos3-nano", "ulysses4.tp2", "TensorRT Model Connect", "exclude each other"),
        ("cosmos3-nano", "ulysses16", "TensorRT Model Connect", "expected one of 2, 4, 8"),
        ("cosmos3-nano", "ring8", "TensorRT Model Connect", "has no ring axis"),
        # huggingface/diffusers, _modeling_parallel.py: only rotate_method="allgather" is supported
        ("flux.1-dev", "allgather_kv4", "diffusers", "gathers keys and values, but attends to"),
        # diffusers 0.42.1, transformer_cosmos3.py: one GPU, or an example's own context parallelism
        ("cosmos3-nano", "ulysses8", "diffusers", "its transformer has no _cp_plan, examples/"),
        ("cosmos3-nano", "tp8", "diffusers", "its transformer has no _tp_plan"),
        # diffusers 0.42.1, ParallelConfig
        ("flux.2-dev", "ulysses2.tp4", "diffusers", "tp and ulysses exclude each other"),
        ("sd3.5-large", "ulysses2", "diffusers", "its transformer has no _cp_plan"),
        ("flux.1-dev", "pp2.tp4", "xDiT", "has no tp axis"),
        # vllm-project/vllm#16260; TensorRT-LLM's Linear asserts that features divide
        ("llama-3.1-8b", "tp3", "vLLM", "does not pad the FFN width 14336 for tp3"),
        ("sana-1.6b", "cfg2.tp2", "xDiT", "has no tp axis for the sana family"),
        ("sana-1.6b", "ulysses2", "SGLang Diffusion", "has no ulysses axis for the sana family"),
        ("sana-1.6b", "ulysses2", "vLLM-Omni", "does not run the sana family"),
        # xDiT, runner.md: a table of valid model names
        ("flux.1-schnell", "ulysses4", "xDiT", "does not know flux.1-schnell by name"),
        # xDiT#507 and #787: no TP; Wan's text-to-video takes the flag of CFG and does nothing
        ("wan2.1-14b", "tp2", "xDiT", "has no tp axis"),
        ("wan2.1-14b", "cfg2", "xDiT", "has no cfg axis for wan2.1-14b"),
        ("wan2.2-5b", "cfg2", "xDiT", "with --task i2v alone"),
        # vllm-omni 0.30.0, registry.py: a warning, and every rank computes all
        ("flux.1-dev", "ulysses4", "vLLM-Omni", "no _sp_plan, and the flag does nothing"),
        ("flux.1-dev", "tp4/vae4", "vLLM-Omni", "has no parallel VAE decode for the flux family"),
        ("wan2.1-14b", "allgather_kv2.ring2", "vLLM-Omni", "exclude each other"),
        # sglang 0.5.23, shard_latents_for_sp
        ("hunyuanvideo", "ulysses2", "SGLang Diffusion", "33 latent frames do not divide by 2"),
        # sglang 0.5.23, stablediffusion3.py: attention of diffusers, of whole images
        ("sd3.5-large", "ulysses2", "SGLang Diffusion", "has no ulysses axis for the sd3 family"),
        # tensorrt_model_connect at e9132e7, families: sizes of Wan 2.1 1.3B; FLUX.2 has TP
        ("wan2.1-14b", "tp4", "TensorRT Model Connect", "builds Wan 2.1 1.3B and Wan 2.2 5B alone"),
        (
            "flux.2-dev",
            "ulysses4",
            "TensorRT Model Connect",
            "has no ulysses axis for the flux2 family",
        ),
        # Wan-Video/Wan2.2, generate.py
        ("wan2.2-a14b", "ring8", "own repository", "Wan 2.2 has Ulysses alone"),
        ("sd3.5-large", "single", "own repository", "its code was not read"),
        ("sd3.5-large", "cfg2/vae2", "SGLang Diffusion", "has no parallel VAE decode for the sd3"),
        ("flux.1-dev", "ulysses8/vae4", "SGLang Diffusion", "on one GPU or on all 8, not on 4"),
        ("flux.1-dev", "ulysses8/vae2", "xDiT", "decodes on one GPU or on all 8, not on 2"),
        ("llama-3.1-70b", "dp2.tp4", "TensorRT-LLM", "has no dp axis"),
    ],
)
def test_what_an_engine_cannot_run_has_a_reason(model, plan, engine, reason):
    found = said(model, plan)[engine]

    assert found.line == ""
    assert reason in found.reason


def test_a_model_goes_by_its_repository():
    """An alias that an engine has besides is no name that others can look up."""
    named = [one.name for one in ENGINES.named("xdit").models.values() if one.name]

    assert named
    assert not [repo for repo in named if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo)]
    line = said("wan2.1-14b", "ulysses2")["xDiT"].line
    assert line.startswith("xdit --model Wan-AI/Wan2.1-T2V-14B-Diffusers --ulysses_degree 2")


def test_a_parallel_decode_is_asked_for():
    assert " --use_parallel_vae" in said("flux.1-dev", "ulysses8/vae8")["xDiT"].line
    sharded = said("wan2.1-14b", "ulysses8/vae8")["SGLang Diffusion"].line
    assert "--vae-config.parallel-decode-mode spatial_shard" in sharded


def test_sglang_makes_as_many_frames_as_asked_for():
    """sglang 0.5.23, align_num_frames_for_num_gpus: 133 for 129 on two GPUs otherwise."""
    assert "--adjust-frames false" in said("hunyuanvideo", "tp2")["SGLang Diffusion"].line


def test_gathered_keys_leave_sglang_nothing_to_choose():
    """sglang 0.5.23, _adjust_parallelism: without a degree it may give ranks to CFG."""
    line = said("wan2.1-14b", "allgather_kv2")["SGLang Diffusion"].line

    assert "--sp-degree 2 --kv-gather-degree 2" in line


@given(
    model=st.sampled_from(MODELS),
    axes=st.lists(st.sampled_from(list(strategies())), unique=True, max_size=3),
    degrees=st.lists(st.sampled_from([2, 3, 4, 8]), min_size=3, max_size=3),
    vae=st.sampled_from([1, 1, 2]),
    ep=st.sampled_from([1, 1, 2, 8]),
)
def test_a_line_says_every_degree_or_there_is_none(model, axes, degrees, vae, ep):
    """A plan that cannot be told in full is refused, never told in part."""
    plan, model = Plan(tuple(zip(axes, degrees, strict=False)), vae, ep), read_model(model)
    for one in launches(ENGINES, model, plan):
        assert bool(one.line) != bool(one.reason)
        assert "{" not in one.line
        engine = next(engine for engine in ENGINES.engines if engine.title == one.engine)
        if one.line:
            line = engine.line_of(engine.limits_of(model.name, model.family))
            both, ranks = "{ranks}" in line.axes.get("adp", ""), plan.expert_ranks
            told = [
                axis
                for axis in plan.axes
                if not (both and plan.degree("adp") > 1 and axis[0] == "tp")
            ]
            flags = [line.axes[name].format(n=degree, ranks=ranks) for name, degree in told]
            assert all(flag in one.line for flag in flags)
            assert plan.vae == 1 or line.vae.format(n=vae) in one.line
            assert plan.ep == 1 or line.ep.format(n=ep) in one.line


@pytest.mark.parametrize("engine", EVERY, ids=lambda engine: f"{engine.title} {engine.version}")
def test_engines_name_their_source_and_known_axes(engine):
    several, lines = engine.several_hosts, (engine.line, *engine.lines.values())
    assert engine.source.strip()
    assert engine.runtime in RUNTIMES
    assert bool(several.command) != bool(several.reason)
    assert set(several.never) <= set(engine.line.axes)
    precisions = {*get_args(Precision), "int4", "mxfp4"}
    for line in lines:
        assert set(line.axes) <= set(axes())
        assert set(line.runtimes) <= set(RUNTIMES) - {engine.runtime}
        others = {"kv", "mtp", "draft", "copies"}
        assert set(line.precision) | set(line.untold) <= {*precisions, *SIZES, *axes(), *others}
        assert set(line.speculation) <= {"mtp", "draft"}
        assert {*line.sizes, *line.request, *line.video} <= set(SIZES)
        assert set(line.attention) <= set(KERNELS)
    for limits in (engine.limits, *engine.models.values()):
        flagged = set(engine.line_of(limits).axes)
        assert set(limits.axes or ()) | set(limits.degrees) <= flagged
        assert set(limits.divide) <= set(DIVISIONS)
        words = {*axes(), *precisions, *KERNELS, "offload", "speculation"}
        assert {*limits.alone, *(n for names in limits.alone.values() for n in names)} <= words
        assert set(limits.lacks) <= {*axes(), *precisions, *SIZES}
        assert set(limits.precisions or ()) <= precisions


@pytest.mark.parametrize("engine", ENGINES.engines, ids=lambda engine: engine.title)
def test_all_that_an_engine_is_told_has_a_source(engine):
    told = ("sizes", "request", "precision", "offload", "after", "speculation")
    given = {name for name in told if getattr(engine.line, name)}
    every = (engine.limits, *engine.models.values())
    limited = {name for name in ("divide", "alone") if any(getattr(one, name) for one in every)}

    assert given | limited | {"runtime", "several_hosts"} <= set(engine.sources)
    assert not engine.models or "models" in engine.sources
    assert not engine.line.attention or "attention_flags" in engine.sources
    assert not engine.limits.named or "named" in engine.sources
    assert all(text.strip() for text in engine.sources.values())


def test_engines_run_families_and_models_that_exist():
    known = {*names(), *(read_model(name).family for name in names()), "any"}

    for engine in EVERY:
        assert set(engine.models) <= known


def test_repositories_are_of_models_in_the_catalogue():
    assert set(repositories().values()) == set(names())
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", repository) for repository in repositories())


def test_a_model_of_no_repository_is_run_by_its_own_name():
    mine = replace(asked("flux.1-dev").model, name="my-flux", repository="")
    found = {one.engine: one for one in launches(ENGINES, mine, parse_plan("tp2"))}

    assert found["vLLM-Omni"].line.startswith("vllm serve my-flux ")
    assert found["xDiT"].reason == "does not know my-flux by name"


MINE = """
title = "Mine"
kind = "diffusion"
source = "a test"
runtime = "torch-eager"
[line]
command = "run {repo} on {gpus}"
[line.axes]
tp = "-t {n}"
[limits.degrees]
tp = [2, 4]
[habits]
code = "diffusers"
[habits.attention.any]
hopper = "fa3"
"""


def test_a_table_of_engines_is_read_as_written():
    found = load_engines({"mine": tomllib.loads(MINE.replace('code = "diffusers"', ""))})

    (one,) = launches(found, asked("flux.1-dev").model, parse_plan("tp4"))
    line = "run black-forest-labs/FLUX.1-dev on 4 -t 4"
    assert one.to_dict() == {"engine": "Mine", "line": line, "runtime": "torch-eager"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[line]", "[lane]", "mine: expected .*, got lane too"),
        ("[line]", "[lines]", "mine.lines.command: expected a table, got 'run "),
        ("command =", "commando =", "mine.line: expected .*, got commando too"),
        ('title = "Mine"', "", "mine: .*title"),
    ],
)
def test_a_file_that_is_none_of_an_engine_is_refused(old, new, said):
    text = MINE.replace(old, new).replace('code = "diffusers"', "")
    with pytest.raises(CatalogueError, match=said):
        load_engines({"mine": tomllib.loads(text)})


def test_an_engine_is_added_by_one_file(tmp_path, monkeypatch):
    """Its launch line, what it refuses, and a price by its habits."""
    for path in tables.ENGINES.glob("*.toml"):
        (tmp_path / path.name).write_text(path.read_text("utf-8"))
    (tmp_path / "mine.toml").write_text(MINE)
    both = tables.engines(tmp_path)
    monkeypatch.setattr(tables, "engines", lambda: both)
    monkeypatch.setattr(scenarios, "engines", lambda: both)
    monkeypatch.setattr(launching, "engines", lambda: both)
    request = Request(model="flux.1-dev", gpus=4, engine="mine", runtime="torch-eager")
    scenario = resolve(request)

    answer = recommend_plans(scenario)
    line = next(one.line for one in answer.launch if one.engine == "Mine")
    assert line == "run black-forest-labs/FLUX.1-dev on 4 -t 4"
    assert str(answer.lead.plan) == "tp4"
    reasons = {str(one.plan): one.reason for one in answer.refusals}
    assert reasons["ulysses4"] == "has no ulysses axis"
    assert refusal(scenario, parse_plan("tp8")) == "tp of 8: expected one of 2, 4"
    other = resolve(replace(request, engine="diffusers"))
    assert scenario.deployment.attention_of(scenario.model) == "fa3"
    ours, theirs = (price(one, parse_plan("tp4")) for one in (scenario, other))
    assert ours.breakdown_s["attention"] < theirs.breakdown_s["attention"]
    assert ours.latency_s < theirs.latency_s  # the code of diffusers, without its collectives


@pytest.mark.parametrize(
    ("text", "of_one"), [("dp2.adp4.tp2/ep8", "adp4.tp2/ep8"), ("dp2.tp8", "tp8")]
)
def test_a_copy_with_experts_of_its_own_is_started_as_if_it_were_alone(text, of_one):
    """A group of vLLM's data parallelism shares experts; a copy on one host needs no address."""

    def line(plan):
        parsed = parse_plan(plan)
        scenario = asked("deepseek-v3", parsed.gpus, engine="vllm", hardware="h200-sxm")
        return launching.launch_of(scenario, tables.find_engine("vllm"), parsed)

    two, one = line(text), line(of_one)
    assert two.command == one.command
    assert "HOST" not in two.command
    assert any("start 2 of these" in note for note in two.notes)
