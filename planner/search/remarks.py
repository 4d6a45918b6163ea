"""What to know of a legal plan beside its time: where engines part ways over it."""

from collections.abc import Iterator
from math import gcd

import numpy as np

from planner.models.architecture import Kind, Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import allgather_kv, tensor

_DECODERS = (
    ", as LMDeploy does; vLLM, SGLang on GPUs and TensorRT-LLM refuse widths that do not divide"
)
_OTHERS = "; vLLM-Omni and SGLang refuse widths that do not divide"


def throughput_remark(kind: Kind, batch: int, gpus: int) -> Iterator[str]:
    """Yield what results a second are of, where a batch of another size would change them.

    >>> next(throughput_remark("diffusion", 4, 8)).partition(";")[0]
    'throughput is at batch 4, which dp splits: dp4 at most'
    """
    most = gcd(batch, gpus)
    split = f", which dp splits: dp{most} at most" if most > 1 else ""
    if kind == "decoder":
        yield f"throughput is at batch {batch}{split}; a larger --batch may serve more a second"
    elif batch > 1 and batch % gpus:
        yield (
            f"throughput is at batch {batch}{split}; at batch 1 each replica serves a request of "
            "its own, which may be more a second"
        )


def context_remark(model: Model, workload: Workload) -> Iterator[str]:
    """Yield how far a request goes beyond the positions that a model was trained on, if it does.

    >>> from planner.models import read_model
    >>> one = Workload(tokens=(("tokens", 40000),), output_tokens=1000)
    >>> next(context_remark(read_model("qwen3-8b"), one))
    'the context of qwen3-8b is 40,960 tokens, 41,000 are asked for: engines refuse, or stretch it'
    """
    if model.kind != "decoder" or not model.context:
        return
    length = int(np.max(workload.length(model.streams[0].name)))
    asked = length + int(np.max(workload.output_tokens))
    if asked > model.context:
        yield (
            f"the context of {model.name} is {model.context:,} tokens, {asked:,} are asked for: "
            "engines refuse, or stretch it"
        )


def remarks(model: Model, plan: Plan) -> Iterator[str]:
    """Yield what is done to make a plan legal, and who else does so, a sentence each."""
    degree = plan.degree(tensor.AXIS)
    for width, padded in tensor.padded_widths(model, degree).items():
        who = _DECODERS if model.kind == "decoder" else _OTHERS
        yield f"the FFN width {width} is padded with zeros to {padded} for tp{degree}{who}"
    towers = [tower for block in model.blocks for tower in block.towers]
    linear = any(tower.mixer == "relu_linear" for tower in towers)
    if linear and plan.degree(allgather_kv.AXIS) > 1:
        yield (
            "allgather_kv of linear attention adds up sums over keys and values by an all-reduce, "
            "as vLLM-Omni does for SANA-Video; xDiT has ring and ulysses"
        )
