"""The runner on two GPUs, with CUDA and NCCL; TensorRT's own kernels need a machine with it."""

import multiprocessing
from importlib.util import find_spec

import numpy as np
import pytest
import testmodels
from engineruns import setup
from gpuruns import LIMIT_S, one_rank

from planner.strategies import parse_plan
from validate.reference import run_plan


def gpus():
    if find_spec("nccl") is None or find_spec("cuda") is None:
        return 0
    try:
        from cuda.bindings import runtime
    except ImportError:
        return 0
    return runtime.cudaGetDeviceCount()[1] or 0


pytestmark = pytest.mark.skipif(gpus() < 2, reason="needs two GPUs, cuda-bindings and nccl4py")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("flux", "ulysses2"),
        ("flux", "tp2"),
        ("wan", "allgather_kv2"),
        ("cosmos3", "cfg2"),
        ("sound", "dp2"),
        ("experts", "tp2"),
        ("flux", "pp2"),
        ("wan", "pp2"),
        ("llama", "pp2"),
    ],
)
def test_two_gpus_give_the_unsplit_result(model, text):
    described = getattr(testmodels, model)
    whole = run_plan(described, testmodels.workload(described, batch=2), parse_plan("single"))[0]
    made = setup(described, text)
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    ranks = [
        spawn.Process(target=one_rank, args=(rank, made.port, model, text, answers))
        for rank in range(2)
    ]
    for one in ranks:
        one.start()
    found = [answers.get(timeout=2 * LIMIT_S) for _ in ranks]
    for one in ranks:
        one.join(LIMIT_S)

    assert sorted(rank for rank, *_ in found) == [0, 1]
    for rank, output, bound, steps in found:
        assert not isinstance(output, str), f"rank {rank}: {output}"
        first = made.order["ranks"][rank]["sample"]
        want = whole[first : first + len(output)]
        np.testing.assert_allclose(output, want, atol=2e-4 * np.abs(whole).max())
        assert steps == made.order["steps"]
        assert bound == sum(bool(document["collectives"]) for document in made.documents)
