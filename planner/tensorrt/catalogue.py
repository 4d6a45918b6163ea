"""The tables about TensorRT that ship with the planner. Nothing else here touches a file."""

from functools import cache
from importlib.resources import files

from planner.tensorrt.allowed import Allowed, load_allowed


@cache
def allowed() -> Allowed:
    """Read what TensorRT allows, once."""
    return load_allowed(files("planner").joinpath("data", "tensorrt.toml").read_text("utf-8"))
