"""Tables that ship with the planner. Nothing else in this folder touches a packaged file."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import ne

from planner.engines.caches import FeatureCache
from planner.engines.engine import Engine, Engines, load_engines
from planner.engines.reading import read_fields, read_version
from planner.engines.tensorrt import Allowed, load_allowed
from planner.request.request import EXECUTOR
from topology.base import InputError, Sourced, read_sourced, shipped_table, unknown

DATA = files("planner.engines").joinpath("data")
ENGINES = DATA.joinpath("engines")


@cache
def engines(folder: Traversable = ENGINES) -> Engines:
    """Read the engines of a folder, once; each has a file of its own, named after it."""
    tables = {
        path.name.removesuffix(".toml"): shipped_table(path)
        for path in folder.iterdir()
        if path.name.endswith(".toml")
    }
    return load_engines(tables)


def find_engine(text: str) -> Engine:
    """Look up an engine by name or title, behind which a version may stand.

    Raises `InputError` if there is no engine of that name, or no version of it that is known.

    >>> find_engine("vLLM-Omni").name
    'vllm-omni'
    """
    all_engines = engines()
    name, has_version, version = text.partition("@")
    engine = all_engines.named(name)
    if engine is None:
        raise unknown("engine", name, (*(engine.name for engine in all_engines.engines), EXECUTOR))
    return _engine_at(version, all_engines.versions(engine)) if has_version else engine


def _engine_at(text: str, versions: Sequence[Engine]) -> Engine:
    """Find a version of an engine that is the one asked for, as far as both are told."""
    version = read_version(text)
    for engine in versions:
        if engine.version and not any(map(ne, version, read_version(engine.version))):
            return engine
    known_versions = [engine.version for engine in versions if engine.version]
    raise unknown(f"version of {versions[0].name}", text, known_versions)


def engine_name(text: str) -> str:
    """Give the name of the engine that is meant, the executor of ``planner validate`` included.

    Raises `InputError` if there is no engine of that name and version.

    >>> engine_name("vLLM-Omni"), engine_name("planner")
    ('vllm-omni', 'planner')
    """
    if text.casefold() == EXECUTOR:
        return EXECUTOR
    if text.partition("@")[0].casefold() == EXECUTOR:
        raise InputError(f"engine: got {text[:40]}, wanted {EXECUTOR} without a version")
    engine = find_engine(text)
    return f"{engine.name}@{engine.version}" if "@" in text else engine.name


def engine_names(text: str, kind: str = "") -> str:
    """Give the names of engines that are listed with commas, each version once.

    kind : of the models that they are to run, by which one of several of a name is meant.

    >>> engine_names("vLLM, xdit,vllm")
    'vllm,xdit'
    >>> engine_names("sglang", "decoder"), engine_names("xdit,vllm", "diffusion")
    ('sglang-llm', 'xdit,vllm-omni')
    """
    names: dict[tuple[str, str], str] = {}
    for part in text.split(",") if text else ():
        name = engine_name(_namesake(part.strip(), kind))
        version = "" if name == EXECUTOR else find_engine(name).version
        names.setdefault((name.partition("@")[0], version), name)
    return ",".join(names.values())


def _namesake(text: str, kind: str) -> str:
    """Name the engine of a kind of models where another kind's goes by the name."""
    name, separator, version = text.partition("@")
    engine = engines().named(name)
    other = engine.namesake if engine is not None and kind not in ("", engine.kind) else ""
    return f"{other}{separator}{version}" if other else text


@cache
def acceptances() -> dict[str, Sourced]:
    """Read what share of drafted tokens is accepted if nothing is said, by who drafts."""
    rows = shipped_table(DATA.joinpath("speculation.toml"))
    return {name: read_sourced(f"speculation.{name}", row, "", {}) for name, row in rows.items()}


@cache
def feature_caches() -> Mapping[str, FeatureCache]:
    """Read the caches of features by name, once."""
    tables = shipped_table(DATA.joinpath("caches.toml"))
    return {name: read_fields(FeatureCache, f"caches.{name}", row) for name, row in tables.items()}


@cache
def allowed() -> Allowed:
    """Read what TensorRT allows, once."""
    return load_allowed(shipped_table(DATA.joinpath("tensorrt.toml")))
