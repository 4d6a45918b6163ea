"""Tables that ship with the cost models. Nothing else in this folder touches a packaged file."""

import tomllib
from functools import cache
from importlib.resources import files

from costmodels.runtime import Runtime, load_runtimes
from topology.errors import unknown
from topology.sourced import read_sourced


@cache
def runtimes() -> dict[str, Runtime]:
    """Read `data/runtimes.toml`, once."""
    return load_runtimes(_read("runtimes.toml"))


def runtime(name: str) -> Runtime:
    """Look up a runtime, or say which there are.

    Raises
    ------
    InputError
        If there is no runtime of that name.
    """
    known = runtimes()
    if name.lower() not in known:
        raise unknown("runtime", name, known)
    return known[name.lower()]


@cache
def overlap_shares() -> dict[str, float]:
    """Read `data/overlap.toml`, once: the hidden share by kind of collective."""
    row = tomllib.loads(_read("overlap.toml"))
    return {
        key: read_sourced(f"overlap.{key}", entry, "1", row).value
        for key, entry in row.items()
        if key not in ("kind", "source")
    }


@cache
def communicator_bytes() -> float:
    """Bytes of GPU memory that NCCL takes for one communicator."""
    row = tomllib.loads(_read("memory.toml"))
    return read_sourced("memory.communicator", row["communicator"], "B", row).value


def _read(name: str) -> str:
    return files("costmodels").joinpath("data", name).read_text(encoding="utf-8")
