"""Tables that ship with the planner. Nothing else in this folder touches a packaged file."""

from functools import cache
from importlib.resources import files

from planner.launch import Engines, load_engines


@cache
def engines() -> Engines:
    """Read `data/engines.toml`, once."""
    text = files("planner").joinpath("data", "engines.toml").read_text(encoding="utf-8")
    return load_engines(text)
