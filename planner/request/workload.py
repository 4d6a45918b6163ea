"""What is asked of a model, in tokens, and what whoever runs it does in its own way."""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from costmodels.collectives.dispatch import Taken, obstacle
from costmodels.program import Size
from costmodels.runtime import Fusion, Runtime
from costmodels.sizes import any_true
from topology.base import Sourced
from topology.base.values import dataclass, hash_of
from topology.catalogue import Device, Fabric, Precision

if TYPE_CHECKING:
    from planner.models import Model

TextTower = Literal["usual", "once", "every_step"]
"""Usual is once, and with every step in a pipeline, whose stages it is cut into."""

Rings = Literal["urgent", "passed", "gathered"]
"""Urgent is passed on by a stream of high priority, whose messages hide beside attention. Passed is
by a stream like any other, where a message and the attention wait for the same kernel, the
attention is there first and nothing hides over NVLink; a graph keeps an order in which it does.
Gathered is all at once, before the first partial attention or, on a stream like any other, beside
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Host time of whoever runs a model to issue a kernel or a collective; None for the runtime's.

    all_reduce, all_gather : where they are not as other collectives.
    """

    kernel: Sourced | None = field(default=None, metadata={"unit": "s"})
    collective: Sourced | None = field(default=None, metadata={"unit": "s"})
    all_reduce: Sourced | None = field(default=None, metadata={"unit": "s"})
    all_gather: Sourced | None = field(default=None, metadata={"unit": "s"})

    def of(self, runtime: Runtime) -> Runtime:
        """Return a runtime with these times."""
        named_times = (("all_reduce", self.all_reduce), ("all_gather", self.all_gather))
        return replace(
            runtime,
            host_kernel=self.kernel or runtime.host_kernel,
            host_collective=self.collective or runtime.host_collective,
            calls=tuple((kind, time.value) for kind, time in named_times if time is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWay:
    """A way that tokens take to experts that are spread over ranks, and when an engine takes it.

    way : one of `costmodels.collectives.dispatch.WAYS`. flag : that asks for it; empty where the
    engine takes it by itself. sent : formats in which tokens are sent on, where experts take them.
    over : links that it is taken over, ``node``, ``rack`` (NVLink over hosts) or ``network``; empty
    for any. local : GPUs of a node or rack that it can have; empty for any.
    most, ranks, top_k : tokens of a rank, ranks, and experts of a token at most; 0 for any.
    """

    way: str
    flag: str = ""
    sent: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    local: tuple[int, ...] = ()
    most: int = 0
    ranks: int = 0
    top_k: int = 0

    def serves(self, top_k: int, fabric: Fabric, device: Device) -> bool:
        """Whether it can be taken over the links, with so many experts a token."""
        inside = "rack" if fabric.hosts > 1 else "node"
        over = "network" if fabric.nodes > 1 else inside
        return (
            (not self.over or over in self.over)
            and (not self.local or fabric.local in self.local)
            and fabric.ranks <= (self.ranks or fabric.ranks)
            and top_k <= (self.top_k or top_k)
            and not obstacle(self.way, fabric, device)
        )

    @property
    def taken(self) -> Taken:
        """Give the way that tokens take as the cost models have it."""
        limit = {"most": float(self.most)} if self.most else {}
        return Taken(way=self.way, sent=self.sent, **limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What whoever runs a model does in its own way, where another would do otherwise.

    text_tower : when a tower that does not depend on the step is run.
    repository : the model's own repository runs it, in eager PyTorch.
    slow_decoders : models whose images are decoded in eager code, whatever runs the rest; ``any``
    for all.
    rings : how keys and values go round.
    exchanges_apart : queries, keys and values go to their heads one after the other.
    batched_guidance : models whose forwards of a step are one, over a batch of so many.
    parallel_decode : models whose images all ranks of a replica decode together.
    tiled_decode : models whose frames are decoded in tiles where that is a matter of choice.
    one_at_a_time : models of which offloading sends away all but the part that runs.
    token_modulation : models whose shifts and scales are projected for every token.
    windows : by family of models, ``any`` for the rest, the share of a sequence that the cache has
    room for in layers with a sliding window; 0 where they keep what it sees alone.
    kv_repeat : keys and values may be repeated where there are fewer heads than ranks.
    wide_collectives : collectives carry 32-bit numbers. scattered_inputs : replicated inputs are
    cut by a reduce-scatter, not by a slice.
    messages : serving engine whose all-reduce kernels it has, in place of NCCL; empty for none.
    tokens : ways to experts that are spread over ranks, of which the first that can be is taken.
    rounding : share of the rounding of a product's inputs to a precision that is a kernel of its
    own; the rest is part of the norm, attention or activation before. beside : tokens of a step up
    to which an expert that all tokens pass runs beside those of their choice. roundings : by family
    of models, where that is another share.
    installed_attention : attention is the kernel that the model's repository installs.
    attention : the kernel that is called, by architecture of the GPU; eager : what element-wise
    functions move and launch in eager PyTorch, and compiled : likewise once compiled. All by family
    of models, ``any`` for the rest; the last two also by a model of its own.
    masks : what is passed to self-attention, by family: ``keys`` (one flag a key) or ``pairs``
    (one a query and key). host : by runtime. pixel, rank : seconds of a request in which the device
    waits for its host, a decoded pixel that is taken over, and a rank beyond the first. held :
    hidden states of a rank that its code holds beside those of programs, by runtime.
    caches : precision of keys and values that checkpoints of a precision ask for, where an engine
    takes that precision from a checkpoint alone.
    """

    text_tower: TextTower = "usual"
    repository: bool = False
    slow_decoders: tuple[str, ...] = ()
    rings: Rings = "urgent"
    exchanges_apart: bool = False
    batched_guidance: tuple[str, ...] = ()
    parallel_decode: tuple[str, ...] = ()
    tiled_decode: tuple[str, ...] = ()
    one_at_a_time: tuple[str, ...] = ()
    token_modulation: tuple[str, ...] = ()
    windows: Mapping[str, float] = field(default_factory=dict, hash=False)
    kv_repeat: bool = True
    wide_collectives: bool = False
    scattered_inputs: bool = False
    messages: str = ""
    tokens: tuple[TokenWay, ...] = ()
    rounding: float = 1.0
    beside: int = 0
    roundings: Mapping[str, float] = field(default_factory=dict, hash=False)
    installed_attention: bool = False
    attention: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    eager: Mapping[str, Mapping[str, Fusion]] = field(default_factory=dict, hash=False)
    compiled: Mapping[str, Mapping[str, Fusion]] = field(default_factory=dict, hash=False)
    masks: Mapping[str, str] = field(default_factory=dict, hash=False)
    host: Mapping[str, HostTimes] = field(default_factory=dict, hash=False)
    pixel: Sourced | None = field(default=None, metadata={"unit": "s"}, hash=False)
    rank: Sourced | None = field(default=None, metadata={"unit": "s"}, hash=False)
    held: Mapping[str, Sourced] = field(default_factory=dict, metadata={"unit": "1"}, hash=False)
    caches: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def in_programs(self) -> "Habits":
        """What of it is in programs; the rest is in the prices of their operations alone."""
        return replace(
            self, rings="gathered" if self.rings == "gathered" else "urgent", tokens=(),
            installed_attention=False, attention={}, eager={}, compiled={}, masks={}, host={},
            pixel=None, rank=None, held={}, caches={}, beside=0, messages="", rounding=1.0,
            roundings={}, one_at_a_time=(),
        )  # fmt: skip

    def ways(self, model: "Model", fabric: Fabric | None, device: Device) -> tuple[TokenWay, ...]:
        """List the ways to experts that are taken for a model, each up to its tokens a rank.

        fabric : over whose ranks the experts are spread; None where they are not.
        """
        if fabric is None or fabric.ranks == 1 or not model.has_experts:
            return ()
        top_k = max(tower.ffn.active for tower in model.towers if tower.ffn is not None)
        usable = [way for way in self.tokens if way.serves(top_k, fabric, device)]
        last_index = next((place for place, way in enumerate(usable) if not way.most), len(usable))
        return tuple(usable[: last_index + 1])

    def window_room(self, family: str) -> float:
        """Return the share of a sequence that is kept in layers with a window, at the least."""
        return self.windows.get(family, self.windows.get("any", 0.0))

    def rounding_of(self, family: str) -> float:
        """Return the share of roundings that are kernels of their own in a family of models."""
        return self.roundings.get(family, self.rounding)

    def kernel(self, family: str, architecture: str) -> str:
        """Name the attention kernel for a family of models; empty for the usual one."""
        kernels = {**self.attention.get("any", {}), **self.attention.get(family, {})}
        return kernels.get(architecture, "")

    def functions(self, runtime: str, family: str, model: str) -> Mapping[str, Fusion]:
        """Say what element-wise functions do on a runtime for a model of a family."""
        by_runtime = {"torch-eager": self.eager, "torch-compile": self.compiled}
        tables = by_runtime.get(runtime, {})
        rows = (tables.get(name, {}) for name in ("any", family, model))
        return {name: fusion for row in rows for name, fusion in row.items()}


DEFAULT_HABITS: Final = Habits()
"""What most do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Tokens that a draft proposes before each step, which the model verifies together.

    tokens : proposed, one after another. acceptance : share of them that the model accepts, each
    where those before it were. draft : the model that proposes; own : it is the model's own layers
    for that (multi-token prediction), of which there are so many `modules`.

    References
    ----------
    Leviathan et al., Fast Inference from Transformers via Speculative Decoding, equation 1.
    """

    tokens: int
    acceptance: float
    draft: "Model" = field(hash=False)
    own: bool = False
    modules: int = 1

    @property
    def gain(self) -> float:
        """Tokens that a sequence grows by in a step: those accepted, and one of the model's own.

        The sum of 1, a, a^2 ... a^n, as a token counts where all before it were accepted.
        """
        return sum(self.acceptance**number for number in range(self.tokens + 1))

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "tokens": self.tokens,
            "acceptance": self.acceptance,
            "draft": self.draft.name,
            "tokens_a_step": self.gain,
        }


@dataclass(frozen=True, slots=True)
class Reuse:
    """A cache of features: some steps take the change that layers make from a step before.

    name : of the method, with its threshold. share : of the steps. layers : the first of the model,
    which these steps run nevertheless.
    """

    name: str
    share: float
    layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Lengths and counts of one request; numbers, or arrays for a sweep.

    tokens : length of every stream. steps : denoising steps. passes : forwards a step.
    output_tokens : tokens to generate (decoders). pixels : height x width x frames to decode.
    line : tokens side by side across the image, for models that convolve over them.
    cached : tokens of a decoder's prompt whose keys and values are there. kv_precision : of keys
    and values that are kept. habits : of whoever runs it. speculation : of decoding; a token a step
    where there is none. reuse : of features, in some of the steps. warmup : first steps of which a
    plan in pieces (``/patch4``) runs all pieces together.
    """

    tokens: tuple[tuple[str, Size], ...]
    batch: Size = 1
    steps: Size = 1
    passes: int = 1
    output_tokens: Size = 0
    cached: Size = 0
    pixels: Size = 0
    frames: Size = 1
    line: Size = 0
    precision: Precision = "bf16"
    kv_precision: str = "bf16"
    habits: Habits = DEFAULT_HABITS
    speculation: Speculation | None = None
    reuse: Reuse | None = None
    warmup: int = 1

    def __hash__(self) -> int:
        counts = self.batch, self.steps, self.output_tokens, self.cached
        return hash_of((self.tokens, *counts, self.pixels, self.frames, self.line))

    @property
    def in_programs(self) -> "Workload":
        """What of it is in programs (see `Habits.in_programs`)."""
        return _in_programs(self)

    def length(self, stream: str) -> Size:
        """Count the tokens of one stream of the model."""
        return dict(self.tokens)[stream]

    @property
    def prefixed(self) -> bool:
        """Whether some of a prompt is cached."""
        return any_true(self.cached > 0)

    @property
    def skipped(self) -> Size:
        """Steps that reuse features; the first one never does.

        >>> Workload(tokens=(), steps=28, reuse=Reuse("teacache=0.4", 0.444)).skipped
        12
        """
        if self.reuse is None:
            return 0
        steps = np.minimum(np.asarray(self.steps) - 1, np.rint(self.steps * self.reuse.share))
        return int(steps) if steps.ndim == 0 else steps.astype(int)


@lru_cache(maxsize=64)
def _in_programs(workload: Workload) -> Workload:
    return replace(workload, habits=workload.habits.in_programs)
