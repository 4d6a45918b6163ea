"""Small exported folders with stand-ins for engines of the runner in C++.

An engine is lines of what it says of itself.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from planner.export.files import write_folder
from planner.export.tables import cpp
from planner.export.tensorrt import tensorrt_folder
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import parse_plan
from validate.reference import shrink

BYTES = 1000
"""What the first engine of a folder works in; each further one a byte more."""


STUBS = Path(__file__).parent / "cppstubs"
COMPILER = shutil.which("g++")
STRICT = [
    "-std=c++17", "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wsign-conversion",
    "-Wnon-virtual-dtor", "-Werror",
]  # fmt: skip
SANITIZERS = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
"""Reads and writes beyond a buffer, what is undefined, and what is never freed end the run."""


def own_headers():
    """Folders of libraries' own headers, by what each is known by, of those that are here.

    TensorRT's lie in no wheel, but in its archives and its repository: TENSORRT_ROOT says where.
    """
    spec = find_spec("nvidia")
    wheels = [Path(place) for place in spec.submodule_search_locations] if spec else []
    cuda = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", *(one / "cu13" for one in wheels)]
    places = {
        "NvInfer.h": [os.environ.get("TENSORRT_ROOT", ""), "/usr", "/usr/local/tensorrt"],
        "cuda_runtime_api.h": [root for root in cuda if Path(root, "include/nv/target").is_file()],
        "nccl.h": [os.environ.get("NCCL_ROOT", ""), "/usr", *(one / "nccl" for one in wheels)],
        "mpi.h": [sys.prefix],
    }
    inner = ["include", f"include/{platform.machine()}-linux-gnu"]
    found = {
        name: Path(root, inside)
        for name, roots in places.items()
        for root, inside in product(reversed(roots), inner)
        if str(root) and Path(root, inside, name).is_file()
    }
    if "cuda_runtime_api.h" not in found:
        found.pop("nccl.h", None)  # which reads CUDA's
    return found


def write_sources(folder):
    """Write the C++ sources of an exported folder."""
    for name, source in cpp().items():
        (folder / name).write_bytes(source)


def compiled(folder, program):
    """Compile a program on stand-ins, with sanitizers; return its path."""
    write_sources(folder)
    words = [*STRICT, *SANITIZERS, f"-I{STUBS}", f"{program}.cpp", "-o", program]
    subprocess.run([COMPILER, *words], cwd=folder, check=True)
    return folder / program


def export(path, model, text, **asked):
    """Write the folder of a small model, and its engines."""
    plan = parse_plan(text)
    scenario = resolve(Request(model=model, gpus=plan.gpus, **asked))
    small, work = shrink(scenario.model, scenario.workload, plan)
    work = replace(work, output_tokens=scenario.workload.output_tokens)
    little = replace(scenario, model=small, workload=work)
    folder = write_folder(tensorrt_folder(little, price(little, plan)), str(path))
    write_engines(folder)
    return folder


def write_engines(folder, **tensors):
    """Write a stand-in for each engine of a folder, for several devices only by its layers.

    tensors : more that an engine has, by its network's name.
    """
    (folder / "engines").mkdir(exist_ok=True)
    plan = json.loads((folder / "plan.json").read_text())
    for number, engine in enumerate(plan["engines"]):
        document = json.loads((folder / "networks" / f"{engine['name']}.json").read_text())
        sides = [document[side] for side in ("inputs", "tables", "outputs")]
        own = [one["name"] for side in sides for one in side] + tensors.get(engine["name"], [])
        for file in engine["files"]:
            about = [file.split("/")[1], str(ranks_of(document)), str(BYTES + number)]
            (folder / file).write_text("\n".join([*about, *own]))


def ranks_of(document):
    """Count the ranks of the layer that has most, as TensorRT does when it loads an engine."""
    return max((layer.get("ranks", 1) for layer in document["layers"]), default=1)
