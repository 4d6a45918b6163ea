"""Tables that ship with the planner. Nothing else in this folder touches a packaged file."""

from functools import cache
from importlib.resources import files

from planner.launch import Engine, Engines, load_engines
from topology.errors import unknown


@cache
def engines() -> Engines:
    """Read `data/engines.toml`, once."""
    text = files("planner").joinpath("data", "engines.toml").read_text(encoding="utf-8")
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
        raise unknown("engine", name, tuple(one.name for one in known.engines))
    return found
