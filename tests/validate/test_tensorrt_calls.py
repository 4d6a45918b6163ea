"""Recorded calls are all that an engine is made of: made again, they build the same one."""

from dataclasses import replace

import pytest
import testmodels
from engines import FAST, TRT, share, written
from faketensorrt import learned_drawn
from replay import replay

from planner.tensorrt import Recipe
from planner.tensorrt.runner.build import Log, Options, build, logger
from planner.tensorrt.runner.calls import Recorder


@pytest.mark.parametrize(
    ("model", "text", "more"),
    [
        (testmodels.flux, "cfg2.ulysses2.tp2", {}),
        (testmodels.wan, "allgather_kv2.ulysses2", {}),
        (testmodels.llama, "tp2", {"output_tokens": 3}),
        (testmodels.experts, "tp2", {}),
        (testmodels.sana, "ulysses2", {}),
        (testmodels.flux, "pp2.tp2", {}),
        (testmodels.wan, "tp2", {"precision": "fp8"}),
        (testmodels.flux, "tp2", {"precision": "nvfp4"}),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_calls_made_again_build_the_same_engine(model, text, more):
    recipe = Recipe(layers=1, precision=more.get("precision", "bf16"))
    for network in written(model, text, recipe, **more):
        one = replace(share(network, network.ranks - 1), learned=learned_drawn())
        numbers = []
        calls = build(Recorder(numbers.append), one, Options(level=FAST.level)).plan.decode()
        builder = TRT.Builder(logger(TRT, Log()))

        again = replay(TRT, builder, calls, b"".join(numbers), FAST.capability)

        assert again == build(TRT, one, FAST).plan
