"""What exported folders are filled with and ships with the planner; read here, nowhere else."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from topology.base import shipped_table

RUNNER: Final = "planner.tensorrt.runner"


@cache
def runner() -> Mapping[str, bytes]:
    """Read the sources of the runner by file name, made to be a package of its own."""
    sources = {}
    for file in files(RUNNER).iterdir():
        if file.name.endswith(".py"):
            text = file.read_text(encoding="utf-8").replace(RUNNER, "runner")
            sources[file.name] = text.encode()
    return sources


@cache
def cpp() -> Mapping[str, bytes]:
    """Read the sources of the builder and the runner in C++."""
    folder = files("planner.export").joinpath("cpp")
    names = ("builder.cpp", "common.h", "runner.cpp", "CMakeLists.txt")
    return {name: folder.joinpath(name).read_bytes() for name in names}


@cache
def checkpoints() -> Mapping[str, Mapping[str, object]]:
    """Read which tensors of published checkpoints make up each weight, by model family."""
    return shipped_table(files("planner.export").joinpath("data", "checkpoints.toml"))
