"""A request from keywords, as the Python face, the command line and files of demands have them."""

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, cast

from costmodels.tables import runtimes
from planner.engines.tables import engine_name, engine_names, engines
from planner.models import Model
from planner.request.plan import Plan
from planner.request.quantities import read_rate, read_time
from planner.request.request import EXECUTOR, LARGEST, ROWS, UNMODELLED, Request, whole_number
from planner.scenario.deployment import machine_of
from planner.strategies import parse_plan, parse_pools
from topology.base import InputError, shown, unknown

_COUNTS: Final = frozenset(LARGEST) - {"top"}
_READERS: Final[Mapping[str, Callable[[str], float]]] = {
    "rate": read_rate,
    **{name: partial(read_time, name) for name in ("slo_ttft", "slo_tpot")},
}


def check_argument(name: str, names: Sequence[str]) -> None:
    """Refuse a keyword that there is not, with the nearest, or why there is none."""
    if name in UNMODELLED:
        raise InputError(f"{name}: {UNMODELLED[name]}")
    if name not in names:
        raise unknown("argument", name, names)


def request_of(
    model: str | Path | Model, gpus: int | None, options: Mapping[str, object], plan: object = None
) -> Request:
    """Build a request from keywords; numbers may be any kind that is whole, and nodes None.

    Where no number of GPUs is asked for, a machine gives all it has, and a plan those it takes.

    Raises `InputError` if a keyword is unknown or a value cannot be right.
    """
    for name in options:
        check_argument(name, sorted(Request.__dataclass_fields__))
    named_options = {
        name: str(value) if isinstance(value, Path | Plan) else value
        for name, value in _with_engine_names(options).items()
        if name != "nodes" or value is not None
    }
    topology = named_options.get("topology", "")
    if not isinstance(topology, str) or topology or named_options.get("detect") is True:
        named_options = {"hardware": "", **named_options}  # the machine knows its GPUs
    fields = {
        name: whole_number(name, value) if name in _COUNTS and value is not None else value
        for name, value in {**named_options, "gpus": 1 if gpus is None else gpus}.items()
    }
    fields |= {  # rates and times that are written with their unit
        name: reader(value)
        for name, reader in _READERS.items()
        if isinstance(value := named_options.get(name), str)
    }
    fields |= {name: _rows_of(name, named_options[name]) for name in ROWS if name in named_options}
    if "links" in named_options:
        fields["links"] = _links_of(named_options["links"])
    distribution = fields.get("expert_distribution")
    if isinstance(distribution, Sized) and not isinstance(distribution, str):
        fields["expert_distribution"] = _numbers_of(distribution)
    if fields.get("objective") is None:
        has_target = any(fields.get(name) is not None for name in ("slo_ttft", "slo_tpot"))
        paced = any(fields.get(name) for name in ("rate", "arrivals"))
        fields["objective"] = "throughput" if has_target and not paced else "latency"
    if isinstance(model, Path):
        model = str(model)
    if not isinstance(model, str | Model):
        raise InputError(f"model: got {shown(model)}, wanted a name or the path of a config.json")
    request = Request(model=model, **fields)  # type: ignore[arg-type]  # checked by Request
    return request if gpus is not None else replace(request, gpus=_gpu_count(request, plan))


def _rows_of(name: str, value: object) -> object:
    """Take rows of numbers as they can be kept; a path stays."""
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, Sized):  # what is made as it is read may have no end
            return tuple(tuple(row) for row in cast("Sequence[Sequence[float]]", value))
    except TypeError:
        pass
    raise InputError(f"{name}: got {shown(value)}, wanted a file, or rows of numbers")


def _links_of(value: object) -> object:
    """Take times of a bandwidth by the names of links, as they can be kept."""
    if not isinstance(value, Mapping):
        raise InputError(
            f"links: got {shown(value)}, wanted names and times, such as {{'GPU0-NVSwitch': 0.5}}"
        )
    return tuple(value.items())


def _numbers_of(values: object) -> object:
    """Take numbers of any kind as a request can keep them; what is none stays."""
    try:
        return tuple(float(number) for number in cast("Sequence[float]", values))
    except (TypeError, ValueError, OverflowError):
        return values


def _gpu_count(request: Request, plan: object) -> int:
    """Count the GPUs of the machine that a request brings, or those of a plan; one without."""
    machine = machine_of(request)
    if machine is not None:
        return machine.gpus
    if request.two_pools:
        return parse_pools(request).gpus
    if isinstance(plan, str | Plan):
        return parse_plan(str(plan)).gpus
    if request.nodes > 1:
        raise InputError(f"gpus: got none beside {request.nodes} nodes, wanted those of all nodes")
    return 1


def _with_engine_names(options: Mapping[str, object]) -> dict[str, object]:
    """Give engines their names, where a request names one as its runtime too."""
    name, runtime = options.get("engine"), options.get("runtime")
    if isinstance(runtime, str) and not runtime:
        raise unknown("runtime", "", runtimes())
    runtime_engine = _engine_of(runtime)
    if isinstance(name, str) and name:
        name = engine_names(name)
    if runtime_engine and name not in (None, "", runtime_engine):
        raise InputError(
            f"runtime: got {runtime_engine}, an engine beside the engine {name}: wanted one"
        )
    if runtime_engine:
        name, runtime = runtime_engine, None
    engine_fields = {"engine": name, "runtime": runtime}
    other_options = {key: value for key, value in options.items() if key not in engine_fields}
    return other_options | {key: value for key, value in engine_fields.items() if value is not None}


def _engine_of(runtime: object) -> str:
    """Name the engine that a runtime is called by; empty where it is none."""
    if not isinstance(runtime, str) or runtime.lower() in runtimes():
        return ""
    if runtime.casefold() == EXECUTOR or engines().named(runtime.partition("@")[0]):
        return engine_name(runtime)
    return ""


def distinct_names(name: str, given: object) -> tuple[str, ...]:
    """Take one name or several, each once; text may hold several with commas.

    >>> distinct_names("hardware", "h200-sxm, l40s,h200-sxm")
    ('h200-sxm', 'l40s')
    """
    entries = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    entries = [entries] if isinstance(entries, Path) else entries
    names = list(entries) if isinstance(entries, list | tuple) else []
    if not names or not all(isinstance(name, str | Path) for name in names):
        raise InputError(f"{name}: got {shown(given)}, wanted a name or a list of names")
    return tuple(dict.fromkeys(map(str, names)))
