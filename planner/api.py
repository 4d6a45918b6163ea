"""The Python face of the planner: what `planner.estimate` and its like do.

Every result has ``to_dict()``, equal to what the command prints with ``--format json``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce, wraps
from inspect import Parameter, signature
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypedDict, TypeVar, Unpack, cast, get_args

import numpy as np
from numpy.typing import NDArray

from costmodels.formats import FORMATS, SERVING
from costmodels.sizes import smaller
from costmodels.tables import profile_for
from planner.collective_table import MOST_GPUS, MOST_NODES, curves_of
from planner.models import Model
from planner.models import read_model as find_model
from planner.recommendation import Recommendation, estimate_plan, recommend_plans
from planner.request.plan import Plan
from planner.request.request import (
    CachePrecision,
    Objective,
    Request,
    TowerHabit,
    whole_number,
)
from planner.scenario.keywords import check_argument, distinct_names, request_of
from planner.scenario.scenario import resolve
from planner.search.estimate import PlanEstimate
from topology.base import InputError, shown, unknown
from topology.catalogue import Fabric, Precision, find_hardware

if TYPE_CHECKING:
    from planner.fleet.answers import Capacity
    from planner.fleet.demand import Spare
    from planner.simulation.simulation import Simulation
    from planner.sweeping import Rows
    from topology.machine import Machine

P = ParamSpec("P")
R = TypeVar("R")
Number = float | NDArray[np.float64]

POOLED: Final = (
    "prefill_plan", "prefill_workers", "decode_plan", "decode_workers", "disaggregate",
)  # fmt: skip
"""What asks for workers that run prompts and others that decode."""
LARGEST_EXACT: Final = 2**53
LONGEST_RANGE: Final = 10_000_000
"""Sizes in a range, which takes memory only when it is read."""
MOST_EXPERTS: Final = 2**14
PATHS: Final = ("hardware", "profile", "topology", "model", "demand", "price")
"""Names that may be paths."""
KV_PRECISIONS: Final = get_args(CachePrecision)


class Options(TypedDict, total=False):
    """What may be asked for beside a model, GPUs and a plan: the fields of `Request`."""

    hardware: str | Path
    nodes: int
    height: int | None
    width: int | None
    frames: int | None
    steps: int | None
    batch: int
    input_tokens: int | None
    output_tokens: int | None
    text_tokens: int | None
    precision: Precision | None
    kv_precision: CachePrecision | None
    runtime: str | None
    engine: str | None
    objective: Objective | None
    at_most_gpus: bool
    offload: bool
    text_tower: TowerHabit | None
    algorithm: str
    attention: str
    kv_repeat: bool
    wide_collectives: bool
    scattered_inputs: bool
    tensorrt_version: str
    profile: str | Path
    topology: "str | Path | Machine"
    detect: bool
    links: Mapping[str, float]
    pcie_generation: int | None
    concurrency: int | None
    rate: str | float | None
    arrivals: "str | Path | Sequence[Sequence[float]]"
    lengths: "str | Path | Sequence[Sequence[float]]"
    spread: float | None
    burst: float
    slo_ttft: str | float | None
    slo_tpot: str | float | None
    ttft_percentile: float | None
    tpot_percentile: float | None
    chunk: int | None
    prefix_hit: float
    speculative: int | None
    draft: str | Path
    acceptance: float | None
    redundant_experts: int | None
    expert_distribution: "str | Path | Sequence[float]"
    prefill_plan: str | Plan
    prefill_workers: int | None
    decode_plan: str | Plan
    decode_workers: int | None
    disaggregate: bool
    cache: str
    warmup_steps: int | None


def _public(function: Callable[P, R]) -> Callable[P, R]:
    """Write the keywords of a function out in its signature, and refuse others with the nearest."""
    own_signature = signature(function)
    parameters = [p for p in own_signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(parameters) < len(own_signature.parameters):  # it takes `Options`
        request_fields = Request.__dataclass_fields__
        parameters += [
            Parameter(
                name, Parameter.KEYWORD_ONLY, default=request_fields[name].default, annotation=kind
            )
            for name, kind in Options.__annotations__.items()
            if name not in own_signature.parameters
        ]
    names = sorted(parameter.name for parameter in parameters)

    @wraps(function)
    def checked(*values: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            check_argument(name, names)
        return function(*values, **keywords)

    checked.__signature__ = own_signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return checked


@_public
def estimate(
    model: str | Path | Model,
    gpus: int | None = None,
    plan: str | Plan | None = None,
    **options: Unpack[Options],
) -> PlanEstimate:
    """Estimate one plan in full.

    Parameters
    ----------
    model : a catalogue name, the path of a config.json or a diffusers folder, or what `read_model`
        gave.
    gpus : where left out all of a machine, those of the plan, or one.
    plan : such as ``cfg2.ulysses4``; may be left out on one GPU.
    **options : ``hardware``, ``height``, ``width``, ``frames``, ``steps``, ``batch``, ``runtime``,
        ``precision``, ``nodes``, ``input_tokens``, ``output_tokens`` ... as in `Request`.

    Raises `InputError` if a name or a number cannot be right, or the plan cannot run
    (`IllegalPlanError`).
    """
    _check_one_plan("recommend searches two pools", options, ("disaggregate",))
    scenario = resolve(request_of(model, gpus, options, plan))
    return estimate_plan(scenario, plan)


@_public
def simulate(  # noqa: PLR0913  # as written for the command
    model: str | Path | Model,
    gpus: int | None = None,
    plan: str | Plan | None = None,
    *,
    even: bool = False,
    slow: Mapping[int, float] = MappingProxyType({}),
    pause: Mapping[int, float] = MappingProxyType({}),
    mixed: Mapping[int, str] = MappingProxyType({}),
    traffic: Mapping[str, float] = MappingProxyType({}),
    order: str = "zigzag",
    jitter: float = 0.0,
    runs: int = 1,
    **options: Unpack[Options],
) -> "Simulation":
    """Run one plan as events on every rank; other arguments as for `estimate`.

    Parameters
    ----------
    even : all GPUs are equally fast. slow : how many times as long as usual some ranks compute.
    pause : seconds that hosts of some ranks issue nothing for at the start of a turn.
    mixed : hardware of ranks whose GPUs are of another kind. traffic : parts of links that others
    take, named as in ``links``. order : of causal tokens over ranks, ``zigzag``, ``plain`` or
    ``striped``.
    jitter : by how much the time of every task differs by chance, as a part. runs : with other
        draws, for percentiles.

    Raises `InputError` if a name or a number cannot be right, or the plan cannot run
    (`IllegalPlanError`).
    """
    from planner.simulation.cut import resolved  # noqa: PLC0415  # few ask for it
    from planner.simulation.disturbances import MOST_RUNS, Disturbances  # noqa: PLC0415  # few ask for it
    from planner.simulation.simulation import simulate as run  # noqa: PLC0415

    _check_one_plan("simulate runs one plan", options, POOLED)
    scenario = resolved(request_of(model, gpus, options, plan), plan)
    disturbed = Disturbances(
        even=even, slow=slow, paused=pause, mixed=mixed, traffic=traffic, order=order,
        jitter=jitter, runs=_checked_count("runs", runs, MOST_RUNS),
    )  # fmt: skip
    return run(scenario, estimate_plan(scenario, plan), disturbed)


@_public
def recommend(
    model: str | Path | Model,
    gpus: int | None = None,
    *,
    simulate: int | None = None,
    **options: Unpack[Options],
) -> Recommendation:
    """Rank all plans by what runs them fastest; arguments as for `estimate`.

    simulate : so many of the first plans are run as events, and ranked again by that.

    Parameters
    ----------
    **options : as for `estimate`; ``engine`` may name several, such as ``xdit,sglang``.

    Raises `InputError` if a name or a number cannot be right.
    """
    _check_one_plan("recommend searches them, with disaggregate", options, POOLED[:-1])
    scenario = resolve(request_of(model, gpus, options), several=True)
    if simulate is not None:
        simulate = whole_number("simulate", simulate)
    return recommend_plans(scenario, simulated=simulate)


@_public
def sweep(  # type: ignore[misc]  # hardware may be several
    models: str | Path | Sequence[str | Path],
    hardware: str | Path | Sequence[str | Path] = "h100-sxm",
    gpus: int | str | Sequence[int] = 1,
    *,
    plan: str | Sequence[str] = "best",
    executor: str = "local",
    scheduler: str = "",
    **options: Unpack[Options],
) -> "Rows":
    """Price every combination of models, hardware, numbers of GPUs, sizes and plans.

    Parameters
    ----------
    models, hardware : names or paths, one or several.
    gpus : numbers, or text such as ``1:64``.
    plan : plans, ``all`` that are legal, or the ``best`` of each question.
    executor : ``local``, the cores of this machine, or ``dask``, with the address of a `scheduler`.
    **options : as for `estimate`; ``height``, ``width``, ``frames``, ``steps``, ``input_tokens``
        and ``output_tokens`` may be lists, or text such as ``480:1080:120``.

    Returns rows, mappings with what was asked, ``plan``, ``latency_s``, ``throughput_per_s``,
    ``memory_bytes``, ``fits``, ``runs`` and ``reason``; ``to_frame()`` gives a data frame.

    Raises `InputError` if a name or a number cannot be right.
    """
    from planner.sweeping import executor_of, questions_of, run  # noqa: PLC0415  # few ask

    _check_one_plan("sweep prices one plan a row", options, POOLED)
    _check_one_plan("sweep prices whole prompts", options, ("prefix_hit",))
    _check_names(executor=executor, scheduler=scheduler)
    questions = questions_of(models, hardware, gpus, plan, options)
    return run(questions, executor_of(executor, scheduler), lambda _: None)


def _check_one_plan(reason: str, options: Mapping[str, object], names: Sequence[str]) -> None:
    """Refuse two pools where plans of one are looked at, and what else has no meaning there."""
    for name in names:
        value = options.get(name)
        if value is not None and not (isinstance(value, str | int | float) and not value):
            raise InputError(f"{name}: got {shown(value)}, wanted none: {reason}")


@_public
def capacity(  # type: ignore[misc]  # noqa: PLR0913  # as written for the command
    demand: str | Path | None = None,
    *,
    model: str | Path = "",
    rate: str = "",
    slo: str = "",
    hardware: str | Sequence[str] = "h100-sxm",
    price: str | Path = "",
    percentile: float = 95.0,
    hours: str | Path | Sequence[float] | None = None,
    spare: "Spare | None" = None,
    headroom: float | None = None,
    growth_per_month: float | None = None,
    **options: Unpack[Options],
) -> "Capacity":
    """Count the GPUs that a demand needs, for each kind of hardware.

    Parameters
    ----------
    demand : path of a file of demands; or else `model`, `rate`, such as ``0.5/min``, and `slo`,
        such as ``60s``, say one.
    hardware : names or files. price : path of what a GPU costs an hour. percentile : percentage of
        requests that are to be done in that time.
    hours, spare, headroom, growth_per_month, **options : as in a file of demands.

    Raises `InputError` if a name or a number cannot be right, or a file cannot be read.
    """
    from planner.fleet import demand_file as files  # noqa: PLC0415  # few ask for it
    from planner.fleet.fleet import capacity as planned  # noqa: PLC0415

    _check_one_plan("capacity counts replicas of one plan", options, POOLED)
    _check_names(model=model, price=price, rate=rate, slo=slo)
    if demand is not None:
        _check_names(demand=demand)
    growth_options = {"spare": spare, "headroom": headroom, "growth_per_month": growth_per_month}
    all_options = {**options, **growth_options, "hours": hours}
    given_options = {name: value for name, value in all_options.items() if value is not None}
    if demand is None:
        demand_options = {**given_options, "percentile": percentile}
        demands = [files.demand_of(str(model), str(model), rate, slo, demand_options)]
    elif model or rate or slo or given_options.keys() - {"profile"}:
        raise InputError("demand: got a file and a demand beside it, wanted one of the two")
    else:
        text = files.text_of(str(demand), "demand", files.DEMANDS)
        demands = files.read_demands(text, Path(demand).name, str(given_options.get("profile", "")))
    names = list(dict.fromkeys(distinct_names("hardware", hardware)))
    return planned(demands, names, files.prices_of(str(price or ""), names))


@_public
def collective(  # noqa: PLR0913  # the contract's signature
    op: str,
    message_bytes: Number,
    gpus: int,
    hardware: str | Path | None = None,
    nodes: int = 1,
    *,
    algorithm: str = "auto",
    launch: str = "graph",
    profile: str | Path = "",
    topology: "str | Path | Machine" = "",
) -> Number:
    """Return the seconds of a collective, for a number or an array of message sizes.

    Parameters
    ----------
    op : ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``,
        ``reduce``, ``gather``, ``scatter`` or ``send_recv``.
    message_bytes : what nccl-tests prints as size: the larger buffer of one rank.
    hardware : a catalogue name or a file of hardware, ``h100-sxm`` where left out; with a
        `topology` the kind of GPU that it does not name.
    topology : path or text of the machine, or what `read_topology` gave; the best joined of its
        GPUs are taken.
    algorithm : ``auto`` is NCCL's choice, ``engine`` the best of NCCL and serving engines'
        kernels; or one by name.
    launch : ``graph``, or ``stream`` for a call issued by the host.
    profile : path of a calibration profile; empty for the one that ships, ``none`` for none.

    Raises `InputError` if a name is unknown, a number cannot be right, or an algorithm cannot do
    the operation.
    """
    from costmodels.collectives import collective_time  # noqa: PLC0415

    ranks, hosts = (
        _checked_count("gpus", gpus, MOST_GPUS),
        _checked_count("nodes", nodes, MOST_NODES),
    )
    _check_names(op=op, algorithm=algorithm, launch=launch, profile=profile)
    _check_machine(hardware, topology)
    sizes = _checked_sizes("message_bytes", message_bytes, least=0)
    fabric, name = _fabric_and_name(ranks, hosts if hosts > 1 else 0, hardware, topology)
    curves = curves_of(name, str(profile), None)
    array = cast("NDArray[np.float64]", sizes)  # a float is taken alike
    return collective_time(
        op, array, fabric, algorithm=algorithm, launch=launch, calibration=curves
    )


@_public
def dispatch(  # noqa: PLR0913  # a layer, its ranks, and how it is run
    tokens: Number,
    hidden: Number,
    experts: int,
    top_k: int,
    gpus: int,
    hardware: str | Path | None = None,
    *,
    nodes: int = 1,
    phase: str = "dispatch",
    way: str = "auto",
    precision: str = "bf16",
    distribution: str | Sequence[float] = "balanced",
    engine: str = "",
    launch: str = "graph",
    topology: "str | Path | Machine" = "",
) -> Number:
    """Return the seconds in which tokens reach the ranks of their experts, or results come back.

    Parameters
    ----------
    tokens : of each rank. hidden : features of one. experts, top_k : of a layer, spread evenly over
        the GPUs, and those of a token.
    phase : ``dispatch``, tokens to experts, or ``combine``, results back.
    way : ``allgather_reducescatter``, ``all_to_all``, ``deepep_normal``, ``deepep_low_latency``,
        ``nvlink_one_sided`` or ``.._two_sided``; ``auto`` is the fastest that can be taken there.
    precision : of tokens as they travel, with their scales; results come back in 16 bits.
    engine : in whose way a kernel is called; empty for the kernel alone. distribution : as of
        `experts`; the busiest rank is waited for. hardware, topology, launch : as of `collective`.

    Raises `InputError` if a name is unknown, a number cannot be right, or a way cannot be taken.
    """
    from costmodels.collectives.dispatch import Exchange, Phase, ways_on  # noqa: PLC0415
    from costmodels.collectives.settings import read_launch  # noqa: PLC0415
    from costmodels.expert_routing import routing_of  # noqa: PLC0415
    from costmodels.formats import token_bytes  # noqa: PLC0415

    ranks, hosts = (
        _checked_count("gpus", gpus, MOST_GPUS),
        _checked_count("nodes", nodes, MOST_NODES),
    )
    _check_names(phase=phase, way=way, precision=precision, launch=launch)
    _check_machine(hardware, topology)
    _check_engine(engine)
    if precision not in FORMATS:
        raise unknown("precision", precision, FORMATS)
    expert_count, _, token_experts = _expert_counts(experts=experts, gpus=ranks, top_k=top_k)
    fabric, name = _fabric_and_name(ranks, hosts if hosts > 1 else 0, hardware, topology)
    device, sizes = find_hardware(name).device, _sizes(tokens=tokens, hidden=hidden)
    features = cast("NDArray[np.float64]", sizes["hidden"])  # a float is taken alike
    size = token_bytes(features, precision if phase == "dispatch" else "bf16")
    times = [
        Exchange(
            phase=cast(Phase, phase), way=name, engine=engine, launch=read_launch(launch),
            routing=routing_of(_distribution(distribution), expert_count, token_experts),
            fabric=fabric, device=device,
        ).time(sizes["tokens"], size)
        for name in (ways_on(fabric, device) if way == "auto" else [way])
    ]  # fmt: skip
    return cast(Number, reduce(smaller, times))


def _fabric_and_name(
    gpus: int, nodes: int, hardware: str | Path | None, topology: "str | Path | Machine"
) -> tuple[Fabric, str]:
    if not topology:
        node = find_hardware(hardware or "h100-sxm")
        return node.fabric(gpus, nodes), node.name
    from planner.request.subset import read_machine  # noqa: PLC0415  # only machines need it

    source = str(topology) if isinstance(topology, Path) else topology
    used_subset = read_machine(source, hardware=str(hardware or ""), nodes=nodes).on(gpus, nodes)
    return used_subset.fabric(), used_subset.machine.hardware or ""


@_public
def read_model(path_or_name: str | Path | Model) -> Model:
    """Read a model by its catalogue name, from a file or folder, or from JSON text.

    Raises `InputError` if there is no such model, or what is there cannot be a model.
    """
    return find_model(path_or_name)


@_public
def read_topology(
    source: str | Path,
    *,
    hardware: str | Path | None = None,
    pcie_generation: int | None = None,
) -> "Machine":
    """Read a machine from a text, such as of ``nvidia-smi topo -m``, or the file of that name.

    Parameters
    ----------
    hardware : kind of the GPUs, its catalogue name or its file, where the text does not name it.
    pcie_generation : of the server, where the text does not say.

    Raises `InputError` if nothing of a machine is there, it contradicts itself, or a name is
    unknown.
    """
    from topology.readers import read_topology as read  # noqa: PLC0415  # slow to load

    return read(source, hardware=hardware, pcie_generation=pcie_generation)


@_public
def matmul(  # noqa: PLR0913  # the contract's signature
    m: Number,
    n: Number,
    k: Number,
    hardware: str | Path = "h100-sxm",
    precision: str = "bf16",
    *,
    engine: str = "",
    sustained: bool = False,
    profile: str | Path = "",
) -> Number:
    """Return the seconds of ``[m, k] x [k, n]`` on one GPU, for numbers or arrays.

    Parameters
    ----------
    precision : ``bf16``, ``fp16``, ``fp8``, ``fp8_block`` (a scale a block), ``nvfp4``, ``int8``,
        and weights alone in ``int4`` or ``mxfp4``; quantised ones with what a serving engine does
        to their inputs.
    engine : whose kernels: ``vllm``, ``sglang-llm`` or ``tensorrt-llm``; empty for any.
    sustained : at the clock after seconds of load.
    profile : path of a calibration profile; empty for the one that ships, ``none`` for none.

    Raises `InputError` if a name is unknown, a number cannot be right, or the GPU lacks the
    precision.
    """
    from costmodels.kernels import matmul_time  # noqa: PLC0415

    kernel = _kernel_options(hardware, precision, profile, engine, sustained=sustained)
    sizes = _sizes(m=m, n=n, k=k)
    return cast(Number, matmul_time(**{**kernel, **sizes}))


@_public
def experts(  # noqa: PLR0913  # the contract's signature
    tokens: Number,
    hidden: Number,
    intermediate: Number,
    experts: int,
    top_k: int,
    hardware: str | Path = "h100-sxm",
    *,
    tp: int = 1,
    ep: int = 1,
    precision: str = "bf16",
    distribution: str | Sequence[float] = "balanced",
    gated: bool = True,
    engine: str = "",
    sustained: bool = False,
    profile: str | Path = "",
) -> Number:
    """Return the seconds of one rank's layer of experts, for numbers or arrays.

    Both products, and what a serving engine does around them: routing, sorting, activating and
    summing; no messages. The rank with the most work is waited for.

    Parameters
    ----------
    tokens : of all ranks that share the experts. hidden, intermediate : of a whole expert.
    experts, top_k : of the layer, and of a token. tp, ep : ranks that share an expert, and groups
        of ranks that hold experts of their own.
    distribution : ``balanced`` gives all experts as many rows; ``power_law``, also
        ``power_law_1.2``, some far more than others, and ``uniform`` as chance has it; or the
        tokens that each expert was seen to take.
    gated : whether experts have a gate beside their first matrix.
    precision, engine, sustained, profile : as of `matmul`; also ``mxfp4_mxfp8``, whose inputs are
        rounded too.

    Raises `InputError` if a name is unknown, a number cannot be right, or the GPU lacks the
    precision.
    """
    from costmodels.expert_routing import routing_of  # noqa: PLC0415
    from costmodels.kernels import experts_time  # noqa: PLC0415

    kernel = _kernel_options(hardware, precision, profile, engine, gated=gated, sustained=sustained)
    sizes = _expert_sizes(tp, tokens=tokens, hidden=hidden, intermediate=intermediate)
    expert_count, groups, token_experts = _expert_counts(experts=experts, ep=ep, top_k=top_k)
    routing = routing_of(_distribution(distribution), expert_count, token_experts)
    return cast(Number, experts_time(routing=routing, ep=groups, **{**kernel, **sizes}))


def _expert_counts(**counts: object) -> tuple[int, int, int]:
    """Return experts, groups of ranks that hold them, and those of a token."""
    expert_count, groups, token_experts = (
        _checked_count(name, count, MOST_EXPERTS) for name, count in counts.items()
    )
    if expert_count % groups:
        raise InputError(
            f"{[*counts][1]}: got {groups}, wanted a divisor of {expert_count} experts"
        )
    return expert_count, groups, token_experts


def _expert_sizes(tp: int, **raw_sizes: Number) -> dict[str, Number]:
    """Return sizes with this rank's share of the intermediate one."""
    sizes, degree = _sizes(**raw_sizes), _checked_count("tp", tp, LARGEST_EXACT)
    if np.any(sizes["intermediate"] % degree):
        shown_width = shown(raw_sizes["intermediate"])
        raise InputError(f"tp: got {degree}, wanted a divisor of intermediate {shown_width}")
    return {**sizes, "intermediate": sizes["intermediate"] / degree}


def _distribution(distribution: object) -> str | tuple[float, ...]:
    """Read a name, or the tokens that experts took."""
    if isinstance(distribution, str):
        return distribution
    expert_tokens = np.atleast_1d(
        _checked_sizes("distribution", cast(Number, distribution), least=0)
    )
    return tuple(map(float, expert_tokens.ravel()))


@_public
def attention(  # noqa: PLR0913  # the contract's signature
    heads: Number,
    queries: Number,
    keys: Number,
    head_dim: Number,
    hardware: str | Path = "h100-sxm",
    *,
    batch: Number = 1,
    kv_heads: Number | None = None,
    causal: bool = False,
    precision: str = "bf16",
    kv_precision: str | None = None,
    window: int | None = None,
    kernel: str = "engine",
    engine: str = "",
    sustained: bool = False,
    profile: str | Path = "",
) -> Number:
    """Return the seconds of one attention on one GPU, for numbers or arrays.

    Parameters
    ----------
    kv_heads : heads of keys and values, which divide `heads`; as many where left out.
    kv_precision : of an engine's cache, ``bf16`` or ``fp8``; as `precision` where left out.
    window : keys that a query sees, itself among them; all where left out.
    kernel : ``engine`` is a call as a serving engine makes it, with what it does around its
        kernel; ``auto`` the bare kernel that is usual on the GPU (cuDNN on Hopper; another may
        be faster at a size); or one by name (``fa2``, ``fa3``, ``cudnn`` ...).
    engine, sustained, profile : as of `matmul`.

    Raises `InputError` if a name is unknown, a number cannot be right, or the GPU lacks the
    precision.
    """
    from costmodels.kernels import attention_time  # noqa: PLC0415

    _check_names(kernel=kernel)
    kernel_options = _kernel_options(
        hardware, precision, profile, engine, causal=causal, sustained=sustained
    )
    if kv_precision is not None:
        _check_names(kv_precision=kv_precision)
        if kv_precision not in KV_PRECISIONS:
            raise unknown("kv_precision", kv_precision, KV_PRECISIONS)
    kv_sizes = {} if kv_heads is None else {"kv_heads": kv_heads}
    sizes = _sizes(
        heads=heads, queries=queries, keys=keys, head_dim=head_dim, batch=batch, **kv_sizes
    )
    if kv_sizes and np.any(sizes["heads"] % sizes["kv_heads"]):
        raise InputError(
            f"kv_heads: got {shown(kv_heads)}, wanted a divisor of heads {shown(heads)}"
        )
    window_keys = 0 if window is None else _checked_count("window", window, LARGEST_EXACT)
    kernel_options |= {
        "kv_precision": kv_precision or precision,
        "kernel": kernel,
        "window": window_keys,
    }
    return cast(Number, attention_time(**{**kernel_options, **sizes}))


def _kernel_options(
    hardware: str | Path, precision: str, profile: str | Path, engine: str, **flags: bool
) -> dict[str, Any]:
    """Check what says how a kernel is called, and give it as those of `costmodels.kernels` take it.

    Of a profile of this hardware its kernels are taken, None where the tables that ship serve.
    """
    _check_names(hardware=hardware, precision=precision, profile=profile)
    _check_engine(engine)
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise InputError(f"{name}: got {shown(flag)}, wanted True or False")
    node = find_hardware(hardware)
    multiplied_format = FORMATS[precision].multiplied if precision in FORMATS else precision
    if multiplied_format and node.device.peak(multiplied_format) is None:
        precisions = ", ".join(name for name, _ in node.device.peaks)
        raise InputError(
            f"{node.device.name} has no tensor cores for {precision}: expected one of {precisions}"
        )
    profiled = profile_for(node.name, str(profile))
    return {
        **{name: bool(flag) for name, flag in flags.items()},
        "device": node.device, "precision": precision, "engine": engine,
        "calibration": None if profiled is None else profiled.kernels,
    }  # fmt: skip


def _checked_count(name: str, value: object, maximum: int) -> int:
    count = whole_number(name, value)
    if not 1 <= count <= maximum:
        raise InputError(f"{name}: got {count}, wanted a whole number from 1 to {maximum}")
    return count


def _check_names(**names: object) -> None:
    for field, text in names.items():
        if not (isinstance(text, str) or (field in PATHS and isinstance(text, Path))):
            expected = "a text such as 0.5/min or 60s" if field in ("rate", "slo") else "a name"
            raise InputError(f"{field}: got {shown(text)}, wanted {expected}")


def _check_machine(hardware: object, topology: object) -> None:
    if not hasattr(topology, "gpus"):  # what has been read is no name
        _check_names(topology=topology)
    if hardware is not None:
        _check_names(hardware=hardware)


def _check_engine(engine: object) -> None:
    if not isinstance(engine, str):
        raise InputError(f"engine: got {shown(engine)}, wanted a name")
    if engine and engine not in SERVING:
        raise unknown("engine with kernels of its own", engine, SERVING)


def _sizes(**raw_sizes: Number) -> dict[str, Number]:
    """Return sizes as `_checked_sizes`, which must broadcast together."""
    sizes = {name: _checked_sizes(name, value) for name, value in raw_sizes.items()}
    for name, value in sizes.items():
        if np.any(value % 1):
            raise InputError(f"{name}: got {shown(raw_sizes[name])}, wanted whole numbers")
    shapes = {name: np.shape(value) for name, value in sizes.items()}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        shape_text = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if shape)
        raise InputError(f"sizes: got shapes {shape_text}, wanted ones that broadcast") from None
    return sizes


def _checked_sizes(name: str, value: Number, least: float = 1) -> Number:
    """Return sizes with their shape, from `least` to the largest that a float counts exactly."""
    if isinstance(value, range) and len(value) > LONGEST_RANGE:
        raise InputError(f"{name}: got {len(value):,} numbers, wanted at most {LONGEST_RANGE:,}")
    try:
        array = np.asarray(value)
    except Exception:  # noqa: BLE001  # rows of different lengths, or an object's own failure
        array = np.array(None)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name}: got {shown(value)}, wanted a number or an array of numbers")
    if np.ma.is_masked(value):
        raise InputError(f"{name}: got {shown(value)}, wanted numbers without a mask")
    if not np.all((array >= least) & (array <= LARGEST_EXACT)):
        raise InputError(f"{name}: got {shown(value)}, wanted numbers from {least} to 2**53")
    return float(array) if array.ndim == 0 else array.astype(np.float64)
