"""Price one operation. The only place that knows which model prices which operation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, assert_never, cast

from costmodels.basis import Basis
from costmodels.collectives import (
    INWARD_OPS,
    ROOTED_OPS,
    NcclSettings,
    collective_time,
    moves,
    supports,
)
from costmodels.collectives import basis as collective_basis
from costmodels.collectives.dispatch import WAYS, Exchange, Phase, Taken, standing
from costmodels.expert_routing import Distribution, Routing
from costmodels.kernels import (
    attention_basis,
    attention_time,
    chain_time,
    experts_basis,
    experts_parts,
    head_product_time,
    latent_basis,
    latent_context_time,
    latent_decode_time,
    matmul_basis,
    matmul_time,
    pointwise_basis,
    served_as,
    state,
)
from costmodels.kernels.common import scalar_or_array
from costmodels.kernels.tables import KernelCalibration
from costmodels.profile import Profile
from costmodels.program import (
    Attention,
    CausalConvolution,
    Collective,
    Communication,
    Convolve,
    Depthwise,
    ExpertTokens,
    HeadProduct,
    LinearAttention,
    Matmul,
    Op,
    Pointwise,
    Rearrange,
    Recurrence,
    SendReceive,
    Tensor,
)
from costmodels.runtime import Runtime
from costmodels.sizes import Real, Size, any_true, ceil, larger, largest, real, smaller, where
from topology.base import UncalibratedError
from topology.base.values import by_content, dataclass
from topology.catalogue import Device, Fabric, Moves

ENGINE_ROUTING: Final = {"planner": "uniform"}
"""How tokens choose experts, by engine: by chance, where weights are drawn."""
USUAL_ROUTING: Final = "power_law"
"""How tokens are taken to choose their experts: popular ones, by chance."""
Class = Literal["gemm", "attention", "pointwise", "layout", "communication", "convolution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a program runs on: one rank's device, the links along every axis, and the runtime.

    ranks : that wait for each other. algorithm : of collectives; ``auto`` is NCCL's choice.
    messages : serving engine whose kernels ``engine`` takes, ``best`` for those of any.
    attention : kernel; ``auto`` is the best commonly available. mask : that self-attention is
    given, one of `costmodels.kernels.attention.MASKS`, or none. engine : whose kernels, where they
    were measured. rounding : share of the rounding of inputs to a precision that stands apart from
    the kernel before. beside : rows up to which a product that may runs beside others, in graphs.
    urgent : messages find room beside compute where no graph says so.
    graph_mixing : graphs may mix with other calls of NCCL, as they may where nobody forbids it.
    ways : that tokens take to experts that are spread over ranks, by how many there are; the
    program's own collectives where there are none. distribution : of tokens to experts; empty for
    `ENGINE_ROUTING`, with messages as many for each expert. part : of the experts, whose rows
    are priced; the busiest where left out. profile : what was measured on this machine.
    """

    device: Device
    fabrics: Mapping[str, Fabric]
    runtime: Runtime
    ranks: int = 1
    algorithm: str = "auto"
    messages: str = "best"
    attention: str = "auto"
    engine: str = ""
    mask: str = ""
    rounding: float = 1.0
    beside: int = 0
    urgent: bool = True
    graph_mixing: bool = True
    ways: tuple[Taken, ...] = ()
    distribution: Distribution = ""
    part: int | None = None
    profile: Profile | None = None

    @property
    def beside_links(self) -> tuple[object, ...]:
        """All that prices depend on but links, the device and its profile."""
        return (
            self.runtime, self.algorithm, self.messages, self.attention, self.engine, self.mask,
            self.rounding, self.beside, self.urgent, self.graph_mixing, self.ways,
            self.distribution, self.part,
        )  # fmt: skip

    def hides(self, axis: str) -> bool:
        """Whether messages along an axis find room beside compute.

        In a graph their order is kept, and over PCIe few multiprocessors pass on what there is.
        """
        return self.urgent or self.runtime.launch == "graph" or self.fabrics[axis].link == "pcie"

    @property
    def mixes(self) -> bool:
        """Whether a graph replays collectives that it lets mix with other calls."""
        return self.graph_mixing and self.runtime.launch == "graph"

    @property
    def kernels(self) -> KernelCalibration | None:
        """Kernels as they were measured on this machine."""
        return None if self.profile is None else self.profile.kernels

    def seen(self, part: str, **sizes: Real | Size) -> dict[str, Real | Size]:
        """Return the sizes to hold against a profile's part; the shipped tables go beyond."""
        return sizes if getattr(self.kernels, part, None) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Time of one operation on the device, and what the host does for it.

    seconds : on its stream. kernels, calls : launches and collective calls by the host; what
    stands for several functions may launch a share of a kernel.
    """

    kind: Class
    seconds: Real
    kernels: float = 0
    calls: int = 0
    basis: Basis = Basis.CALIBRATED


_FREE: Final = Priced(kind="layout", seconds=0.0)
"""The price of a view."""


def host_seconds(op: Op, priced: Priced, runtime: Runtime) -> Real:
    """Seconds of host time to issue an operation once."""
    host = priced.kernels * runtime.host_kernel.value
    if priced.calls and isinstance(op, Communication):
        host = host + priced.calls * runtime.host_call(op.kind)
    return host


class Contents:
    """What programs are made of, whatever they run on; looked at once, and kept for its identity.

    bodies : what is known of bodies of loops.
    """

    def __init__(self) -> None:
        self.bodies: dict[int, Any] = {}
        self._numbers: dict[int, tuple[Op, int]] = {}
        self._alike: dict[tuple[object, ...], int] = {}

    def number(self, op: Op) -> int:
        """Give an operation its number, which all have that are alike, of the same sizes."""
        cached = self._numbers.get(id(op))
        if cached is None:
            content = content_of(op)
            try:
                number = self._alike.setdefault(content, len(self._alike))
            except TypeError:  # sizes are arrays
                number = self._alike.setdefault(by_content(content), len(self._alike))
            cached = self._numbers[id(op)] = op, number
        return cached[1]


class FoundPrices:
    """Prices found so far, by what they depend on besides device and profile.

    contents : what was priced, on other devices too. ops : of operations, by their number. settings
    : what was found of these by what prices depend on besides links (`Target.beside_links`).
    """

    def __init__(self, contents: Contents | None = None) -> None:
        self.contents = Contents() if contents is None else contents
        self.ops: dict[tuple[int, object], Priced] = {}
        self.settings: dict[tuple[object, ...], Any] = {}


def cached_price(op: Op, target: Target, prices: FoundPrices) -> Priced:
    """Price `op`, or take the price of one like it; `prices` are of one device and request."""
    if isinstance(op, Rearrange) and op.view:
        return _FREE
    key = prices.contents.number(op), _target_key(op, target)
    priced = prices.ops.get(key)
    if priced is None:
        new_price = price(op, target)
        priced = prices.ops[key] = replace(new_price, seconds=scalar_or_array(new_price.seconds))
    return priced


def content_of(op: Op) -> tuple[object, ...]:  # noqa: C901, PLR0911  # one case an operation
    """Give all of an operation that its price depends on."""
    match op:
        case Matmul():
            weight = op.weight
            sides = (len(op.x.shape), len(weight.columns)) if op.route is not None else ()
            counts = (weight.local_experts, weight.experts, weight.copies)
            sizes = (op.out.shape, weight.local_columns, weight.local_rows)
            return ("matmul", weight.precision, op.beside, *sizes, op.out.filled, *counts, *sides)
        case HeadProduct():
            return ("heads", op.x.shape, op.heads, op.n, op.k)
        case Attention():
            size = (op.size, op.value_size, op.scaled)
            heads = (op.heads, op.key_value_heads, size, op.window, op.pairs, op.turn is None)
            key_traits = (op.keys, op.k.itemsize, op.causal, _sees_itself(op))
            return ("attention", op.q.shape, *key_traits, *heads)
        case CausalConvolution() | Recurrence():
            return (_fusion_name(op), op.out.shape, op.traffic, op.flop)
        case LinearAttention() | Depthwise():
            return (_fusion_name(op), op.traffic, op.flop)
        case Pointwise():
            return (op.function, op.traffic, _is_expert_work(op))
        case Rearrange():
            return ("view",) if op.view else ("move", op.traffic)
        case Collective():
            return (op.kind, op.message_bytes, op.tokens)
        case SendReceive():
            return (op.kind, op.message_bytes)
        case Convolve():
            return ("convolve", op.planes, op.eager, op.passes, op.flop, op.traffic)
        case _:
            assert_never(op)


def _target_key(op: Op, target: Target) -> tuple[object, ...]:  # noqa: C901, PLR0911  # as above
    """Give all of a target that the price of an operation depends on, besides device and profile.

    Of operations of one number only the links may differ that they run over.
    """
    match op:
        case Matmul():
            routing_key = (
                () if op.route is None else (target.distribution, target.part, target.ways)
            )
            return (target.engine, target.rounding, _beside_rows(op, target), *routing_key)
        case HeadProduct():
            return (target.engine,)
        case Attention():
            mask = (target.mask, target.runtime.fusion("mask")) if target.mask else ()
            return (target.attention, target.engine, *mask)
        case CausalConvolution() | Recurrence():
            return (target.engine, target.runtime.fusion(_fusion_name(op)))
        case LinearAttention() | Depthwise():
            return (target.runtime.fusion(_fusion_name(op)),)
        case Pointwise():
            return (target.runtime.fusion(op.function),)
        case Rearrange():
            return (target.runtime.fusion("copy"),)
        case Collective() if op.tokens is not None and target.ways:
            way_key = (target.engine, target.ways, target.distribution, target.runtime.launch)
            return (target.algorithm, *way_key, target.mixes, _fabric_of(op, target))
        case Collective() | SendReceive():
            return (target.algorithm, target.messages, target.mixes, _fabric_of(op, target))
        case Convolve():
            runtime = target.runtime
            convolution_rate = runtime.plane_convolution if op.planes else runtime.convolution
            return (convolution_rate.value, runtime.plane_passes.value)
        case _:
            assert_never(op)


def price(op: Op, target: Target) -> Priced:  # noqa: C901, PLR0911  # one case an operation
    """Time one run of `op` on `target`, alone on its stream.

    Sizes may be arrays that broadcast, and so is `Priced.seconds` then. A view takes no time; an
    algorithm of collectives that cannot do `op` on its links gives way to NCCL's choice.

    Raises InputError if the device has no tensor cores for the precision or lacks the attention
    kernel, or a name of an algorithm or a kernel is unknown. Raises UncalibratedError if there are
    no kernel parameters for the device.
    """
    match op:
        case Matmul():
            return _matmul(op, target) if op.route is None else _experts(op, op.route, target)
        case HeadProduct():
            return _head_product(op, target)
        case Attention():
            return _latent(op, target) if op.scaled else _attention(op, target)
        case CausalConvolution() | Recurrence():
            return _price_stateful(op, target)
        case LinearAttention() | Depthwise():
            return _price_bounded(op, target)
        case Pointwise():
            return _pointwise(op, target)
        case Rearrange():
            return _rearrange(op, target)
        case Collective() if op.tokens is not None and target.ways:
            return _price_exchange(op, op.tokens, target)
        case Collective() | SendReceive():
            return _communication(op, target)
        case Convolve():
            return _convolve(op, target)
        case _:
            assert_never(op)


def _matmul(op: Matmul, target: Target) -> Priced:
    m, n, k = op.m, op.weight.local_columns, op.weight.local_rows
    device, engine, calibration = target.device, target.engine, target.kernels
    precision = op.weight.precision or target.device.half
    seconds = matmul_time(
        m, n, k, device, precision=precision, sustained=True, engine=engine,
        rounding=target.rounding, calibration=calibration,
    )  # fmt: skip
    if row_limit := _beside_rows(op, target):
        read_time = op.weight.bytes / device.memory_bandwidth.value
        seconds = where(m <= row_limit, smaller(seconds, read_time), seconds)
    basis = matmul_basis(
        device, precision, calibration, engine, **target.seen("matmul", m=m, n=n, k=k)
    )
    return Priced(kind="gemm", seconds=seconds, kernels=1, basis=basis)


def _beside_rows(op: Matmul, target: Target) -> int:
    """Give the rows up to which a product runs beside others: its weights pass the same memory."""
    return target.beside if op.beside and target.runtime.launch == "graph" else 0


def _experts(op: Matmul, route: Tensor, target: Target) -> Priced:
    """Price one product of a layer of experts, with half of what is done around its two."""
    device, engine, calibration, weight = target.device, target.engine, target.kernels, op.weight
    precision = served_as(weight.precision or target.device.half, device)
    top_k = int(route.shape[-1])
    experts = Routing(experts=weight.experts - weight.copies, top_k=top_k, copies=weight.copies)
    drawn_routing = experts.drawn(target.distribution or ENGINE_ROUTING.get(engine, USUAL_ROUTING))
    routing = replace(drawn_routing, chance=True, part=target.part)
    tokens = op.m * weight.groups / top_k
    is_down = len(op.x.shape) > len(route.shape)  # each expert's rows, on their way back
    sides = len(weight.columns)
    hidden, inner = weight.local_rows, weight.local_columns / sides
    if is_down:
        hidden, inner = weight.local_columns, weight.local_rows
    parts = experts_parts(
        tokens, hidden, inner, routing, device, ep=weight.groups, precision=precision,
        gated=sides > 1, sustained=True, engine=engine, calibration=calibration,
        standing=_standing(routing, tokens, weight.groups, target),
    )  # fmt: skip
    basis = experts_basis(
        device, precision, calibration, engine, tokens=tokens, experts=weight.experts
    )
    seconds = where(tokens == 0, 0.0, parts[is_down])
    return Priced(kind="gemm", seconds=seconds, kernels=1, basis=basis)


def _standing(routing: Routing, tokens: Real, ranks: int, target: Target) -> Real:
    """Give the share of all rows of experts that stand on a rank, by how tokens come there."""
    share: Real = 1.0
    for taken in reversed(target.ways):
        here = standing(taken.way, routing, tokens, ranks)
        share = where(tokens / ranks <= taken.most, here, share)
    return share


def _pointwise(op: Pointwise, target: Target) -> Priced:
    """Price element-wise work; that of a layer of experts is counted with its products."""
    priced = _price_streamed(op.function, op.traffic, target)
    if _is_expert_work(op):
        return replace(priced, seconds=priced.seconds * 0.0)
    return priced


def _is_expert_work(op: Pointwise) -> bool:
    """Whether it is work of a layer of experts: on their rows, or before and after them."""
    on_rows = op.function in ("gelu", "silu", "silu_gated", "relu2") and len(op.inputs[0].shape) > 3
    return on_rows or op.function in ("route", "combine")


def _head_product(op: HeadProduct, target: Target) -> Priced:
    """Price a product a head in 16 bits, as engines keep these matrices."""
    seconds = head_product_time(
        op.m, op.n, op.k, op.heads, target.device, precision=target.device.half, sustained=True,
        engine=target.engine, calibration=target.kernels,
    )  # fmt: skip
    sizes = target.seen("matmul", m=op.m, n=op.n, k=op.k)
    basis = matmul_basis(target.device, target.device.half, target.kernels, target.engine, **sizes)
    seconds = where(op.m == 0, 0.0, seconds)
    return Priced(kind="gemm", seconds=seconds, kernels=1, basis=basis)


def _latent(op: Attention, target: Target) -> Priced:
    """Price latent attention: absorbed where scores are as wide as the rows that are kept."""
    device, engine, batch = target.device, target.engine, op.q.shape[0]
    cache, sizes = "fp8" if op.k.itemsize == 1 else "bf16", (op.size, op.value_size)
    absorbed = op.scaled != op.size
    if absorbed:
        seconds = latent_decode_time(
            op.heads, op.keys, device, batch=batch, queries=op.queries, sizes=sizes,
            kv_precision=cache, engine=engine,
        )  # fmt: skip
    else:
        # of a cut prompt, whose queries stand all over, as many keys as they see on average
        mean_keys = op.keys * op.pairs + op.queries / 2
        keys = op.keys if op.pairs == 1.0 else ceil(mean_keys)
        seconds = latent_context_time(
            op.heads, op.queries, keys, device, batch=batch, sizes=sizes, kv_precision=cache,
            sustained=True, engine=engine,
        )  # fmt: skip
    shape = {"heads": op.heads, "queries": op.queries, "keys": op.keys, "batch": batch}
    basis = latent_basis(device, cache, engine, absorbed=absorbed, **shape)
    seconds = where(batch * op.queries == 0, 0.0, seconds)
    return Priced(kind="attention", seconds=seconds, kernels=1, basis=basis)


def _attention(op: Attention, target: Target) -> Priced:
    precision, kernel, calibration = target.device.half, target.attention, target.kernels
    uncut = op.causal and op.pairs == 1.0 and op.turn is None
    masked = uncut and any_true(op.queries > 1)
    cache = "fp8" if op.k.itemsize == 1 else precision
    mask = target.mask if _sees_itself(op) else ""
    keys = op.keys if op.pairs == 1.0 else ceil(op.keys * op.pairs)
    earlier_keys = max(op.window - 1, 0)  # a query's own key is one of its window
    keys = smaller(keys, earlier_keys + op.queries) if op.window else keys
    seconds = attention_time(
        op.heads,
        op.queries,
        keys,
        op.size,
        target.device,
        batch=op.q.shape[0],
        kv_heads=op.key_value_heads,
        causal=masked,
        precision=precision,
        kernel=kernel,
        window=earlier_keys if masked else 0,
        kv_precision=cache,
        engine=target.engine,
        mask=mask,
        sustained=True,
        calibration=calibration,
    )
    names = {"heads": op.heads, "queries": op.queries, "keys": op.keys, "head_dim": op.size}
    sizes = target.seen("attention", **names)
    basis = attention_basis(
        target.device,
        precision,
        kernel,
        calibration,
        kv_precision=cache,
        engine=target.engine,
        **sizes,
    )
    empty = op.q.shape[0] * op.queries == 0  # a step without prompts, or of them alone
    seconds = where(empty, 0.0, seconds)
    priced = Priced(kind="attention", seconds=seconds, kernels=1, basis=basis)
    return _with_mask(priced, op, target) if mask == "pairs" else priced


def _with_mask(priced: Priced, op: Attention, target: Target) -> Priced:
    """Add what makes a mask of a byte for every query and key, which all heads share."""
    mask_price = _price_streamed("mask", real(op.q.shape[0] * op.queries * op.keys), target)
    return replace(
        priced,
        seconds=priced.seconds + mask_price.seconds,
        kernels=priced.kernels + mask_price.kernels,
    )


def _sees_itself(op: Attention) -> bool:
    """Whether queries look at keys of their own streams, not at a text beside."""
    query_streams, key_streams = (
        {span.stream for span in spans} for spans in (op.query_spans, op.key_spans)
    )
    return query_streams <= key_streams


_StreamedOp = LinearAttention | Depthwise | CausalConvolution | Recurrence
"""Small products, which are bound by memory as a rule."""


def _fusion_name(op: _StreamedOp) -> str:
    """Name under which runtimes say what they fuse."""
    match op:
        case LinearAttention():
            return f"linear_{op.part}"
        case Depthwise():
            return "depthwise"
        case CausalConvolution():
            return "convolution"
        case Recurrence():
            return f"{op.kind}_{'chunks' if any_true(op.rows != 1) else 'token'}"


def _price_bounded(op: _StreamedOp, target: Target) -> Priced:
    """Price small products: bound by memory traffic, or by arithmetic where that is more."""
    priced = _price_streamed(_fusion_name(op), op.traffic, target)
    peak = target.device.needed_peak(target.device.half)
    return replace(
        priced,
        kind="attention" if isinstance(op, LinearAttention | Recurrence) else "convolution",
        seconds=larger(priced.seconds, op.flop / peak),
        basis=Basis.ASSUMED,
    )


def _price_stateful(op: CausalConvolution | Recurrence, target: Target) -> Priced:
    """Price what keeps a state as engines' kernels take it; by its bounds where none are known."""
    bound_price = _price_bounded(op, target)
    try:
        prompt_time, token_time = _state_times(op, target)
    except UncalibratedError:
        return bound_price
    batch, rows, _ = op.out.shape
    seconds = where(rows > 1, prompt_time, token_time)
    empty = rows * batch == 0  # a step without prompts, or of them alone
    return replace(
        bound_price, seconds=where(empty, 0.0, seconds), kernels=1, basis=Basis.DATASHEET
    )


def _state_times(op: CausalConvolution | Recurrence, target: Target) -> tuple[Real, Real]:
    """Time it over the tokens of a prompt, and over one token of each sequence."""
    device, engine = target.device, target.engine
    batch, rows, features = op.out.shape
    if isinstance(op, CausalConvolution):
        times = [
            state.convolution_time(rows, features, device, batch=batch, new=new, engine=engine)
            for new in (False, True)
        ]
        return times[0], times[1]
    moved = features + sum(tensor.shape[-1] for tensor in op.inputs)
    size = op.key * op.value
    rule: state.Rule = "delta" if op.kind == "delta" else "ssd"
    prompt_time = state.scan_time(
        rows, op.heads, moved, device, rule=rule, batch=batch, state=size, chunk=op.chunk,
        engine=engine,
    )  # fmt: skip
    token_time = state.update_time(
        op.heads, device, batch=batch, state=size, state_bytes=op.after.itemsize, engine=engine
    )
    return prompt_time, token_time


def _price_streamed(function: str, traffic: Real, target: Target) -> Priced:
    device, calibration, fusion = target.device, target.kernels, target.runtime.fusion(function)
    moved = traffic * fusion.traffic / fusion.kernels
    seconds = chain_time(
        traffic, fusion.traffic, fusion.kernels, device, calibration, cycles=fusion.cycles
    )
    basis = pointwise_basis(device, calibration, **target.seen("pointwise", bytes=moved))
    return Priced(kind="pointwise", seconds=seconds, kernels=fusion.kernels, basis=basis)


def _rearrange(op: Rearrange, target: Target) -> Priced:
    return _FREE if op.view else replace(_price_streamed("copy", op.traffic, target), kind="layout")


def _fabric_of(op: Communication, target: Target) -> Fabric:
    return target.fabrics[op.axis]


def _price_exchange(op: Collective, expert_tokens: ExpertTokens, target: Target) -> Priced:
    """Price what carries tokens to their experts, or back, by the way that is taken for so many."""
    tokens = real(op.rows)
    priced: Priced | None = None
    for option in reversed(target.ways):
        if WAYS[option.way].ops is not None:
            way_price = _communication(op, target)
        else:
            exchange, size = _exchange_by(option, op, expert_tokens, target)
            way_price = Priced(
                kind="communication", seconds=exchange.time(tokens, size), calls=1,
                basis=exchange.basis(tokens, size),
            )  # fmt: skip
        if priced is None:
            priced = way_price
        else:
            seconds = where(tokens <= option.most, way_price.seconds, priced.seconds)
            priced = replace(priced, seconds=seconds, basis=max(priced.basis, way_price.basis))
    assert priced is not None
    return priced


def _exchange_by(
    option: Taken, op: Collective, expert_tokens: ExpertTokens, target: Target
) -> tuple[Exchange, float]:
    """Describe an exchange of tokens by one way, and give the bytes of a token in it."""
    phase: Phase = "dispatch" if op.kind == "all_gather" else "combine"
    routing = expert_tokens.routing
    if target.distribution:
        routing = routing.drawn(target.distribution)
    exchange = Exchange(
        phase=phase, way=option.way, fabric=_fabric_of(op, target), device=target.device,
        routing=routing, engine=target.engine, launch=target.runtime.launch,
    )  # fmt: skip
    return exchange, option.token_bytes(phase, expert_tokens.features, expert_tokens.precision)


def _communication(op: Communication, target: Target) -> Priced:
    fabric, size = _fabric_of(op, target), real(op.message_bytes)
    options = _collective_options(op, target)
    seconds: Real = collective_time(op.kind, cast(Any, size), fabric, **options)
    basis = collective_basis(op.kind, largest(size), fabric, **options)
    return Priced(kind="communication", seconds=seconds, calls=1, basis=basis)


def _collective_options(op: Communication, target: Target) -> dict[str, Any]:
    """Say by what a collective is run."""
    algorithm = target.algorithm
    return {
        "algorithm": algorithm if supports(op.kind, algorithm, _fabric_of(op, target)) else "auto",
        "settings": NcclSettings(engine=target.messages, graph_mixing=target.mixes),
        "calibration": None if target.profile is None else target.profile.curves,
    }


def kernel_of(op: Op, target: Target) -> Taken | None:
    """Give the way whose own kernel takes a message's tokens to experts; None for a collective."""
    if not (isinstance(op, Collective) and op.tokens is not None and target.ways):
        return None
    tokens = largest(op.rows)
    option = next((way for way in target.ways if tokens <= way.most), target.ways[-1])
    return option if WAYS[option.way].ops is None else None


def moves_of(op: Communication, target: Target) -> Moves:
    """Say what a message brings to the links of its group, by what it is priced with."""
    option = kernel_of(op, target)
    if option is not None and isinstance(op, Collective) and op.tokens is not None:
        exchange, size = _exchange_by(option, op, op.tokens, target)
        return exchange.moves(largest(op.rows) * size)
    group_moves = moves(
        op.kind,
        largest(op.message_bytes),
        _fabric_of(op, target),
        **_collective_options(op, target),
    )
    if isinstance(op, SendReceive):
        return replace(group_moves, offset=op.offset, ends=op.ends)
    is_rooted = op.kind in ROOTED_OPS
    return (
        replace(group_moves, root=op.root, inward=op.kind in INWARD_OPS)
        if is_rooted
        else group_moves
    )


def _convolve(op: Convolve, target: Target) -> Priced:
    device, runtime = target.device, target.runtime
    cycles = device.multiprocessors.value * device.clock.value
    cycle_flop = runtime.plane_convolution if op.planes else runtime.convolution
    peak = device.needed_peak(target.device.half)
    eager_known = bool(op.eager) or any_true(op.passes != 0)
    rate = peak if eager_known else min(peak, cycles * cycle_flop.value)
    memory = op.traffic / device.memory_bandwidth.value
    seconds = larger(op.flop / rate, memory)
    if op.eager:
        seconds = seconds + op.flop / (cycles * op.eager)
    passes = op.passes
    if op.planes:
        passes = passes + op.flop * runtime.plane_passes.value
    seconds = seconds + passes / device.memory_bandwidth.value
    return Priced(kind="convolution", seconds=seconds, kernels=1, basis=Basis.ASSUMED)
