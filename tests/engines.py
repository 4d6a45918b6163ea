"""TensorRT's own builder for tests; a module that imports this is skipped where there is none.

TensorRT-RTX builds for a GPU that is not there when it is told its compute capability.
"""

import pytest
import testmodels

from planner.search.plans import objections
from planner.strategies import parse_plan
from planner.tensorrt import arrays_of, document_of
from planner.tensorrt.runner.build import Log, Options, logger
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.layers import Share
from planner.tensorrt.runner.library import is_rtx, load
from planner.tensorrt.runner.weights import drawn
from planner.tensorrt.schedule import networks_of_stages, programs_of

try:
    TRT = load()
except RunError:
    pytest.skip("neither TensorRT nor TensorRT-RTX is installed", allow_module_level=True)
if not is_rtx(TRT):
    pytest.skip("TensorRT builds on a machine with a GPU only", allow_module_level=True)


def _refused(thing):
    raise AssertionError(f"the truth of {type(thing).__name__} was asked for")


for kind in (TRT.INetworkDefinition, TRT.ILayer, TRT.ITensor, TRT.IBuilderConfig):
    kind.__bool__ = _refused  # a network without layers is false, as its length is
FAST = Options(level=0, capability="SM120")


def written(model, text, recipe, **changes):
    plan = parse_plan(text)
    alone = {"passes": 1, "output_tokens": 0} if model.kind == "decoder" else {}
    work = testmodels.workload(model, batch=2, **{**alone, **changes})
    staged = model.kind == "decoder" and plan.degree("pp") > 1
    if staged or any(objections(model, work, plan, plan.gpus)):
        pytest.skip("illegal for this model")
    return networks_of_stages(programs_of(model, work, plan), recipe)


def share(network, rank=0, weights=None):
    return Share(
        document=document_of(network),
        arrays=arrays_of(network),
        weights=weights or drawn(),
        rank=rank,
    )


def fresh():
    builder = TRT.Builder(logger(TRT, Log()))
    typed = 1 << int(TRT.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    return builder, builder.create_network(typed)
