"""Tables that ship with the planner. Nothing else in this folder touches a packaged file."""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from planner.engines.engine import Engine, Engines, load_engines
from planner.engines.tensorrt_table import Allowed, load_allowed
from planner.request.request import EXECUTOR
from topology.base import unknown

DATA = files("planner.engines").joinpath("data")
ENGINES = DATA.joinpath("engines")


@cache
def engines(folder: Traversable = ENGINES) -> Engines:
    """Read the engines of a folder, once; each has a file of its own, named after it."""
    texts = {
        path.name.removesuffix(".toml"): path.read_text("utf-8")
        for path in folder.iterdir()
        if path.name.endswith(".toml")
    }
    return load_engines(texts)


def find_engine(name: str) -> Engine:
    """Look up an engine by name or title.

    Raises
    ------
    InputError
        If there is no engine of that name.
    """
    listed = engines()
    engine = listed.named(name)
    if engine is None:
        raise unknown("engine", name, (*(engine.name for engine in listed.engines), EXECUTOR))
    return engine


def engine_name(text: str) -> str:
    """Give the name of the engine that is meant, the executor of ``planner validate`` included.

    Raises
    ------
    InputError
        If there is no engine of that name.

    >>> engine_name("vLLM-Omni"), engine_name("planner")
    ('vllm-omni', 'planner')
    """
    return EXECUTOR if text.casefold() == EXECUTOR else find_engine(text).name


@cache
def allowed() -> Allowed:
    """Read what TensorRT allows, once."""
    return load_allowed(DATA.joinpath("tensorrt.toml").read_text("utf-8"))
