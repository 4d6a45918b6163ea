"""The folder of a plan for TensorRT: the plan, its networks, and what builds and runs them."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypedDict, Unpack

import numpy as np

from costmodels.collectives import UNMIXED
from planner.engines.tables import allowed
from planner.engines.tensorrt import dotted
from planner.export.checkpoints import checkpoint_of, computed
from planner.export.cpp_schedule import cpp_schedule
from planner.export.readme import readme
from planner.export.scales import check_scales, read_scales, unmeasured
from planner.export.tables import cpp, runner
from planner.export.tools import Tool, tools_of
from planner.export.triton import served, triton_files
from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.runners.refusal import check_tensorrt
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import price
from planner.tensorrt import (
    REACH,
    SCHEMA,
    Dtype,
    EngineNetwork,
    Recipe,
    again_bytes,
    buffer_bytes,
    counts,
    document_of,
    engine_size,
    enqueue,
    latents_of,
    written,
)
from planner.tensorrt.runner.harness import digest_of
from planner.tensorrt.runner.library import Document
from topology.base import IllegalPlanError, InputError, Seconds, format_bytes

_PRICED_AS: Final = {"allgather_kv": "ring"}
"""What attention over several devices is priced as, by the axis that it takes the place of."""


class FolderOptions(TypedDict, total=False):
    """What may be asked of a folder for TensorRT.

    multi_device : attention over keys that stay on their ranks, in place of AllGather-KV. scales :
    path of a file of largest activations, for products in fewer bits.
    """

    multi_device: bool
    scales: str


def tensorrt_folder(
    scenario: Scenario,
    estimate: PlanEstimate,
    compute: Dtype | None = None,
    **options: Unpack[FolderOptions],
) -> dict[str, bytes]:
    """Return the files of the folder.

    estimate : of the plan; the folder says what to expect. compute : type of activations; what the
    precision asks for where left out.

    Raises `InputError` if scales are of another model, or of other products, and
    `IllegalPlanError` if TensorRT cannot run the plan, saying why.
    """
    scales = options.get("scales", "")
    multi_device = options.get("multi_device", False)
    plan, precision = estimate.plan, scenario.workload.precision
    compute = compute or compute_of(precision)
    check_tensorrt(scenario, plan)
    if scenario.workload.kv_precision != "bf16":
        got = scenario.workload.kv_precision
        raise InputError(f"kv_precision: got {got}, wanted bf16: networks here cache 16-bit keys")
    if multi_device:
        _refuse_multi_device(scenario, plan, compute)
    recipe = Recipe(
        compute=compute,
        precision=precision,
        multi_device=multi_device,
        reaches=read_scales(scales, scenario.model.name) if scales else {},
        numerics=scenario.model.numerics,
    )
    networks, schedule = written(scenario.model, scenario.workload, plan, recipe)
    if scales:
        check_scales(scales, networks, precision)
    if multi_device and not is_multi_device(networks):
        raise IllegalPlanError(
            f"plan {plan}: no attention can read keys on several devices; wanted allgather_kv "
            "beside none of tp, ulysses, ring and pp, rows that divide, and no keys on every rank"
        )
    if multi_device:
        estimate = _priced_as_ring(scenario, estimate)
    document = plan_document(scenario, estimate, networks, schedule)
    tools = tools_of(scenario, estimate, networks, document)
    folder_files = network_files(networks)
    tables = any(path.startswith("tables/") for path in folder_files)
    readme_text = readme(document, tools, scenario.model.exports, tables=tables)
    return {
        **folder_files,
        "README.md": readme_text.encode(),
        **_other_files(document, networks, tools),
    }


def compute_of(precision: str) -> Dtype:
    """Type of activations in engines of a precision."""
    return "fp16" if precision == "fp16" else "bf16"


def is_multi_device(networks: Sequence[EngineNetwork]) -> bool:
    """Whether an attention of the networks reads keys that lie on other ranks."""
    return any("attention allgather_kv" in counts(network) for network in networks)


def _priced_as_ring(scenario: Scenario, estimate: PlanEstimate) -> PlanEstimate:
    """Price attention over several devices as a ring, whose pieces pass while others are attended.

    TensorRT's builder calls the layer RingAttention; nobody has timed it.
    """
    plan = estimate.plan
    ring = replace(plan, axes=tuple((_PRICED_AS.get(axis, axis), n) for axis, n in plan.axes))
    return replace(price(scenario, ring), plan=plan)


def _refuse_multi_device(scenario: Scenario, plan: Plan, compute: Dtype) -> None:
    """Refuse attention over several devices where the GPU, the type or TensorRT has none."""
    limits, hardware = allowed(), scenario.deployment.hardware
    capability = hardware.device.compute_capability
    tensorrt_version = limits.running(scenario.request.tensorrt_version)
    if not limits.spreads_attention(capability):
        requirement = (
            f"compute capability {limits.attention_span}, {hardware.name} has {dotted(capability)}"
        )
    elif compute not in limits.attention_types:
        requirement = f"{' or '.join(limits.attention_types)}, got {compute}"
    elif tensorrt_version < limits.attention_since:
        requirement = f"TensorRT {dotted(limits.attention_since)}, got {dotted(tensorrt_version)}"
    else:
        return
    raise IllegalPlanError(f"plan {plan}: attention over several devices needs {requirement}")


def plan_document(
    scenario: Scenario, estimate: PlanEstimate, networks: Sequence[EngineNetwork], order: Document
) -> dict[str, object]:
    """Return ``plan.json``: who runs what, in which order, and what to expect of it."""
    model, plan = scenario.model, estimate.plan
    devices = _rank_devices(scenario, estimate)
    hosts = [host for host, _ in devices]
    ranks = [
        {**rank, "host": host, "device": device}
        for rank, (host, device) in zip(order["ranks"], devices, strict=True)
    ]
    document = {
        "schema": SCHEMA,
        "backend": "tensorrt",
        "model": model.name,
        "family": model.family,
        "transformers": model.transformers,
        "plan": str(plan),
        "gpus": plan.gpus,
        "hardware": estimate.hardware,
        "precision": estimate.precision,
        "request": scenario.resolved.to_dict(),
        "devices": [device for _, device in devices],
        "engines": [_engine_document(network, order) for network in networks],
        **order,
        "ranks": ranks,
        "multi_device_attention": is_multi_device(networks),
        "tensorrt_version": dotted(allowed().running(scenario.request.tensorrt_version)),
        "buffer_bytes": buffer_bytes(networks, order),
        "served": [
            candidate.name for candidate in networks if served(candidate, plan.gpus, len({*hosts}))
        ],
        "needs": needs(networks),
        "environment": dict([UNMIXED] if plan.gpus > 1 else []),
        "excluded": list(allowed().excluded),
        "enqueue": _enqueue_document(estimate, order),
        "checkpoint": checkpoint_of(model),
        "computes": model.numerics is not None,
        "latents": _latents_document(model, scenario.workload),
        "vocabulary": model.vocabulary if model.kind == "decoder" else 0,
        "expected": estimate.to_dict(),
        "cautions": [
            *allowed().cautions(model, plan, scenario.request.tensorrt_version),
            *_timing_caution(model),
            *_turns_caution(model),
            *_shared_weight_caution(estimate, networks, order),
            *_unmeasured_caution(networks),
            *_spread_caution(networks),
        ],
    }
    digest = digest_of(document, [document_of(network) for network in networks])
    return {**document, "digest": digest}


def _latents_document(model: Model, workload: Workload) -> dict[str, object] | None:
    """Say how latents are rows of patches, of a model that is computed."""
    latent = model.latent
    if latent is None or model.numerics is None:
        return None
    return {
        "channels": latent.channels,
        "grid": list(latents_of(model, workload).shape),
        "patch": [latent.patch_frames, latent.patch_height, latent.patch_width],
        "channels_last": model.numerics.channels_last,
    }


def _timing_caution(model: Model) -> Iterator[str]:
    """Say that networks do not compute the model, where they do not."""
    if model.numerics is None:
        yield (
            f"these networks are for timing, whatever weights they are built of: norms and "
            f"positions are not those of {model.name} ({', '.join(computed())} are computed)"
        )


def _turns_caution(model: Model) -> Iterator[str]:
    """Say that a model whose transformers take turns over the steps is written down once."""
    if model.transformers > 1:
        yield (
            f"{model.transformers} transformers of one make take turns over the steps: `run` and "
            "the runner in C++ run all steps by the first, which times them, and `generate` loads "
            "the second one's engines where it takes over"
        )


def _spread_caution(networks: Sequence[EngineNetwork]) -> Iterator[str]:
    """Say as what attention over several devices is priced, where there is any."""
    if is_multi_device(networks):
        yield (
            "attention over several devices is priced as a ring inside the layer, as TensorRT's "
            "builder calls it (RingAttention); nobody has timed it"
        )


def _shared_weight_caution(
    estimate: PlanEstimate, networks: Sequence[EngineNetwork], order: Document
) -> Iterator[str]:
    """Say how much more a GPU holds where engines have weights in common."""
    repeated = again_bytes(networks, order)
    if repeated:
        yield (
            "prefill and decode share weights that lie beside them, as those of a folder do; where "
            f"engines hold them, each has its own: {format_bytes(repeated)} more on a GPU than is "
            f"expected of the plan, {format_bytes(estimate.memory_bytes + repeated)} in all"
        )


def _unmeasured_caution(networks: Sequence[EngineNetwork]) -> Iterator[str]:
    """Say how many products round activations by a scale that nobody has measured."""
    count = len(unmeasured(networks)[0])
    if count:
        yield (
            f"{count} products in fewer bits take activations to be {REACH:g} at most, where the "
            "checkpoint does not say: python -m validate scales measures them, --scales reads them"
        )


def _enqueue_document(estimate: PlanEstimate, order: Document) -> dict[str, object]:
    """Say what starting engines one by one costs a step, which the prediction leaves out."""
    calls = enqueue(order, Seconds(estimate.step_s), allowed())
    return {
        "calls_a_step": calls.calls,
        "host_s_a_step": calls.host,
        "exposed_s_a_step": calls.exposed,
        "expected_assumes": "a CUDA graph that is replayed: no launch is in its breakdown",
    }


def needs(networks: Sequence[EngineNetwork]) -> dict[str, str]:
    """Return the oldest TensorRT and NCCL that have the networks' collectives."""
    limits = allowed()
    collectives = [layer for network in networks for layer in network.of("collective")]
    operations = {str(layer.attributes["operation"]) for layer in collectives}
    versions = [limits.since[name] for name in operations]
    if is_multi_device(networks):
        versions.append(limits.attention_since)
    nccl = limits.nccl_all_to_all if "all_to_all" in operations else limits.nccl
    sends = any(network.stage is not None for network in networks)
    nccl_need = {"nccl": dotted(nccl)} if operations or sends else {}
    return {"tensorrt": dotted(max(versions, default=limits.first)), **nccl_need}


def _rank_devices(scenario: Scenario, estimate: PlanEstimate) -> list[tuple[int, int]]:
    """Host and GPU of every rank: where the plan was seated, else in order."""
    if estimate.placement is not None:
        gpus_each = estimate.plan.gpus // estimate.placement.hosts
        return [
            (rank // gpus_each, device) for rank, device in enumerate(estimate.placement.devices)
        ]
    gpus_each = min(estimate.plan.gpus, scenario.deployment.hardware.gpus)
    return [(rank // gpus_each, rank % gpus_each) for rank in range(estimate.plan.gpus)]


def _engine_document(network: EngineNetwork, order: Document) -> dict[str, object]:
    size, build = engine_size(network, allowed())
    return {
        "name": network.name,
        "files": [f"engines/{name}" for name in engine_files(network)],
        "shared": network.shared,
        "ranks": network.ranks,
        "axes": [list(axis) for axis in network.axes],
        "groups": order["groups"].get(network.name, []),
        "layers": len(network.layers),
        "collectives": counts(network),
        "inputs": {value.name: list(value.shape) for value in network.inputs},
        "outputs": {name: list(value.shape) for name, value in network.outputs},
        "expected_bytes": size,
        "expected_build_s": build,
    }


def engine_files(network: EngineNetwork) -> list[str]:
    """Names of the engines of a network: one for all ranks, or one each."""
    if network.shared:
        return [f"{network.name}.engine"]
    return [f"{network.name}.rank{rank}.engine" for rank in range(network.ranks)]


def network_files(networks: Sequence[EngineNetwork]) -> dict[str, bytes]:
    """Return the files that networks are assembled of, by path."""
    files = {}
    for network in networks:
        files[f"networks/{network.name}.json"] = _json_by_line(document_of(network))
        constants = io.BytesIO()
        np.savez(constants, allow_pickle=False, **network.constants)
        files[f"networks/{network.name}.npz"] = constants.getvalue()
        if network.tables:
            tables = [np.ascontiguousarray(array).tobytes() for array in network.tables.values()]
            files[f"tables/{network.name}.bin"] = b"".join(tables)
    return files


def _other_files(
    document: Document, networks: Sequence[EngineNetwork], tools: Sequence[Tool]
) -> dict[str, bytes]:
    return {
        "plan.json": _json_bytes(document),
        **{path: text.encode() for tool in tools for path, text in tool.files.items()},
        **{f"runner/{name}": source for name, source in runner().items()},
        **{f"cpp/{name}": source for name, source in cpp().items()},
        "cpp/schedule.txt": cpp_schedule(document, networks).encode(),
        **_triton_repository(document, networks),
    }


def _triton_repository(document: Document, networks: Sequence[EngineNetwork]) -> dict[str, bytes]:
    """Return a model repository for Triton, nothing where it can serve no engine of the folder."""
    devices = [rank["device"] for rank in document["ranks"]]
    files: dict[str, bytes] = {}
    for network in networks:
        if network.name in document["served"]:
            files |= triton_files(network, devices)
    return files


def _json_bytes(document: object) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode()


def _json_by_line(document: Mapping[str, object]) -> bytes:
    """Write a large document with a line for each field, and for each item of a list."""
    write = json.JSONEncoder(allow_nan=False).encode
    fields = []
    for name, value in document.items():
        items = ",\n  ".join(map(write, value)) if isinstance(value, list) else ""
        fields.append(f'"{name}": ' + (f"[\n  {items}\n ]" if items else write(value)))
    text = ",\n ".join(fields)
    return f"{{\n {text}\n}}\n".encode()
