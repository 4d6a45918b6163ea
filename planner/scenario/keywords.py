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
    given = {
        name: str(value) if isinstance(value, Path | Plan) else value
        for name, value in _by_engine(options).items()
        if name != "nodes" or value is not None
    }
    topology = given.get("topology", "")
    if not isinstance(topology, str) or topology or given.get("detect") is True:
        given = {"hardware": "", **given}  # the machine knows its GPUs
    fields = {
        name: whole_number(name, value) if name in _COUNTS and value is not None else value
        for name, value in {**given, "gpus": 1 if gpus is None else gpus}.items()
    }
    fields |= {  # rates and times that are written with their unit
        name: reader(value)
        for name, reader in _READERS.items()
        if isinstance(value := given.get(name), str)
    }
    fields |= {name: _rows_of(name, given[name]) for name in ROWS if name in given}
    if "links" in given:
        fields["links"] = _links_of(given["links"])
    seen = fields.get("expert_distribution")
    if isinstance(seen, Sized) and not isinstance(seen, str):
        fields["expert_distribution"] = _numbers_of(seen)
    if fields.get("objective") is None:
        aimed = any(fields.get(name) is not None for name in ("slo_ttft", "slo_tpot"))
        paced = any(fields.get(name) for name in ("rate", "arrivals"))
        fields["objective"] = "throughput" if aimed and not paced else "latency"
    if isinstance(model, Path):
        model = str(model)
    if not isinstance(model, str | Model):
        raise InputError(f"model: got {shown(model)}, wanted a name or the path of a config.json")
    request = Request(model=model, **fields)  # type: ignore[arg-type]  # checked by Request
    return request if gpus is not None else replace(request, gpus=_all(request, plan))


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


def _all(request: Request, plan: object) -> int:
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


def _by_engine(options: Mapping[str, object]) -> dict[str, object]:
    """Give engines their names, where a request names one as its runtime too."""
    name, runtime = options.get("engine"), options.get("runtime")
    if isinstance(runtime, str) and not runtime:
        raise unknown("runtime", "", runtimes())
    own = _engine_of(runtime)
    if isinstance(name, str) and name:
        name = engine_names(name)
    if own and name not in (None, "", own):
        raise InputError(f"runtime: got {own}, an engine beside the engine {name}: wanted one")
    if own:
        name, runtime = own, None
    chosen = {"engine": name, "runtime": runtime}
    others = {key: value for key, value in options.items() if key not in chosen}
    return others | {key: value for key, value in chosen.items() if value is not None}


def _engine_of(runtime: object) -> str:
    """Name the engine that a runtime is called by; empty where it is none."""
    if not isinstance(runtime, str) or runtime.lower() in runtimes():
        return ""
    if runtime.casefold() == EXECUTOR or engines().named(runtime.partition("@")[0]):
        return engine_name(runtime)
    return ""


def several(name: str, given: object) -> tuple[str, ...]:
    """Take one name or several, each once; text may hold several with commas.

    >>> several("hardware", "h200-sxm, l40s,h200-sxm")
    ('h200-sxm', 'l40s')
    """
    listed = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    listed = [listed] if isinstance(listed, Path) else listed
    names = list(listed) if isinstance(listed, list | tuple) else []
    if not names or not all(isinstance(name, str | Path) for name in names):
        raise InputError(f"{name}: got {shown(given)}, wanted a name or a list of names")
    return tuple(dict.fromkeys(map(str, names)))
