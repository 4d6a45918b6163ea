"""One case in, results out: which family is measured by whom."""

from contextlib import suppress
from typing import assert_never

import torch
import torch.distributed as dist

from validate.bench.cases import Family, Measurement, case_of
from validate.bench.collectives import beside_compute, collective, forced, peer
from validate.bench.compute import PREPARE, sdpa_backend
from validate.bench.functions import FUNCTIONS, backend_function, function
from validate.bench.overheads import host, memory, stack
from validate.bench.timing import Results, burst_and_load, burst_statistics, on_gpu

ROWS = (64, 4608, 32768)


def measure(  # noqa: PLR0911  # one a family
    case: Measurement, device: torch.device, rank: int, group: dist.ProcessGroup | None
) -> Results:
    """Run one case on this rank: pairs of mode and values.

    Raises RuntimeError if the device or a library refuses it.
    """
    match case.family:
        case "matmul" | "attention" | "pointwise":
            return _kernel_results(case, device)
        case "function":
            return _function_results(case, device)
        case "compiled":
            return _compiled_results(case, device)
        case "stack":
            return stack(case, device)
        case "anchor":
            return _kernel_results(_plain_case(case), device)
        case "host":
            return host(case, device, group)
        case "memory":
            return memory(case, device, group)
        case "peer":
            return peer(case, device, rank)
        case "collective" | "beside" | "forced":
            return _collective_results(case, device, group)
        case _:
            assert_never(case.family)


def _collective_results(
    case: Measurement, device: torch.device, group: dist.ProcessGroup | None
) -> Results:
    if group is None:
        return []
    families = {"collective": collective, "beside": beside_compute, "forced": forced}
    return families[case.family](case, device, group)


def _kernel_results(case: Measurement, device: torch.device) -> Results:
    prepared = PREPARE[case.family](case, device)
    results = list(burst_and_load(prepared, device))
    if case.family == "attention" and on_gpu(device):
        name = "unknown"
        with suppress(RuntimeError, TypeError):
            name = sdpa_backend(case, device)
        return [(f"{mode} {name}", values) for mode, values in results]
    return results


def _plain_case(case: Measurement) -> Measurement:
    """Return the plain case that every rank measures."""
    sizes = {name: value for name, value in case.sizes if name != "work"}
    attention_sizes: dict[str, int | str] = {"kernel": "default", "batch": 1, "head_dim": 128}
    works: dict[str, tuple[Family, dict[str, int | str]]] = {
        "matmul": ("matmul", {"precision": "bf16"}),
        "attention": ("attention", {**attention_sizes, "kv_heads": 24, "causal": 0}),
        "pointwise": ("pointwise", {}),
    }
    family, choices = works[case.text("work")]
    return case_of(family, 1, **sizes, **choices)


def _function_results(case: Measurement, device: torch.device) -> Results:
    if case.text("way") == "lean":
        prepared, traffic = backend_function(case, device)
    else:
        rows, width = case.number("rows"), case.number("width")
        prepared = function(case, device)
        traffic = FUNCTIONS[case.text("name")].traffic(rows, width)
    return [(case.text("way"), {**burst_statistics(prepared, device), "traffic_bytes": traffic})]


def _compiled_results(case: Measurement, device: torch.device) -> Results:
    """Compile a function for several numbers of rows."""
    name, width = case.text("name"), case.number("width")
    results: Results = []
    for rows in ROWS:
        sized = case_of("function", 2, name=name, rows=rows, width=width, way="compiled")
        values = burst_statistics(function(sized, device), device)
        values["traffic_bytes"] = FUNCTIONS[name].traffic(rows, width)
        values["rows"] = float(rows)
        results.append((f"compiled {rows}", values))
    return results
