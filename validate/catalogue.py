"""Tables that ship with the validator."""

from functools import cache
from importlib.resources import files

from validate.fit_collectives import Recipe, load_recipes


@cache
def recipes() -> dict[str, Recipe]:
    """Read `data/collectives_recipes.toml`, once: how each curve is fitted."""
    path = files("validate").joinpath("data", "collectives_recipes.toml")
    return load_recipes(path.read_text(encoding="utf-8"))
