"""A rank of the runner on a GPU: CUDA and NCCL are real, and only TensorRT itself is made up.

Engines are evaluated on the host, layer by layer; each collective goes through the communicator
that the runner handed over.
"""

import time
import types
from ctypes import CDLL, c_char_p, c_int, c_size_t, c_void_p, py_object, pythonapi
from dataclasses import replace

import faketensorrt as fake
import numpy as np
import testmodels
from engineruns import Quiet, job, setup

from planner.tensorrt.runner.connections import join
from planner.tensorrt.runner.device import open_cuda, open_nccl
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.run import Parts, run

FLOAT, SUM = 7, 0
LIMIT_S = 60


class Gpu:
    """A GPU whose stream is waited for before the host reads what was put on it."""

    def __init__(self, number):
        self.cuda = open_cuda(number)
        self.works, self.wanted = [], []

    def __getattr__(self, name):
        return getattr(self.cuda, name)

    def put(self, work):
        self.wait()
        work()

    def wait(self):
        until = time.monotonic() + LIMIT_S
        while not self.cuda.idle():
            assert time.monotonic() < until, "the stream is stuck"


class Wire:
    """A communicator of NCCL, as it was handed to an engine."""

    def __init__(self, capsule, gpu):
        get = pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = c_void_p, [py_object, c_char_p]
        self.pointer, self.gpu, self.nccl = get(capsule, b"ncclComm_t"), gpu, CDLL("libnccl.so.2")
        self.bound = types.SimpleNamespace(wait=lambda seconds: seconds)

    def exchange(self, rank, message):
        del rank
        ranks, given = len(message.members), np.ascontiguousarray(message.given, np.float32)
        shape = list(given.shape)
        sized = {"all_gather": shape[0] * ranks, "reduce_scatter": shape[0] // ranks}
        shape[0] = sized.get(message.operation, shape[0])
        made = np.empty(shape, np.float32)
        source, target = (self.gpu.allocate(array.nbytes) for array in (given, made))
        self.gpu.upload(source, given)
        self.call(message.operation, source, target, given.size, made.size, ranks)
        self.gpu.wait()
        self.gpu.download(target, made)
        return made.astype(np.float64)

    def call(self, operation, source, target, given, made, ranks):
        sides, ends = (c_void_p(source), c_void_p(target)), (c_void_p(self.pointer),)
        ends += (c_void_p(self.gpu.stream),)
        summed = (c_int(FLOAT), c_int(SUM), *ends)
        match operation:
            case "all_reduce":
                code = self.nccl.ncclAllReduce(*sides, c_size_t(given), *summed)
            case "all_gather":
                code = self.nccl.ncclAllGather(*sides, c_size_t(given), c_int(FLOAT), *ends)
            case "reduce_scatter":
                code = self.nccl.ncclReduceScatter(*sides, c_size_t(made), *summed)
            case "all_to_all":
                each = c_size_t(given // ranks)
                code = self.nccl.ncclAlltoAll(*sides, each, c_int(FLOAT), *ends)
        assert code == 0, f"{operation}: NCCL says {code}"


def one_rank(rank, port, model, text, answers):
    """Run a rank in a process of its own, as `python -m runner` does."""
    made = setup(getattr(testmodels, model), text)
    made = replace(made, port=port, limits=replace(made.limits, meet_s=LIMIT_S, bind_s=LIMIT_S))
    gpu, world = Gpu(rank), fake.World()
    world.named = lambda capsule: Wire(capsule, gpu)
    try:
        ranks = len(made.order["ranks"])
        connections = join(rank, ranks, ("127.0.0.1", port), made.limits.meet_s, "plan")
        library, nccl = fake.library(world, gpu), open_nccl()
        parts = Parts(
            library=library, device=gpu, nccl=nccl, connections=connections, guard=Quiet([])
        )
        found = run(job(made, rank), parts)
        connections.close()
        answers.put((rank, found.output, found.bound, len(found.seconds)))
    except (RunError, AssertionError) as error:
        answers.put((rank, repr(error), 0, 0))
