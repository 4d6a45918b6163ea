"""How to run a plan: a line that says all of it, or the reason why there is none."""

from dataclasses import replace

import pytest
from generators import asked
from hypothesis import given
from hypothesis import strategies as st

from planner.catalogue import engines
from planner.launch import launches, load_engines
from planner.models import names, read_model
from planner.plan import AXES, Plan, parse_plan

ENGINES = engines()
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
            "xdit --model nvidia/Cosmos3-Nano --use_cfg_parallel --ulysses_degree 4",
        ),
        (
            "flux.1-dev",
            "ulysses2.ring2",
            "SGLang Diffusion",
            (
                "sglang generate --model-path black-forest-labs/FLUX.1-dev --num-gpus 4 "
                "--ulysses-degree 2 --ring-degree 2"
            ),
        ),
        (
            "flux.1-dev",
            "tp8",
            "TensorRT Model Connect",
            "trtmc build black-forest-labs/FLUX.1-dev --tensor-parallel-size 8",
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
        ("cosmos3-nano", "ulysses8", "diffusers", "does not run the cosmos3 family"),
        ("flux.1-dev", "pp2.tp4", "xDiT", "has no pp axis"),
        ("flux.1-dev", "ulysses8/vae8", "SGLang Diffusion", "has no parallel VAE decode"),
        ("llama-3.1-70b", "dp2.tp4", "TensorRT-LLM", "has no dp axis"),
    ],
)
def test_what_an_engine_cannot_run_has_a_reason(model, plan, engine, reason):
    found = said(model, plan)[engine]

    assert found.line == ""
    assert reason in found.reason


def test_a_parallel_decode_is_asked_for():
    assert said("flux.1-dev", "ulysses8/vae8")["xDiT"].line.endswith("--use_parallel_vae")


@given(
    model=st.sampled_from(MODELS),
    axes=st.lists(st.sampled_from(AXES), unique=True, max_size=3),
    degrees=st.lists(st.sampled_from([2, 3, 4, 8]), min_size=3, max_size=3),
    vae=st.sampled_from([1, 1, 2]),
)
def test_a_line_says_every_degree_or_there_is_none(model, axes, degrees, vae):
    """A plan that cannot be told in full is refused, never told in part."""
    plan = Plan(tuple(zip(axes, degrees, strict=False)), vae)
    for one in launches(ENGINES, read_model(model), plan):
        assert bool(one.line) != bool(one.reason)
        assert "{" not in one.line
        engine = next(engine for engine in ENGINES.engines if engine.title == one.engine)
        if one.line:
            flags = [engine.axes[name].format(n=degree) for name, degree in plan.axes]
            assert all(flag in one.line for flag in flags)
            assert plan.vae == 1 or engine.vae.format(n=vae) in one.line


@pytest.mark.parametrize("engine", ENGINES.engines, ids=lambda engine: engine.title)
def test_engines_name_their_source_and_known_axes(engine):
    assert engine.source.strip()
    assert set(engine.axes) <= set(AXES)
    assert set(engine.only) <= set(engine.axes)
    assert set(engine.alone) <= set(engine.axes)


def test_engines_run_families_that_exist():
    known = {read_model(name).family for name in names()}
    named = {family for engine in ENGINES.engines for family in engine.families}

    assert named <= known


def test_repositories_are_of_models_in_the_catalogue():
    assert set(ENGINES.repositories) <= set(names())


def test_a_model_of_a_file_is_run_by_its_own_name():
    mine = replace(asked("flux.1-dev").model, name="my-flux")

    assert launches(ENGINES, mine, parse_plan("ulysses2"))[0].line.startswith(
        "xdit --model my-flux "
    )


def test_a_table_of_engines_is_read_as_written():
    found = load_engines("""
[mine]
title = "Mine"
kind = "diffusion"
source = "a test"
command = "run {repo} on {gpus}"
[mine.axes]
tp = "-t {n}"
[repositories]
"flux.1-dev" = "flux"
""")

    (one,) = launches(found, asked("flux.1-dev").model, parse_plan("tp4"))
    assert one.to_dict() == {"engine": "Mine", "line": "run flux on 4 -t 4"}
