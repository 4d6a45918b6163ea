"""How each curve of a collective is fitted: the table that ships in `validate/data`."""

from functools import cache
from importlib.resources import files

from validate.fit.collectives import Recipe, load_recipes


@cache
def recipes() -> dict[str, Recipe]:
    """Read `data/collectives_recipes.toml`, once: how each curve is fitted."""
    path = files("validate").joinpath("data", "collectives_recipes.toml")
    return load_recipes(path.read_text(encoding="utf-8"))
