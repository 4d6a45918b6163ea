"""The folder of a plan for TensorRT: the plan, its networks, and what builds and runs them."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np

from planner.advice.refusals import check_tensorrt
from planner.engines.reading import read_version
from planner.engines.scenario import Scenario
from planner.engines.tables import allowed
from planner.engines.tensorrt_rules import cautions
from planner.engines.tensorrt_table import dotted
from planner.export.checkpoints import checkpoint_of
from planner.export.cpp_schedule import cpp_schedule
from planner.export.readme import readme
from planner.export.scales import check_scales, read_scales, unmeasured
from planner.export.tables import cpp, runner
from planner.lowering import lower
from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.search.estimate import PlanEstimate
from planner.tensorrt import (
    REACH,
    SCHEMA,
    Dtype,
    Network,
    Recipe,
    again_bytes,
    buffer_bytes,
    counts,
    document_of,
    engine_size,
    enqueue,
    networks_of,
    schedule_of,
)
from planner.tensorrt.runner.harness import digest_of
from topology.base import IllegalPlanError, Seconds, format_bytes

COMPUTE: Final[Mapping[str, Dtype]] = {"fp16": "fp16"}
"""Type of activations by precision; BF16 for all others."""


def tensorrt_folder(
    scenario: Scenario,
    estimate: PlanEstimate,
    *,
    version: str = "",
    multi_device: bool = False,
    compute: Dtype | None = None,
    scales: str = "",
) -> dict[str, bytes]:
    """Return the files of the folder.

    estimate : of the plan; the folder says what to expect.
    version : of TensorRT, the newest known where left out.
    multi_device : attention over keys that stay on their ranks, in place of AllGather-KV.
    compute : type of activations; what the precision asks for where left out.
    scales : path of a file of largest activations, for products in fewer bits.

    Raises
    ------
    InputError
        If `scales` are of another model, or of other products.
    IllegalPlanError
        If TensorRT cannot run the plan, saying why.
    """
    plan, precision = estimate.plan, scenario.workload.precision
    check_tensorrt(scenario, plan, version)
    if multi_device:
        _refuse_multi_device(scenario, plan, compute or COMPUTE.get(precision, "bf16"), version)
    workload = one_token(scenario.workload)
    recipe = Recipe(
        compute=compute or COMPUTE.get(precision, "bf16"),
        precision=precision,
        multi_device=multi_device,
        reaches=read_scales(scales, scenario.model.name) if scales else {},
    )
    program = lower(scenario.model, workload, plan)
    networks = networks_of(program, recipe)
    if scales:
        check_scales(scales, networks, precision)
    if multi_device and not is_multi_device(networks):
        raise IllegalPlanError(
            f"plan {plan}: no attention can read keys on several devices; wanted allgather_kv "
            "beside none of tp, ulysses, ring and pp, and rows that divide"
        )
    order = schedule_of(networks, program, workload, plan)
    document = plan_document(scenario, estimate, networks, order)
    return {**_files(networks), **_around(document, networks)}


def is_multi_device(networks: Sequence[Network]) -> bool:
    """Whether an attention of the networks reads keys that lie on other ranks."""
    return any("attention allgather_kv" in counts(network) for network in networks)


def _refuse_multi_device(scenario: Scenario, plan: Plan, compute: Dtype, version: str) -> None:
    """Refuse attention over several devices where the GPU, the type or TensorRT has none."""
    known, hardware = allowed(), scenario.deployment.hardware
    runs = read_version(version) if version else known.newest
    wanted, what = "", f"plan {plan}: attention over several devices"
    if hardware.device.compute_capability < known.attention_capability:
        wanted = f"compute capability {dotted(known.attention_capability)}, {hardware.name} has "
        wanted += dotted(hardware.device.compute_capability)
    elif compute not in known.attention_types:
        wanted = f"{' or '.join(known.attention_types)}, got {compute}"
    elif runs < known.attention_since:
        wanted = f"TensorRT {dotted(known.attention_since)}, got {dotted(runs)}"
    if wanted:
        raise IllegalPlanError(f"{what} needs {wanted}")


def one_token(workload: Workload) -> Workload:
    """Return a request whose decode step stands right behind its prompt."""
    if np.ndim(workload.output_tokens) == 0 and workload.output_tokens:
        return replace(workload, output_tokens=1)
    return workload


def plan_document(
    scenario: Scenario,
    estimate: PlanEstimate,
    networks: Sequence[Network],
    order: Mapping[str, object],
) -> dict[str, object]:
    """Return ``plan.json``: who runs what, in which order, and what to expect of it."""
    model, plan = scenario.model, estimate.plan
    devices = _devices(scenario, estimate)
    ranks = cast("list[dict[str, object]]", order["ranks"])
    for rank, (host, device) in zip(ranks, devices, strict=True):
        rank |= {"host": host, "device": device}
    document = {
        "schema": SCHEMA,
        "backend": "tensorrt",
        "model": model.name,
        "family": model.family,
        "plan": str(plan),
        "gpus": plan.gpus,
        "hardware": estimate.hardware,
        "precision": estimate.precision,
        "request": scenario.request.to_dict(),
        "devices": [device for _, device in devices],
        "engines": [_engine(network, order) for network in networks],
        **order,
        "multi_device_attention": is_multi_device(networks),
        "buffer_bytes": buffer_bytes(networks, order),
        "needs": needs(networks),
        "excluded": list(allowed().excluded),
        "enqueue": _enqueue(estimate, order),
        "checkpoint": checkpoint_of(model),
        "expected": estimate.to_dict(),
        "cautions": [
            *cautions(model, plan),
            *_turns(model),
            *_twice(estimate, networks),
            *_assumed(networks),
        ],
    }
    digest = digest_of(document, [document_of(network) for network in networks])
    return {**document, "digest": digest}


def _turns(model: Model) -> Iterator[str]:
    """Say that a model whose transformers take turns over the steps is networks down once."""
    if model.transformers > 1:
        yield (
            f"{model.transformers} transformers of one make take turns over the steps, and every "
            "step runs one of them here: that of the folder which is given as weights"
        )


def _twice(estimate: PlanEstimate, networks: Sequence[Network]) -> Iterator[str]:
    """Say how much more a GPU holds where engines have weights in common."""
    again = again_bytes(networks)
    if again:
        yield (
            f"prefill and decode are engines with their own weights: {format_bytes(again)} more on "
            "a GPU than is expected of the plan, "
            f"{format_bytes(estimate.memory_bytes + again)} in all"
        )


def _assumed(networks: Sequence[Network]) -> Iterator[str]:
    """Say how many products round activations by a scale that nobody has measured."""
    count = len(unmeasured(networks)[0])
    if count:
        yield (
            f"{count} products in fewer bits take activations to be {REACH:g} at most, where the "
            "checkpoint does not say: python -m validate scales measures them, --scales reads them"
        )


def _enqueue(estimate: PlanEstimate, order: Mapping[str, object]) -> dict[str, object]:
    """Say what starting engines one by one costs a step, which the prediction leaves out."""
    calls = enqueue(order, Seconds(estimate.step_s), allowed())
    return {
        "calls_a_step": calls.calls,
        "host_s_a_step": calls.host,
        "exposed_s_a_step": calls.exposed,
        "expected_assumes": "a CUDA graph that is replayed: no launch is in its breakdown",
    }


def needs(networks: Sequence[Network]) -> dict[str, str]:
    """Return the oldest TensorRT and NCCL that have the networks' collectives."""
    known = allowed()
    used = {
        str(layer.attributes["operation"])
        for network in networks
        for layer in network.of("collective")
    }
    since = [known.since[name] for name in used]
    tensorrt = max(
        [*since, known.attention_since] if is_multi_device(networks) else since or [known.first]
    )
    nccl = known.nccl_all_to_all if "all_to_all" in used else known.nccl
    shown = {"tensorrt": tensorrt, "nccl": nccl} if used else {"tensorrt": tensorrt}
    return {name: dotted(version) for name, version in shown.items()}


def _devices(scenario: Scenario, estimate: PlanEstimate) -> list[tuple[int, int]]:
    """Host and GPU of every rank: where the plan was seated, else in order."""
    if estimate.placement is not None:
        each = estimate.plan.gpus // estimate.placement.hosts
        return [(rank // each, device) for rank, device in enumerate(estimate.placement.devices)]
    each = min(estimate.plan.gpus, scenario.deployment.hardware.gpus)
    return [(rank // each, rank % each) for rank in range(estimate.plan.gpus)]


def _engine(network: Network, order: Mapping[str, object]) -> dict[str, object]:
    size = engine_size(network, allowed())
    groups = cast("Mapping[str, object]", order["communicators"]).get(network.name, [])
    return {
        "name": network.name,
        "files": [f"engines/{name}" for name in engine_files(network)],
        "shared": network.shared,
        "ranks": network.ranks,
        "axes": [list(axis) for axis in network.axes],
        "communicators": groups,
        "layers": len(network.layers),
        "collectives": counts(network),
        "inputs": {value.name: list(value.shape) for value in network.inputs},
        "outputs": {name: list(value.shape) for name, value in network.outputs},
        "expected_bytes": size.size,
        "expected_build_s": size.build,
    }


def engine_files(network: Network) -> list[str]:
    """Names of the engines of a network: one for all ranks, or one each."""
    if network.shared:
        return [f"{network.name}.engine"]
    return [f"{network.name}.rank{rank}.engine" for rank in range(network.ranks)]


def _files(networks: Sequence[Network]) -> dict[str, bytes]:
    found = {}
    for network in networks:
        found[f"networks/{network.name}.json"] = _json(document_of(network))
        constants = io.BytesIO()
        np.savez(constants, allow_pickle=False, **network.constants)
        found[f"networks/{network.name}.npz"] = constants.getvalue()
        if network.tables:
            tables = [np.ascontiguousarray(array).tobytes() for array in network.tables.values()]
            found[f"tables/{network.name}.bin"] = b"".join(tables)
    return found


def _around(document: Mapping[str, object], networks: Sequence[Network]) -> dict[str, bytes]:
    return {
        "plan.json": _json(document),
        "README.md": readme(document).encode(),
        **{f"runner/{name}": source for name, source in runner().items()},
        **{f"cpp/{name}": source for name, source in cpp().items()},
        "cpp/schedule.txt": cpp_schedule(document, networks).encode(),
    }


def _json(document: object) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode()
