"""One case in, results out: which family is measured by whom."""

from contextlib import suppress
from typing import assert_never

import torch
import torch.distributed as dist

from validate.bench.beside import beside
from validate.bench.cases import Case, Family, case
from validate.bench.compute import PREPARE, chosen
from validate.bench.exchange import collective, forced, peer
from validate.bench.functions import FUNCTIONS, function
from validate.bench.hosting import host, stack
from validate.bench.lean import lean
from validate.bench.memory import memory
from validate.bench.timing import both, on_gpu, quick

Results = list[tuple[str, dict[str, float]]]
ROWS = (64, 4608, 32768)


def measure(  # noqa: PLR0911  # one a family
    asked: Case, device: torch.device, rank: int, group: dist.ProcessGroup | None
) -> Results:
    """Run one case on this rank: pairs of mode and values.

    Raises
    ------
    RuntimeError
        If the device or a library refuses it.
    """
    match asked.family:
        case "matmul" | "attention" | "pointwise":
            return _kernel(asked, device)
        case "function":
            return _function(asked, device)
        case "compiled":
            return _compiled(asked, device)
        case "stack":
            return stack(asked, device)
        case "anchor":
            return _kernel(_anchored(asked), device)
        case "host":
            return host(asked, device, group)
        case "memory":
            return memory(asked, device, group)
        case "peer":
            return peer(asked, device, rank)
        case "collective" | "beside" | "forced":
            return _shared(asked, device, group)
        case _:
            assert_never(asked.family)


def _shared(asked: Case, device: torch.device, group: dist.ProcessGroup | None) -> Results:
    if group is None:
        return []
    families = {"collective": collective, "beside": beside, "forced": forced}
    return families[asked.family](asked, device, group)


def _kernel(asked: Case, device: torch.device) -> Results:
    prepared = PREPARE[asked.family](asked, device)
    results = list(both(prepared, device))
    if asked.family == "attention" and on_gpu(device):
        name = "unknown"
        with suppress(RuntimeError, TypeError):
            name = chosen(asked, device)
        return [(f"{mode} {name}", values) for mode, values in results]
    return results


def _anchored(asked: Case) -> Case:
    """Return the plain case that every rank measures."""
    sizes = {name: value for name, value in asked.sizes if name != "work"}
    plain: dict[str, int | str] = {"kernel": "default", "batch": 1, "head_dim": 128}
    works: dict[str, tuple[Family, dict[str, int | str]]] = {
        "matmul": ("matmul", {"precision": "bf16"}),
        "attention": ("attention", {**plain, "kv_heads": 24, "causal": 0}),
        "pointwise": ("pointwise", {}),
    }
    family, more = works[asked.text("work")]
    return case(family, 1, **sizes, **more)


def _function(asked: Case, device: torch.device) -> Results:
    if asked.text("way") == "lean":
        prepared, traffic = lean(asked, device)
    else:
        rows, width = asked.number("rows"), asked.number("width")
        prepared = function(asked, device)
        traffic = FUNCTIONS[asked.text("name")].traffic(rows, width)
    return [(asked.text("way"), {**quick(prepared, device), "traffic_bytes": traffic})]


def _compiled(asked: Case, device: torch.device) -> Results:
    """Compile a function for several numbers of rows."""
    name, width = asked.text("name"), asked.number("width")
    results: Results = []
    for rows in ROWS:
        sized = case("function", 2, name=name, rows=rows, width=width, way="compiled")
        values = quick(function(sized, device), device)
        values["traffic_bytes"] = FUNCTIONS[name].traffic(rows, width)
        values["rows"] = float(rows)
        results.append((f"compiled {rows}", values))
    return results
