"""Every plan that is called runnable builds, at reduced depth and width."""

import json

import pytest
from engines import FAST, TRT, share

from planner.models import read_model
from planner.request.request import Request
from planner.runners.refusal import tensorrt_refusal
from planner.scenario.scenario import resolve
from planner.search.plans import objections, plans
from planner.tensorrt import Recipe, document_of, written
from planner.tensorrt.runner.build import build
from validate.reference import shrink

MODELS = ["flux.1-dev", "wan2.1-1.3b", "hunyuanvideo", "cosmos3", "llama-3.1-8b"]


def asked(name, gpus, **options):
    decoder = read_model(name).kind == "decoder"
    return Request(model=name, gpus=gpus, output_tokens=1 if decoder else None, **options)


def runnable(request):
    """Plans of a request that the planner says TensorRT can run."""
    scenario = resolve(request)
    model, work = scenario.model, scenario.workload
    for plan in plans(model, request.gpus):
        illegal = any(objections(model, work, plan, request.gpus))
        if not illegal and not tensorrt_refusal(scenario, plan):
            yield model, work, plan


def build_all(found, precision="bf16"):
    """Build what export writes of plans, what several plans share once; return how many."""
    done = set()
    for model, work, plan in found:
        small, shrunk = shrink(model, work, plan)
        recipe = Recipe(layers=1, precision=precision, numerics=small.numerics)
        for network in written(small, shrunk, plan, recipe)[0]:
            what = json.dumps(document_of(network), sort_keys=True)
            if what not in done:
                assert build(TRT, share(network), FAST).plan, f"{plan}: {network.name}"
            done.add(what)
    return len(done)


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("name", MODELS)
def test_every_plan_that_is_called_runnable_builds(name, gpus):
    """Eight GPUs have every axis, alone and nested in every way of two and three."""
    found = list(runnable(asked(name, gpus)))

    assert found
    build_all(found)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp8"},
        {"precision": "nvfp4"},
        {"precision": "int8"},
        {"precision": "fp16"},
        {"batch": 3},
        {"wide_collectives": True},
        {"scattered_inputs": True},
        {"text_tokens": 77},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
@pytest.mark.parametrize("name", ["flux.1-dev", "wan2.1-1.3b", "cosmos3", "llama-3.1-8b"])
def test_so_do_those_of_other_requests(name, options):
    """Of every axis alone: what a request changes, it changes in each layer by itself."""
    if "text_tokens" in options and read_model(name).kind == "decoder":
        pytest.skip("a decoder's text is its request")
    request = asked(name, 2, hardware="b200", **options)

    assert build_all(runnable(request), request.precision)


@pytest.mark.parametrize("tower", ["once", "every_step"])
def test_so_do_those_of_a_text_tower(tower):
    assert build_all(runnable(asked("cosmos3", 4, text_tower=tower)))


def test_so_do_those_of_more_ranks_than_key_value_heads():
    found = [one for one in runnable(asked("llama-3.1-8b", 16)) if str(one[2]) == "tp16"]

    assert found
    build_all(found)


def test_hybrids_are_among_them():
    texts = {name: {str(one[2]) for one in runnable(asked(name, 4))} for name in MODELS}

    assert {"cfg2.ulysses2", "cfg2.tp2", "cfg2.allgather_kv2"} <= texts["wan2.1-1.3b"]
    assert {"cfg2.ulysses2", "cfg2.tp2", "cfg2.allgather_kv2"} <= texts["cosmos3"]
    for name in MODELS[:-1]:
        assert {"ulysses2.tp2", "ulysses2.allgather_kv2", "allgather_kv2.tp2"} <= texts[name]
