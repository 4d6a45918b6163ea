"""The rates and names that ship with the project, read once."""

from functools import cache
from importlib.resources import files

from topology.links.names import GpuName, load_names
from topology.links.rates import Rates, load_rates


@cache
def rates() -> Rates:
    """Read `data/links.toml`, once."""
    return load_rates(_read("links.toml"))


@cache
def names() -> tuple[GpuName, ...]:
    """Read `data/gpu_names.toml`, once."""
    return load_names(_read("gpu_names.toml"))


def _read(name: str) -> str:
    return files("topology").joinpath("data", name).read_text(encoding="utf-8")
