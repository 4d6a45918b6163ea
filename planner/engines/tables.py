"""Tables that ship with the planner. Nothing else in this folder touches a packaged file."""

from functools import cache
from importlib.resources import files

from planner.engines.launch import Engine, Engines, load_engines
from planner.engines.tensorrt_table import Allowed, load_allowed
from planner.request.request import EXECUTOR
from topology.base import unknown


@cache
def engines() -> Engines:
    """Read `data/engines.toml`, once."""
    text = files("planner.engines").joinpath("data", "engines.toml").read_text(encoding="utf-8")
    return load_engines(text)


def engine(name: str) -> Engine:
    """Look up an engine by name or title.

    Raises
    ------
    InputError
        If there is no engine of that name.
    """
    known = engines()
    found = known.named(name)
    if found is None:
        raise unknown("engine", name, (*(one.name for one in known.engines), EXECUTOR))
    return found


def engine_name(text: str) -> str:
    """Give the name of the engine that is meant, the executor of ``planner validate`` included.

    Raises
    ------
    InputError
        If there is no engine of that name.

    >>> engine_name("vLLM-Omni"), engine_name("planner")
    ('vllm-omni', 'planner')
    """
    return EXECUTOR if text.casefold() == EXECUTOR else engine(text).name


@cache
def allowed() -> Allowed:
    """Read what TensorRT allows, once."""
    return load_allowed(
        files("planner.engines").joinpath("data", "tensorrt.toml").read_text("utf-8")
    )
