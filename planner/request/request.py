"""What a user asks: a model, GPUs, a size, and how it is run. Checked here, once."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from topology.base import InputError, shown, unknown
from topology.base.values import dataclass
from topology.catalogue import Precision

if TYPE_CHECKING:
    from planner.models import Model
    from topology.machine import Machine

Rows = tuple[tuple[float, ...], ...]
"""Requests one by one, as numbers."""
Links = tuple[tuple[str, float], ...]
"""Names of links, and times their usual bandwidth."""
CachePrecision = Literal["bf16", "fp8"]
"""Of keys and values that are kept: in 16 bits, or 8."""
Objective = Literal["latency", "throughput", "memory", "cost"]
TowerHabit = Literal["once", "every_step"]

LARGEST: Final = {
    "gpus": 16384,
    "nodes": 4096,
    "height": 16384,
    "width": 16384,
    "frames": 10000,
    "steps": 1000,
    "warmup_steps": 1000,
    "batch": 65536,
    "input_tokens": 2**24,
    "output_tokens": 2**20,
    "text_tokens": 2**20,
    "concurrency": 65536,
    "chunk": 2**20,
    "prefill_workers": 4096,
    "decode_workers": 4096,
    "top": 1000,
    "speculative": 16,
    "redundant_experts": 4096,
    "pcie_generation": 6,
}


FASTEST: Final = 100
"""Times that a link may be as fast as usual."""
MAY_BE_ZERO: Final = ("nodes", "output_tokens", "warmup_steps")

SHARES: Final = ("spread", "prefix_hit")
ROWS: Final = ("arrivals", "lengths")
POSITIVE: Final = {
    "rate": (1 / 10**6, 10**6), "slo_ttft": (0, 10**9), "slo_tpot": (0, 10**9), "burst": (0, 100),
    "ttft_percentile": (0, 99.9), "tpot_percentile": (0, 99.9), "acceptance": (0, 0.999),
}  # fmt: skip
"""More than the first, and at most the second: of other loads too few requests are followed."""

EXECUTOR: Final = "planner"
"""Engine that ``planner validate`` runs plans with."""

CHOICES: Final = {
    "precision": Precision, "kv_precision": CachePrecision, "text_tower": TowerHabit,
    "objective": Objective,
}  # fmt: skip
"""What may be left out, and else is one of these."""

UNMODELLED: Final = {
    "lora": "adapters (LoRA) are not modelled; price the model they are merged into",
    "sparse_attention": "attention that leaves keys out (Sparse VideoGen, VSA, STA ...) is not "
    "modelled; fp8 and int8 attention are kernels: fa3, cudnn, sage, sage2",
    "async_ulysses": "Ulysses beside the projections (asynchronous) is not modelled; price "
    "ulysses: on two L20 FLUX.1 takes 2 to 5 % longer so (Cache-DiT)",
}
"""What is asked for and has no price here."""

RUNTIME: Final = "tensorrt"
"""Of a request that names neither a runtime nor an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked. Sizes left out are the model's usual ones.

    at_most_gpus : the answer may use fewer GPUs than `gpus`. offload : text encoders leave the GPU
    before the denoising starts. engine : by its name in the table of engines, with a version behind
    it or not, whose habits are priced; ``planner`` for this project's own executor, several with
    commas between them to compare, empty for none: eager PyTorch is then the model's own
    repository. runtime : empty for the engine's usual one, and to compare all. attention : kernel
    to price (``fa2``, ``cudnn`` ...), empty for the runtime's. text_tower : run a tower that
    ignores the step once or every step; the engine's habit where left out. nodes : hosts that the
    GPUs are spread over; 0 for as few as hold them. profile : path of a calibration profile, empty
    for the newest that ships for the hardware, ``none`` for the tables alone. topology : path or
    text of the machine to run on, or what was read of one, `detect` for the one at hand; `hardware`
    then names the kind of its GPUs where the text does not, and is empty otherwise.
    links : of the machine or the hardware that are slower than usual, faster or down, each by its
    name and times its bandwidth. pcie_generation : of a machine whose text does not say.
    tensorrt_version : of the TensorRT that is to run it, such as ``11.2.1.2``; empty for the newest
    known.

    Of a language model that is served: concurrency : requests that clients keep in flight; or
    rate : requests a second, that come at random; or arrivals : path of a file of requests, or rows
    of seconds, tokens of a prompt and of its answer. lengths : path of a file of prompts, answers
    and how many there are of each, or such rows; in place of input_tokens and output_tokens, and
    of spread : lengths are uniform within that share of the mean; None for requests of one length,
    which come apart as far as an engine lets them. burst : squared variation of the
    time between requests, 1 for a Poisson process. slo_ttft, slo_tpot : seconds that the mean
    time to the first token, and that of a later one, are to keep; or the time that is within
    ttft_percentile, tpot_percentile of all.
    chunk : tokens of a step, the engine's budget where left out. prefix_hit : share of each prompt
    that is cached. speculative : tokens that are drafted for each step; draft : by a model, its
    name or path, or ``mtp``, the model's own layers for that, the usual choice where it has some;
    acceptance : share of them that is accepted, each where those before it were.
    redundant_experts : copies of popular experts in each layer, which engines place by load.
    expert_distribution : how tokens choose experts, ``balanced``, ``uniform``, ``power_law`` or
    ``power_law_1.01``; or path of a file of the tokens that each expert took, or such numbers;
    empty for a power law, and chance alone where our executor runs drawn weights.
    prefill_plan, decode_plan : of workers that run prompts and of those that decode, where these
    are not the same; prefill_workers, decode_workers : how many there are, one where left out.
    disaggregate : such deployments are searched too.

    Of a diffusion model: cache : of features, such as ``teacache=0.2``, which skips steps.
    warmup_steps : exact ones of a plan in pieces (``pipefusion4``), 1 where left out.
    """

    model: "str | Model"
    gpus: int = 1
    hardware: str = "h100-sxm"
    nodes: int = 0
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    steps: int | None = None
    batch: int = 1
    input_tokens: int | None = None
    output_tokens: int | None = None
    text_tokens: int | None = None
    precision: Precision | None = None
    kv_precision: CachePrecision | None = None
    runtime: str = ""
    engine: str = ""
    objective: Objective = "latency"
    at_most_gpus: bool = False
    offload: bool = False
    text_tower: TowerHabit | None = None
    algorithm: str = "auto"
    attention: str = ""
    kv_repeat: bool = True
    wide_collectives: bool = False
    scattered_inputs: bool = False
    tensorrt_version: str = ""
    profile: str = ""
    topology: "str | Machine" = ""
    detect: bool = False
    links: Links = ()
    pcie_generation: int | None = None
    concurrency: int | None = None
    rate: float | None = None
    arrivals: str | Rows = ""
    lengths: str | Rows = ""
    spread: float | None = None
    burst: float = 1.0
    slo_ttft: float | None = None
    slo_tpot: float | None = None
    ttft_percentile: float | None = None
    tpot_percentile: float | None = None
    chunk: int | None = None
    prefix_hit: float = 0.0
    speculative: int | None = None
    draft: str = ""
    acceptance: float | None = None
    redundant_experts: int | None = None
    expert_distribution: str | tuple[float, ...] = ""
    prefill_plan: str = ""
    prefill_workers: int | None = None
    decode_plan: str = ""
    decode_workers: int | None = None
    disaggregate: bool = False
    cache: str = ""
    warmup_steps: int | None = None

    @property
    def two_pools(self) -> bool:
        """Whether the request names a plan for prompts and one for decoding."""
        return bool(self.prefill_plan)

    @property
    def loaded(self) -> bool:
        """Whether the request says how many requests there are at once."""
        return bool(self.concurrency or self.rate or self.arrivals)

    @property
    def paced(self) -> bool:
        """Whether requests come by themselves: all plans that keep up serve as many of them."""
        return bool(self.rate or self.arrivals)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that it names."""
        return tuple(self.engine.split(",")) if self.engine else ()

    @property
    def brings_machine(self) -> bool:
        """Whether the request names a machine instead of catalogue hardware alone."""
        return bool(self.topology) or self.detect

    @property
    def model_name(self) -> str:
        """Name of the model, or what it was asked for by."""
        return self.model if isinstance(self.model, str) else self.model.name

    @property
    def model_path(self) -> str:
        """Where the model was read from, or its name."""
        return self.model if isinstance(self.model, str) else self.model.source

    def to_dict(self) -> dict[str, object]:
        """Return the fields; a model and a machine that were read by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["links"] = dict(self.links)
        if not isinstance(self.topology, str):
            values["topology"] = self.topology.name
        return {**values, "model": self.model_name}

    def __post_init__(self) -> None:
        """Refuse numbers and names that cannot be right."""
        for name, attribute in (("model", "layers"), ("topology", "gpus")):
            if not hasattr(getattr(self, name), attribute):  # what has been read is no name
                _check_name(name, getattr(self, name))
        values = {field.name: (field.type, getattr(self, field.name)) for field in fields(self)}
        for name, (kind, value) in values.items():
            if kind is str or name in ROWS:
                _check_name(name, value)
            if kind is bool and not isinstance(value, bool):
                raise InputError(f"{name}: got {shown(value)}, wanted True or False")
        check_links(self.links)
        _check_distribution(self.expert_distribution)
        for name, (kind, value) in values.items():
            left_out = not value if name in MAY_BE_ZERO else value is None and kind is not int
            if kind in (int, int | None) and not left_out:
                _check_count(name, value)
        for name in (*SHARES, *POSITIVE):
            _check_real(name, values[name][1])
        _check_sources(self)
        _check_load(self)
        _check_pools(self)
        for name in CHOICES:
            _check_choice(name, getattr(self, name))


def _check_real(name: str, value: object) -> None:
    """Raise unless `value` is a share, or a number of something that there is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    numeric = cast(float, value) if is_number else math.nan
    left_out = value is None and Request.__dataclass_fields__[name].default is None
    if name in SHARES and not left_out and not 0 <= numeric < 1:
        raise InputError(f"{name}: got {shown(value)}, wanted a share, 0 or more and less than 1")
    if name in POSITIVE and not left_out:
        lower, upper = POSITIVE[name]
        if not lower < numeric <= upper:
            raise InputError(
                f"{name}: got {shown(value)}, wanted more than {lower:g} and at most {upper:,}"
            )


def _check_load(request: Request) -> None:
    """Refuse to be told twice how many requests there are, and to serve what writes nothing."""
    loads = [name for name in ("concurrency", "rate", "arrivals") if getattr(request, name)]
    names = [*loads, *(name for name in ("slo_ttft", "slo_tpot") if getattr(request, name))]
    for name in ("ttft", "tpot"):
        percentile = getattr(request, f"{name}_percentile")
        if percentile is not None and getattr(request, f"slo_{name}") is None:
            raise InputError(f"{name}_percentile: got {percentile:g}, wanted slo_{name} beside it")
    if names and request.batch > 1:
        raise InputError(f"batch: got {request.batch} beside {names[0]}, wanted one of the two")
    if request.arrivals and request.lengths:
        raise InputError("lengths: got some beside arrivals, which have their own, wanted one")
    if len(loads) > 1:
        raise InputError(f"{loads[1]}: got one beside {loads[0]}, wanted one of the two")
    if names and request.output_tokens == 0:
        raise InputError(f"output_tokens: got 0 beside {names[0]}, wanted 1 or more")


def _check_pools(request: Request) -> None:
    """Refuse half of two pools, and a batch beside them."""
    for pool, other_pool in (("prefill", "decode"), ("decode", "prefill")):
        plan, workers = getattr(request, f"{pool}_plan"), getattr(request, f"{pool}_workers")
        if plan and not getattr(request, f"{other_pool}_plan"):
            raise InputError(f"{pool}_plan: got {plan[:60]}, wanted {other_pool}_plan beside it")
        if workers and not plan:
            raise InputError(f"{pool}_workers: got {workers}, wanted {pool}_plan beside it")
    name = "prefill_plan" if request.two_pools else "disaggregate"
    if getattr(request, name) and request.batch > 1:
        raise InputError(f"batch: got {request.batch} beside {name}, wanted one of the two")
    if request.two_pools and request.disaggregate:
        raise InputError("prefill_plan: got one beside disaggregate, which searches it, wanted one")


def _check_sources(request: Request) -> None:
    """Refuse to be told twice of a machine, or of a machine or drafts where there are none."""
    if request.topology and request.detect:
        raise InputError("detect: got a topology too, wanted one of the two")
    if request.pcie_generation is not None and not request.brings_machine:
        raise machine_field_error("pcie_generation", request.pcie_generation)
    for name in ("draft", "acceptance") if request.speculative is None else ():
        if value := getattr(request, name):
            raise InputError(f"{name}: got {shown(value)}, wanted speculative beside it")


def machine_field_error(name: str, value: object) -> InputError:
    """Build the error for what is said of a machine that is a catalogue name."""
    return InputError(f"{name}: got {shown(value)}, wanted none beside catalogue hardware")


def _check_choice(name: str, value: object) -> None:
    choices = get_args(CHOICES[name])
    is_choice = isinstance(value, str) and value in choices
    if not is_choice and (value is not None or name == "objective"):
        raise unknown(name, value if isinstance(value, str) else shown(value), choices)


def _check_name(field: str, name: object) -> None:
    if not isinstance(name, str | tuple if field in ROWS else str):
        wanted = "a file, or rows of numbers" if field in ROWS else "a name"
        raise InputError(f"{field}: got {shown(name)}, wanted {wanted}")


def _check_distribution(value: object) -> None:
    """Raise unless `value` is a name, or some numbers."""
    numbers = isinstance(value, tuple) and all(isinstance(count, int | float) for count in value)
    if not isinstance(value, str) and not (numbers and value):
        raise InputError(
            f"expert_distribution: got {shown(value)}, wanted a name, a file, or the tokens that "
            "each expert took"
        )


def check_links(links: Sequence[tuple[object, object]]) -> None:
    """Raise unless every link has a name, once, and a number."""
    for name, times in links:
        is_number = isinstance(times, int | float) and not isinstance(times, bool)
        in_range = is_number and 0 <= cast(float, times) <= FASTEST
        if not isinstance(name, str) or not name or not in_range:
            raise InputError(
                f"links: got {shown(name)} and {shown(times)}, wanted a link and times its "
                f"bandwidth, 0 to {FASTEST:g}, such as {{'GPU0-NVSwitch': 0.5}}"
            )
    if len(dict(links)) < len(links):
        raise InputError("links: got one link twice, wanted each once")


def _check_count(name: str, value: object) -> None:
    """Raise unless `value` is a whole number from 1 to the largest that makes sense.

    >>> _check_count("gpus", 0)
    Traceback (most recent call last):
    topology.base.errors.InputError: gpus: got 0, wanted a whole number from 1 to 16384
    """
    largest = LARGEST[name]
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not 1 <= cast(int, value) <= largest:
        raise InputError(f"{name}: got {shown(value)}, wanted a whole number from 1 to {largest}")


def whole_number(name: str, value: object) -> int:
    """Read a count that a program passed: an int, or a float or numpy number that is whole.

    >>> whole_number("gpus", 8.0)
    8
    """
    try:
        number = float(cast(float, value))
    except Exception:  # noqa: BLE001  # an object's own failure too
        number = math.nan
    if (
        isinstance(value, bool | str | bytes)
        or getattr(getattr(value, "dtype", None), "kind", "") == "b"
        or not math.isfinite(number)
        or number != int(number)
    ):
        raise InputError(f"{name}: got {shown(value)}, wanted a whole number")
    return value if isinstance(value, int) else int(number)
