"""Settings that an engine's launch line gets beside the plan: sizes, precision, hosts."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import PurePath
from typing import Any, Final

from planner.models import known_as, sides_made
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.drafts import OWN_LAYERS
from planner.scenario.scenario import Scenario, usual_cache
from topology.base.values import dataclass
from topology.catalogue import Device, Fabric

USUAL_ATTENTION: Final = ("auto", "engine")
"""Names of attention kernels that leave the choice to whoever runs a model."""
UNNAMED: Final = "MODEL"
"""Stands for the path of a model that was given as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What engines are told beside the plan.

    folder : path of the model, empty where it comes from its repository. sizes : those asked for,
    by name: height, width, frames, steps, batch, length, the tokens of prompt and answer, and
    chunk, those of a step.
    longest : tokens of the longest request whose prompt a step may run; 0 where none does.
    precision, cache : empty where they are the checkpoint's own. stored : what weights are
    quantised to in the checkpoint, where another precision is asked. runtime, attention : empty for
    each engine's own. warmup : exact steps of a plan in pieces. features, threshold : name of a
    cache of features, empty for none, and what it is told. drafter : ``mtp`` or ``draft``, empty
    where nothing is drafted; drafted : tokens a step; draft : repository or folder of the model
    that drafts. hosts : that the GPUs are spread over evenly.
    host, rank : how the first host, and the number of the one at hand, are written.
    copies : of popular experts. capability : compute capability of the GPU, any where it is empty.
    spread : the links over whose ranks experts are spread, and the GPU; None where they are not.
    """

    folder: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    longest: int = 0
    video: bool = False
    precision: str = "bf16"
    stored: str = ""
    cache: str = ""
    runtime: str = ""
    attention: str = ""
    offload: bool = False
    warmup: int = 1
    features: str = ""
    threshold: str = ""
    drafter: str = ""
    drafted: int = 0
    draft: str = ""
    copies: int = 0
    hosts: int = 1
    host: str = "HOST"
    rank: str = "0"
    spread: tuple[Fabric, Device] | None = None
    capability: tuple[int, ...] = ()


def settings_of(scenario: Scenario, plan: Plan, told: Mapping[str, int] | None = None) -> Settings:
    """Collect what a request asks for of a plan; sizes left out are left to the engine.

    told : sizes of the load that plans are ranked under.
    """
    request, model, workload = scenario.request, scenario.model, scenario.workload
    is_language = model.kind == "decoder"
    deployment = scenario.deployment.on(plan.gpus)
    links = deployment.spread(plan)
    load = told or {}
    video = int(workload.frames) > 1 or model.defaults.frames > 1
    model_text = request.model_name if known_as(request.model_name) else request.model_path
    features, _, threshold = ("" if workload.reuse is None else workload.reuse.name).partition("=")
    default_cache = usual_cache(model, workload.precision, scenario.deployment.habits)
    stored_weights = None if scenario.as_published else model.quantisation
    return Settings(
        folder="" if known_as(model_text) else folder_of(model_text, pipeline=not is_language),
        sizes=_lengths(scenario, load) if is_language else _sizes(scenario, video=video),
        longest=_longest_request(workload, load) if is_language else 0,
        video=video,
        cache=workload.kv_precision if "fp8" in (workload.kv_precision, default_cache) else "",
        precision="" if scenario.as_published else workload.precision,
        stored="" if stored_weights is None else stored_weights.precision,
        runtime=scenario.deployment.runtime.name,
        attention="" if request.attention in USUAL_ATTENTION else request.attention,
        offload=request.offload,
        warmup=workload.warmup,
        features=features,
        threshold=threshold,
        **_drafts(scenario),
        copies=request.redundant_experts or 0,
        hosts=deployment.hosts,
        spread=None if links is None else (links, deployment.hardware.device),
        capability=deployment.hardware.device.compute_capability,
    )


def folder_of(text: str, *, pipeline: bool) -> str:
    """Say which folder engines load, of the path of a configuration; a pipeline's is its whole.

    They load no graphs and no configuration by another name: where that lies is no model's folder.

    >>> folder_of("flux/transformer/config.json", pipeline=True), folder_of("hf/", pipeline=False)
    ('flux', 'hf')
    >>> folder_of("exports/llama.onnx", pipeline=False), folder_of("qwen-awq.json", pipeline=False)
    ('MODEL', 'MODEL')
    """
    path = PurePath(text)
    configures = path.name in ("config.json", "model_index.json")
    if text.lstrip().startswith("{") or (path.suffix in (".onnx", ".json") and not configures):
        return UNNAMED
    path = path.parent if configures else path
    return str(path.parent if pipeline and path.name == "transformer" else path)


def _sizes(scenario: Scenario, *, video: bool) -> dict[str, int]:
    """Give what is asked for of an image, its sides as the pipeline makes them.

    Steps too where they follow from its frames: engines take those of videos.
    """
    request, model, steps = scenario.request, scenario.model, int(scenario.workload.steps)
    names = ("height", "width", *(["frames"] if video else []))
    sizes = {name: getattr(request, name) for name in names}
    sizes["steps"] = request.steps or (steps if steps != model.defaults.steps else 0)
    sides = sides_made(model.latent, request.height or 0, request.width or 0)
    sizes["height"], sizes["width"] = sides
    sizes["batch"] = request.batch if request.batch > 1 else 0
    return {name: int(size) for name, size in sizes.items() if size}


def _drafts(scenario: Scenario) -> dict[str, Any]:
    """Say who drafts how many tokens."""
    speculation = scenario.workload.speculation
    if speculation is None:
        return {}
    if speculation.own:
        return {"drafter": OWN_LAYERS, "drafted": speculation.tokens}
    draft_text = scenario.request.draft
    draft = speculation.draft
    location = draft.repository if known_as(draft_text) else folder_of(draft_text, pipeline=False)
    return {"drafter": "draft", "drafted": speculation.tokens, "draft": location or draft.name}


def _lengths(scenario: Scenario, load: Mapping[str, int]) -> dict[str, int]:
    """Give tokens of a request, the longest under load; of a step; and requests at once."""
    request, workload = scenario.request, scenario.workload
    has_lengths = request.input_tokens is not None or request.output_tokens is not None
    sizes = {"batch": request.batch, "length": _request_tokens(workload), **load}
    sizes |= {} if request.chunk is None else {"chunk": request.chunk}
    if "batch" not in load and request.batch == 1:
        del sizes["batch"]
    if not (has_lengths or request.arrivals or request.lengths):
        del sizes["length"]
    return sizes


def _longest_request(workload: Workload, load: Mapping[str, int]) -> int:
    """Count the tokens of the longest request; none of a load without steps for prompts."""
    if load and "chunk" not in load:
        return 0
    return load.get("length", _request_tokens(workload))


def _request_tokens(workload: Workload) -> int:
    prompt = max((int(tokens) for _, tokens in workload.tokens), default=0)
    return prompt + int(workload.output_tokens)
