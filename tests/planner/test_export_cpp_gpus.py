"""The exported runner in C++ on two GPUs: CUDA, NCCL and MPI are real, and TensorRT is a stand-in.

Each engine that takes a communicator doubles a number whenever it is started.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from cppengines import write_engines

from planner.export.files import write_folder
from planner.export.tables import cpp
from planner.export.tensorrt import tensorrt_folder
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import parse_plan
from validate.reference import shrink

STUB = Path(__file__).parent.parent / "cppstubs" / "NvInfer.h"


def gpus():
    tool = shutil.which("nvidia-smi")
    if tool is None or find_spec("nvidia") is None or find_spec("nvidia.nccl") is None:
        return 0
    said = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout
    return said.count("GPU ")


def toolkit():
    """Folder of CUDA's headers, which lies beside its compiler or where it is usually put."""
    found = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    found += [str(Path(shutil.which("nvcc") or "/").resolve().parent.parent)]
    return next(
        (Path(one) for one in found if (Path(one) / "include/cuda_runtime_api.h").is_file()), None
    )


TOOLS = toolkit() is not None and all(shutil.which(tool) for tool in ("g++", "mpicxx", "mpirun"))
pytestmark = pytest.mark.skipif(
    not TOOLS or gpus() < 2, reason="needs two GPUs, CUDA, a C++ compiler, MPI and NCCL"
)


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "runner.cpp").write_bytes(cpp()["runner.cpp"])
    shutil.copy(STUB, folder)
    cuda = toolkit()
    nccl = Path(next(iter(find_spec("nvidia.nccl").submodule_search_locations)))
    places = [cuda / "lib64", nccl / "lib"]
    words = ["mpicxx", "-std=c++17", "-pthread", "-DSTUB_COLLECTIVES", f"-I{folder}"]
    words += [f"-I{cuda}/include", f"-I{nccl}/include", "runner.cpp", "-o", "runner"]
    words += [word for place in places for word in (f"-L{place}", f"-Wl,-rpath,{place}")]
    subprocess.run([*words, "-lcudart", "-l:libnccl.so.2"], cwd=folder, check=True)
    return folder / "runner"


@pytest.mark.parametrize("graph", [False, True], ids=["calls", "graph"])
@pytest.mark.parametrize("text", ["tp2", "cfg2"])
def test_two_ranks_meet_in_every_collective(binary, tmp_path, text, graph):
    scenario, plan = resolve(Request(model="wan2.1-1.3b", gpus=2)), parse_plan(text)
    model, workload = shrink(scenario.model, scenario.workload, plan)
    little = replace(scenario, model=model, workload=workload)
    folder = write_folder(tensorrt_folder(little, price(little, plan)), str(tmp_path / "out"))
    write_engines(folder)

    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", str(binary)]
    words += [str(folder), *(["--graph"] if graph else [])]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=180, env=dict(os.environ)
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    started = Counter(words[1] for words in lines if words[:1] == ["enqueue"])
    sums = [(words[1], float(words[2])) for words in lines if words[:1] == ["sum"]]
    assert len(sums) >= 2
    for file, total in sums:
        ranks = sum(other == file for other, _ in sums)
        assert total == 2.0 ** (started[file] / ranks)
    assert all((folder / "results" / f"output.rank{rank}.bin").exists() for rank in range(2))
