"""Texts for other people's tools in a TensorRT folder: Torch-TensorRT, Polygraphy and trtexec.

They are written from the plan, its networks and the graph of an ONNX file.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final, cast

from planner.engines.engine import EAGER
from planner.engines.tables import find_engine
from planner.export.checkpoints import Names, checkpoint_of
from planner.export.engines import Frame, diffusers_script, script_settings, weights_name
from planner.export.triton import CACHE_PREFIX
from planner.models.onnx.blocks import layers_of
from planner.models.onnx.graph import Graph
from planner.models.onnx.reading import graph_at
from planner.request.plan import Plan
from planner.runners.launch import launch_with
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.tensorrt import EngineNetwork
from planner.tensorrt.runner.library import Document
from topology.base.shell import shell_path
from topology.base.values import dataclass

SCRIPT: Final = "tools/run_torch_tensorrt.py"
HINTS: Final = "tools/hints.json"
ROWS: Final = -2
"""Axis of rows, of a stream and of what is known of each row, such as its position."""
STREAM: Final = 3
"""Axes of a stream: batch, rows, features."""
STYLES: Final = {"columns": "ColwiseParallel()", "rows": "RowwiseParallel()"}
"""What ``torch.distributed.tensor.parallel`` calls the two ways to cut a weight."""
HEAD: Final = "ColwiseParallel(output_layouts=Replicate())"
"""Scores are whole on every rank, as all choose the next token."""
COMPILE_CALL: Final = (
    '.compile(backend="torch_tensorrt", dynamic={dynamic}, '
    'options={{"min_block_size": 1, "use_distributed_mode_trace": True}})'
)
CLOSE_LINES: Final = """\
with torch_tensorrt.distributed.distributed_context(dist.group.WORLD, [{modules}]):
    pass  # engines let go of the communicator when this ends
dist.destroy_process_group()
os._exit(0)  # destructors of TensorRT and CUDA race otherwise
"""
DECODER: Final = """\
\"\"\"A rank of a decoder in Torch-TensorRT; without a cache, every token runs the whole text.\"\"\"

import os
import sys

import torch
import torch.distributed as dist
import torch_tensorrt
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM, AutoTokenizer

PLAN = {{
{plan}
}}

if len(sys.argv) != 2:
    sys.exit("usage: {usage} TEXT")
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
name = {name}
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.{dtype}).eval().to("cuda")
parallelize_module(model, init_device_mesh("cuda", (dist.get_world_size(),)), PLAN)
model{compiled}
tokenizer = AutoTokenizer.from_pretrained(name)
given = tokenizer(sys.argv[1], return_tensors="pt").to("cuda")
with torch.no_grad():
    made = model.generate(**given, max_new_tokens={tokens}, do_sample=False, use_cache=False)
if dist.get_rank() == 0:
    print(tokenizer.decode(made[0], skip_special_tokens=True))
{close}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What to type for a tool, and the files that it reads; or why it has no part in the plan."""

    title: str
    lines: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


def tools_of(
    scenario: Scenario,
    estimate: PlanEstimate,
    networks: Sequence[EngineNetwork],
    document: Document,
) -> tuple[Tool, ...]:
    """Write what each tool needs of a plan; document : its ``plan.json``."""
    return (
        _torch_tensorrt(scenario, estimate, networks),
        _polygraphy(scenario, estimate.plan),
        _trtexec(document),
    )


def _torch_tensorrt(
    scenario: Scenario, estimate: PlanEstimate, networks: Sequence[EngineNetwork]
) -> Tool:
    """Write a script that cuts a model as the plan does, compiles and runs it."""
    title, model, plan = "Torch-TensorRT", scenario.model, estimate.plan
    usage = f"torchrun --nproc-per-node {plan.gpus} {SCRIPT}"
    other_axes = [axis for axis, _ in plan.axes if axis not in ("tp", "ulysses")]
    if other_axes or scenario.workload.precision not in ("bf16", "fp16"):
        obstacle = f"the axis {other_axes[0]}" if other_axes else scenario.workload.precision
        return Tool(title=title, reason=f"{obstacle}: wanted tp or ulysses, in 16 bits")
    if model.kind == "decoder":
        script, reason = _decoder_script(scenario, estimate, networks, usage)
    else:
        script, reason = _diffusion_script(scenario, estimate, usage)
    if reason:
        return Tool(title=title, reason=reason)
    return Tool(title=title, lines=(f"{usage} TEXT",), files={SCRIPT: script})


def _diffusion_script(scenario: Scenario, estimate: PlanEstimate, usage: str) -> tuple[str, str]:
    """Write the script of diffusers, whose transformers are compiled; or say why not."""
    settings = replace(script_settings(scenario, estimate), runtime=EAGER)
    engine = find_engine("diffusers")
    launch = launch_with(engine, scenario.model, estimate.plan, settings)
    if launch.reason:
        return "", f"diffusers, which cuts the model, {launch.reason}"
    limits = engine.limits_of(scenario.model.name, scenario.model.family)
    assert limits is not None, "an engine without limits for a model refuses its plans"
    modules = [f"pipe.{name}" for name in limits.transformers]
    compiled = COMPILE_CALL.format(dynamic=False)
    frame = Frame(
        about=f"{scenario.model.name}, {estimate.plan}: one rank, compiled by Torch-TensorRT.",
        usage=usage,
        imports="import torch_tensorrt\n",
        last=tuple(f"{module}{compiled}" for module in modules),
        close=CLOSE_LINES.format(modules=", ".join(modules)),
    )
    return diffusers_script(launch, settings, weights_name(scenario, settings), frame), ""


def _decoder_script(
    scenario: Scenario, estimate: PlanEstimate, networks: Sequence[EngineNetwork], usage: str
) -> tuple[str, str]:
    """Write a script of transformers, cut by the names of the checkpoint; or say why not."""
    settings = script_settings(scenario, estimate)
    cuts = dict(_module_cuts(scenario, networks))
    if "" in cuts:
        return "", f"{cuts['']}: no linear layer of transformers is known for it"
    heads = scenario.model.main.heads.key_value
    if heads % estimate.plan.gpus:
        return "", f"{heads} heads of keys do not divide by {estimate.plan.gpus}"
    script = DECODER.format(
        plan="\n".join(f'    "{module}": {style},' for module, style in cuts.items()),
        usage=usage,
        name=repr(weights_name(scenario, settings)),
        dtype={"bf16": "bfloat16", "fp16": "float16"}[scenario.workload.precision],
        compiled=COMPILE_CALL.format(dynamic=True),
        tokens=max(1, int(scenario.workload.output_tokens)),
        close=CLOSE_LINES.format(modules="model"),
    )
    return script, ""


def _module_cuts(
    scenario: Scenario, networks: Sequence[EngineNetwork]
) -> Iterator[tuple[str, str]]:
    """Yield modules of the checkpoint and how each is cut; no module for a weight without one."""
    tensors = cast("Names", checkpoint_of(scenario.model).get("weights", {}))
    for layer in networks[0].of("weight"):
        name, split = str(layer.attributes["weight"]), str(layer.attributes["split"])
        keys = tensors.get(name, [])
        if split not in STYLES:
            continue
        if not keys or any("{expert}" in key or "#" in key for key in keys):
            yield "", name
        for key in keys if name != "head" else ["lm_head.weight"]:
            module = re.sub(r"\{layer[^}]*\}", "*", key.rstrip("?").removesuffix(".weight"))
            yield module, HEAD if name == "head" else STYLES[split]


def _polygraphy(scenario: Scenario, plan: Plan) -> Tool:
    """Write hints for ``polygraphy multi-device shard``, which gathers keys and values of rows."""
    title, path = "Polygraphy", scenario.request.model_path
    if plan.axes != (("allgather_kv", plan.gpus),):
        reason = "it shards ONNX graphs by allgather_kv alone, or TensorRT Edge-LLM's by tp"
        return Tool(title=title, reason=reason)
    if not path.endswith(".onnx"):
        return Tool(title=title, reason="it shards ONNX graphs: wanted --model FILE.onnx")
    work = scenario.workload
    rows = [int(work.length(stream.name)) for stream in scenario.model.streams]
    if any(size % plan.gpus for size in rows):
        return Tool(title=title, reason=f"rows {rows} do not divide by {plan.gpus}")
    file_name = Path(path).name
    hints, reason = _shard_hints(graph_at(Path(path), file_name), plan.gpus, file_name)
    if reason:
        return Tool(title=title, reason=reason)
    lines = (
        f"polygraphy multi-device shard {shell_path(path)} --hint {HINTS} -o sharded.onnx",
        "trtexec --onnx=sharded.onnx --saveEngine=engines/sharded.engine --skipInference",
    )
    return Tool(title=title, lines=lines, files={HINTS: json.dumps(hints, indent=1)})


def _shard_hints(graph: Graph, ranks: int, file_name: str) -> tuple[dict[str, object], str]:
    """Say which tensors are cut by rows and whose keys are gathered; or why there is nothing.

    Classes and fields are those of polygraphy 0.53.6, tools/multi_device/multi_device.py.
    """
    layers = layers_of(graph, file_name)
    cores = [graph.cores[place] for place in sorted(graph.cores)]
    streams = [shape for shape in graph.inputs.values() if len(shape) == STREAM]
    if graph.embeddings or not all(core.query for core in cores):
        return {}, "it finds attentions as product, softmax and product: no mask, no one operator"
    if graph.patches or not streams or any(layer.kind == "cross" for layer in layers):
        return (
            {},
            "it cuts rows of every stream: wanted latents as rows, and no text apart",
        )
    if any(shape[ROWS] or not shape[0] for shape in streams):
        return {}, "reshapes keep sizes that the graph fixes: wanted free rows, and a fixed batch"
    attentions = [
        {
            "q": core.query, "gather_kv": True, "gather_q": False,
            "replace": None, "polygraphy_class": "AttentionLayerHint",
        }
        for core in cores
    ]  # fmt: skip
    collectives = {
        "group_size": ranks, "nb_rank": ranks, "root": -1, "reduce_op": "max", "groups": [],
        "polygraphy_class": "DistCollective",
    }  # fmt: skip
    hints = {
        "parallelism": "CP", "attention_layers": attentions, "dist_collectives": collectives,
        "inputs": _free_row_tensors(graph.inputs), "outputs": _free_row_tensors(graph.outputs),
        "k_seq_len_idx": 3, "v_seq_len_idx": 2, "kv_rank": 4, "polygraphy_class": "ShardHints",
    }  # fmt: skip
    return hints, ""


def _free_row_tensors(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, object]]:
    """List the tensors whose rows are free."""
    return [
        {
            "name": name, "seq_len_idx": len(shape) + ROWS, "rank": len(shape),
            "polygraphy_class": "ShardTensor",
        }
        for name, shape in shapes.items()
        if len(shape) > 1 and not shape[ROWS]
    ]  # fmt: skip


def _trtexec(document: Document) -> Tool:
    """Time the engines that have no collective: trtexec hands over no communicator.

    Nor does it give an input and an output one memory, as a cache has that is written in place.
    """
    lone_engines = [
        engine["files"][0]
        for engine in document["engines"]
        if not engine["collectives"]
        and not any(name.startswith(CACHE_PREFIX) for name in engine["inputs"])
    ]
    lines = tuple(
        f"trtexec --loadEngine={file} --dumpProfile --exportProfile={Path(file).stem}.json"
        for file in lone_engines
    )
    requirement = "one, or a cache that is written in place"
    reason = f"it hands over no communicator, and every engine here needs {requirement}"
    return Tool(title="trtexec", lines=lines, reason="" if lines else reason)
