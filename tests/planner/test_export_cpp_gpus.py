"""The exported runner in C++ on two GPUs: CUDA, NCCL and MPI are real, and TensorRT is a stand-in.

Each engine that takes a communicator doubles a number whenever it is started.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from importlib.util import find_spec

import pytest
from cppengines import STUBS, export, own_headers, write_sources


def gpus():
    tool = shutil.which("nvidia-smi")
    if tool is None or find_spec("nvidia") is None or find_spec("nvidia.nccl") is None:
        return 0
    said = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout
    return said.count("GPU ")


OWN = own_headers()
TOOLS = "nccl.h" in OWN and all(shutil.which(tool) for tool in ("g++", "mpicxx", "mpirun"))
pytestmark = pytest.mark.skipif(
    not TOOLS or gpus() < 2, reason="needs two GPUs, CUDA, a C++ compiler, MPI and NCCL"
)


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpp")
    write_sources(folder)
    for path in STUBS.glob("NvInfer*.h"):
        shutil.copy(path, folder)
    cuda, nccl = (OWN[name].parent for name in ("cuda_runtime_api.h", "nccl.h"))
    places = [cuda / "lib64", cuda / "lib", nccl / "lib"]
    words = ["mpicxx", "-std=c++17", "-pthread", "-DSTUB_COLLECTIVES", f"-I{folder}"]
    words += [f"-I{cuda}/include", f"-I{nccl}/include", "runner.cpp", "-o", "runner"]
    words += [word for place in places for word in (f"-L{place}", f"-Wl,-rpath,{place}")]
    subprocess.run([*words, "-lcudart", "-l:libnccl.so.2"], cwd=folder, check=True)
    return folder / "runner"


@pytest.mark.parametrize("graph", [False, True], ids=["calls", "graph"])
@pytest.mark.parametrize("text", ["tp2", "cfg2", "pp2"])
def test_two_ranks_meet_in_every_collective(binary, tmp_path, text, graph):
    folder = export(tmp_path / "out", "wan2.1-1.3b", text)

    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", str(binary)]
    words += [str(folder), *(["--graph"] if graph else [])]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=180, env=dict(os.environ)
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    started = Counter(words[1] for words in lines if words[:1] == ["enqueue"])
    sums = [(words[1], float(words[2])) for words in lines if words[:1] == ["sum"]]
    assert len(sums) >= (0 if text == "pp2" else 2)  # stages send, and meet in no collective
    for file, total in sums:
        ranks = sum(other == file for other, _ in sums)
        assert total == 2.0 ** (started[file] / ranks)
    assert all((folder / "results" / f"output.rank{rank}.bin").exists() for rank in range(2))
