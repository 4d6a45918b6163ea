r"""Fused attention on one GPU: a tile of queries walks over the keys; tiles run in rounds.

One tile has R queries of one head and visits K keys, in whole blocks, at c cycles a score:

.. math::
    tile(K) = K R c / clock + overhead, \qquad
    full = \mathrm{rounds}(b h \lceil q/R \rceil / SMs)\, tile(keys)

Causal work (the last query sees all keys) visits on average keys - q / 2 and half a tile of
masked scores; its rounds are of half-length tiles, and at the end a long one is waited for:

.. math::
    causal = \mathrm{rounds}(work / tile(\tfrac{keys}{2}))\, tile(\tfrac{keys}{2})
             + tail\, (keys - R)\, R c / (2\, clock)

Where keys do not fill the last block, c is larger by a share of the implementation.

A few queries (decoding) are packed with the heads that share keys, and the keys are cut over
idle multiprocessors. All of it runs beside the traffic of q, k, v and the result.

References
----------
T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
arXiv:2307.08691; T. Dao et al., "Flash-Decoding for long-context inference", 2023. The formula is
our own; fitted by `validate.fit.kernels`.
"""

from dataclasses import replace
from functools import cache
from math import inf
from typing import Any, Final

from costmodels.basis import Basis
from costmodels.kernels.common import (
    Number,
    Shape,
    overlapped_time,
    rounds,
    scalar_or_array,
    slowed_time,
)
from costmodels.kernels.decode import CACHES, QUERIES, decode_time
from costmodels.kernels.matmul import matrix_rate, peak_rate
from costmodels.kernels.parameters import (
    AttentionParameters,
    ContextParameters,
    DecodeParameters,
    EngineParameters,
)
from costmodels.kernels.tables import (
    Calibration,
    attention_record,
    engine_record,
    matmul_record,
    pointwise_record,
    record,
)
from costmodels.sizes import (
    Real,
    any_true,
    ceil,
    interp,
    larger,
    largest,
    next_value,
    real,
    smaller,
    where,
)  # fmt: skip
from topology.base import InputError, UncalibratedError, unknown
from topology.base.values import dataclass
from topology.catalogue import Device

IMPLEMENTATIONS: Final = (
    "fa2", "fa3", "fa4", "cudnn", "trtllm", "xformers", "sage", "sage2",
)  # fmt: skip
KERNELS: Final = ("auto", "engine", *IMPLEMENTATIONS)

MASKS: Final = ("keys", "pairs")
"""What a mask has a flag for."""

_USUAL_KERNELS: Final = {7: "xformers", 8: "fa2", 9: "cudnn", 10: "trtllm", 12: "fa2"}
_USUAL_FP8_KERNELS: Final = {8: "sage2", 9: "fa3", 10: "cudnn", 12: "sage2"}
_DECODE_ROWS: Final = 64.0  # rows of a tile that holds all queries that share keys
_DECODE_KEYS: Final = 256.0  # fewest keys that are worth a tile of their own
_MARGIN: Final = 1.15  # attention may multiply this much faster than a power-limited product
_BYTES: Final = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAttention:
    """A device and an implementation with all that does not depend on the sizes of a call."""

    parameters: AttentionParameters
    engine: EngineParameters | None
    slots: float
    clock: float
    rate: float  # FLOP/s that the scores and values of a whole device may reach
    peak: float
    bandwidth: float
    memory_efficiency: float
    floor: float
    merge: float  # s, to merge keys that were cut
    itemsize: float
    cycles: tuple[float, ...]
    throttle: float  # how many times longer a busy kernel takes for want of power


def attention_time(  # noqa: PLR0913  # the sizes are one shape
    heads: Number,
    queries: Number,
    keys: Number,
    head_dim: Number,
    device: Device,
    *,
    batch: Number = 1,
    kv_heads: Number | None = None,
    causal: bool = False,
    precision: str = "bf16",
    kernel: str = "auto",
    window: int = 0,
    kv_precision: str = "",
    engine: str = "",
    mask: str = "",
    sustained: bool = False,
    calibration: Calibration = None,
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time fused attention, in seconds, as a kernel of a CUDA graph: float in, float out.

    heads, queries, keys, head_dim, batch, kv_heads : numbers or arrays that broadcast.
    causal : the last query sees all keys, each one before it one fewer.
    precision : of q, k and v: ``bf16``, ``fp16`` or ``fp8``.
    kernel : one of `KERNELS`. ``auto`` is the one that is usual on a generation of
        GPUs, not the fastest at each size; ``engine`` is that of a serving engine together with
        what it does around it: copies of q, k and v.
    window : keys before itself that a query sees; 0 means all. mask : one of `MASKS`, or none.
    kv_precision, engine : of an ``engine``: its cache, as q where empty, and whose kernels.
    sustained : the GPU has been busy for a second; see `matmul_time`.
    calibration : parameters of this very machine.

    Raises InputError if there is no such kernel, or `device` has none of that name or precision.

    >>> from topology.catalogue import all_devices
    >>> h100 = all_devices()["h100-sxm"]
    >>> full, half = (attention_time(16, 8192, 8192, 128, h100, causal=c) for c in (False, True))
    >>> 0.5 < half / full < 0.6
    True
    """
    sizes = (heads, heads if kv_heads is None else kv_heads, queries, keys, head_dim, batch)
    shape = Shape(*map(real, sizes), causal=causal, window=window, mask=mask)
    prepared = prepare(device, precision, kernel, calibration, engine)
    if kernel == "engine":
        decode_seconds = _decode_seconds(shape, device, kv_precision or precision, engine)
        return scalar_or_array(
            _engine_seconds(decode_seconds, prepared, shape, sustained=sustained)
        )
    time = call_time(prepared, shape, sustained=sustained)
    if kernel == "auto" and precision == "fp8":  # the best may be to multiply 16 bits
        half_prepared = prepare(device, device.half, kernel, calibration)
        time = smaller(time, call_time(half_prepared, shape, sustained=sustained))
    return scalar_or_array(time)


def _engine_seconds(
    decode_seconds: Real, prepared: PreparedAttention, shape: Shape, *, sustained: bool
) -> Real:
    """Time an engine's attention: its decode for a few queries, at least as long for more."""
    if not any_true(shape.queries > QUERIES):
        return decode_seconds
    prefill_seconds = larger(call_time(prepared, shape, sustained=sustained), decode_seconds)
    return where(shape.queries > QUERIES, prefill_seconds, decode_seconds)


def _decode_seconds(shape: Shape, device: Device, cache: str, engine: str) -> Real:
    """Time an engine's decode of as many queries a request as it decodes at most."""
    decode_shape = replace(shape, queries=smaller(shape.queries, QUERIES), keys=_keys_read(shape))
    return decode_time(_decode_record(device, cache, engine), device, decode_shape, cache)


def _decode_record(device: Device, cache: str, engine: str) -> DecodeParameters:
    if cache not in CACHES:
        raise unknown("precision of the cache", cache, CACHES)
    return engine_record(DecodeParameters, device, "fp8" if cache == "fp8" else "bf16", engine)


def attention_basis(
    device: Device,
    precision: str = "bf16",
    kernel: str = "auto",
    calibration: Calibration = None,
    *,
    kv_precision: str = "",
    engine: str = "",
    **sizes: Number,
) -> Basis:
    """How well `attention_time` of `sizes` is known.

    >>> from topology.catalogue import all_devices
    >>> attention_basis(all_devices()["h100-sxm"], kernel="fa3", head_dim=128).name
    'CALIBRATED'
    """
    if kernel == "engine" and largest(sizes.get("queries", inf)) <= QUERIES:
        decode_provenance = _decode_record(device, kv_precision or precision, engine).provenance
        return decode_provenance.basis(device.name, sizes)
    prompt_provenance = prepare(
        device, precision, kernel, calibration, engine
    ).parameters.provenance
    return prompt_provenance.basis(device.name, sizes, alike=precision != "fp8")


@cache
def prepare(
    device: Device, precision: str, kernel: str, calibration: Calibration = None, engine: str = ""
) -> PreparedAttention:
    """Prepare `device` for attention by `kernel`, of an `engine`, on inputs of `precision`."""
    if kernel not in KERNELS:
        raise unknown("attention kernel", kernel, KERNELS)
    if precision not in _BYTES:
        raise unknown("attention precision", precision, _BYTES)
    peak_rate(device, precision)  # or an error that says what the device has
    engine_extras = record(EngineParameters, device) if kernel == "engine" else None
    context = _context_record(device, precision, engine) if engine_extras else None
    if context is not None and engine_extras is not None:
        return prepare_with(
            *engine_parameters(context, device, precision, engine_extras), calibration
        )
    for name in _kernel_names(device, precision, kernel):
        try:
            parameters = attention_record(name, device, calibration)
        except UncalibratedError:
            continue
        if calibration is not None:
            parameters = _with_masks(parameters, name, device)
        if precision != "fp8" or parameters.fp8_cycles:
            return prepare_with(parameters, device, precision, engine_extras, calibration)
    available = ", ".join(name for name in IMPLEMENTATIONS if _has_kernel(device, name))
    raise InputError(f"{device.name} has no {precision} attention {kernel!r}: it has {available}")


def _context_record(device: Device, precision: str, engine: str) -> ContextParameters | None:
    """Find what an engine's attention over prompts has of its own; None where nobody measured."""
    form = "fp8" if precision == "fp8" else "bf16"
    try:
        return record(ContextParameters, device, f"{form}.{engine}-")
    except UncalibratedError:
        return None


def engine_parameters(
    prompts: ContextParameters, device: Device, precision: str, around: EngineParameters
) -> tuple[AttentionParameters, Device, str, EngineParameters]:
    """Put what is `known` of an engine's prefill into the parameters of ``trtllm``."""
    names = ("provenance", "tile_overhead", "softness", "tail", "sustained_drop")
    overrides = {name: getattr(prompts, name) for name in names}
    overrides["fp8_cycles" if precision == "fp8" else "cycles"] = prompts.cycles
    base = replace(attention_record("trtllm", device, None), **overrides)
    engine_extras = replace(around, causal_fixed=prompts.fixed, causal_passes=prompts.passes)
    return base, device, precision, engine_extras


def _with_masks(parameters: AttentionParameters, name: str, device: Device) -> AttentionParameters:
    """Give a profile's parameters what no profile measures, at its pace: the cycles of masks."""
    try:
        shipped = attention_record(name, device, None)
    except UncalibratedError:
        return parameters
    scale = parameters.cycles[-1] / float(
        interp(parameters.head_dims[-1], shipped.head_dims, shipped.cycles)
    )
    return replace(
        parameters, mask_keys=scale * shipped.mask_keys, mask_pairs=scale * shipped.mask_pairs
    )


def prepare_with(
    parameters: AttentionParameters,
    device: Device,
    precision: str,
    engine: EngineParameters | None = None,
    calibration: Calibration = None,
) -> PreparedAttention:
    """Prepare `device` with `parameters` for attention on inputs of `precision`."""
    product = matmul_record(device, calibration)
    pointwise = pointwise_record(device, calibration)
    eight_bit = precision == "fp8"
    multiplied = "int8" if parameters.eight_bit and not eight_bit else precision
    peak = peak_rate(device, multiplied)
    return PreparedAttention(
        parameters=parameters,
        engine=engine,
        slots=device.multiprocessors.value,
        clock=device.clock.value,
        rate=min(_MARGIN * matrix_rate(product, device, multiplied), product.ceiling * peak),
        peak=peak,
        bandwidth=device.memory_bandwidth.value,
        memory_efficiency=pointwise.memory_efficiency,
        floor=pointwise.floor,
        merge=product.split_overhead,
        itemsize=_BYTES[precision],
        cycles=parameters.fp8_cycles if eight_bit else parameters.cycles,
        throttle=_throttle(parameters, device),
    )


def _throttle(parameters: AttentionParameters, device: Device) -> float:
    """How many times longer busy work takes on a device with little power a multiprocessor."""
    power_share = device.power.value / device.multiprocessors.value
    return float(max(1.0, (parameters.reference_power / power_share) ** parameters.power_exponent))


def call_time(prepared: PreparedAttention, shape: Shape, *, sustained: bool = False) -> Real:
    """Evaluate the formula: shape of the broadcast sizes."""
    fitted = prepared.parameters
    traffic = _traffic(prepared, shape)
    score, rows = _score_time(prepared, shape)
    tile_time = _causal_time if shape.causal else _full_time
    compute = smaller(
        tile_time(prepared, shape, rows, score * rows), _decode_tile_time(prepared, shape, score)
    )
    compute = slowed_time(compute, fitted.sustained_drop, sustained=sustained)
    if sustained:
        compute = compute * prepared.throttle
    time = prepared.floor + overlapped_time(compute, traffic / prepared.memory_efficiency)
    time = larger(time, larger(4.0 * _pairs(shape) * shape.head_dim / prepared.peak, traffic))
    if prepared.engine is None:
        return time
    fixed, passes = prepared.engine.fixed, prepared.engine.passes
    if shape.causal:
        fixed, passes = prepared.engine.causal_fixed, prepared.engine.causal_passes
    return time + fixed + passes * traffic


def _kernel_names(device: Device, precision: str, kernel: str) -> tuple[str, ...]:
    best = (_USUAL_FP8_KERNELS if precision == "fp8" else _USUAL_KERNELS).get(
        device.compute_capability[0], ""
    )
    if kernel == "engine":
        return ("trtllm", best)
    return (best,) if kernel == "auto" else (kernel,)


def _has_kernel(device: Device, name: str) -> bool:
    try:
        attention_record(name, device, None)
    except UncalibratedError:
        return False
    return True


def _traffic(prepared: PreparedAttention, shape: Shape) -> Real:
    """Seconds that q, k, v and the 16-bit result take at the nominal bandwidth."""
    outputs = shape.heads * shape.queries * (prepared.itemsize + 2.0)
    inputs = 2.0 * shape.kv_heads * _keys_read(shape) * prepared.itemsize
    return shape.batch * shape.head_dim * (outputs + inputs) / prepared.bandwidth


def _keys_read(shape: Shape) -> Real:
    if not shape.window:
        return shape.keys
    return smaller(shape.keys, shape.queries + shape.window)


def _pairs(shape: Shape) -> Real:
    """Scores that count: queries times keys less what a causal mask or a window hides."""
    q, k = shape.queries, shape.keys
    visible_pairs = q * k
    if shape.causal:
        visible_pairs = where(q <= k, q * (k - (q - 1.0) / 2.0), k * (k + 1.0) / 2.0)
    if shape.window:
        visible_pairs = smaller(visible_pairs, q * (shape.window + 1.0))
    return shape.batch * shape.heads * visible_pairs


def _score_time(prepared: PreparedAttention, shape: Shape) -> tuple[Real, Real]:
    """Seconds of one multiprocessor for a score, and queries of a tile, for each head size."""
    fitted, head_dim = prepared.parameters, shape.head_dim
    dims = fitted.head_dims
    rows = next_value(head_dim, dims, fitted.tile_rows)
    padded = larger(next_value(head_dim, dims, dims), head_dim)
    if fitted.grain:
        padded = ceil(head_dim / fitted.grain) * fitted.grain
    cycles = interp(padded, dims, prepared.cycles) * larger(padded / dims[-1], 1.0)
    if fitted.odd_cycles:
        is_odd = head_dim % 16.0 > 0.0
        cycles, rows = (
            where(is_odd, fitted.odd_cycles, cycles),
            where(is_odd, fitted.odd_rows, rows),
        )
    if fitted.serial_share:
        peak_cycle_flop = prepared.peak / (prepared.slots * prepared.clock)
        extra_cycles = 1.0 / peak_cycle_flop - 1.0 / fitted.serial_rate
        cycles = cycles + 4.0 * head_dim / fitted.serial_share * extra_cycles
    if shape.mask:
        cycles = cycles + (fitted.mask_keys if shape.mask == "keys" else fitted.mask_pairs)
    shortest = 4.0 * head_dim * prepared.slots / prepared.rate
    return larger(cycles / prepared.clock, shortest), rows


def _full_time(prepared: PreparedAttention, shape: Shape, rows: Real, key_time: Real) -> Real:
    """Every tile of `rows` queries visits all keys of its window, each for `key_time`."""
    fitted = prepared.parameters
    keys = ceil(shape.keys / fitted.key_block) * fitted.key_block
    key_time = key_time * (1.0 + fitted.ragged * (keys > shape.keys))
    if shape.window:
        keys = smaller(keys, shape.window + rows + fitted.key_block)
    tiles = shape.batch * shape.heads * ceil(shape.queries / rows) / prepared.slots
    return _rounds(fitted, tiles) * (keys * key_time + fitted.tile_overhead)


def _causal_time(prepared: PreparedAttention, shape: Shape, rows: Real, key_time: Real) -> Real:
    """Causal: rounds of half-length tiles, and the wait for a long one; never more than full.

    Queries before the first key see nothing; their tiles end at once.
    """
    fitted, keys = prepared.parameters, shape.keys
    count = ceil(smaller(shape.queries, keys) / rows)
    waste = (rows + fitted.key_block) / 2.0  # of the diagonal, half hidden
    mean = (keys - count * rows / 2.0 + waste) * key_time + fitted.tile_overhead
    half = (keys / 2.0 + waste) * key_time + fitted.tile_overhead
    work = shape.batch * shape.heads * count / prepared.slots * mean
    wait = fitted.tail * larger(keys - rows, 0.0) / 2.0 * key_time
    causal_time = _rounds(fitted, work / half) * half + wait
    return smaller(causal_time, _full_time(prepared, shape, rows, key_time))


def _rounds(fitted: AttentionParameters, tiles: Real) -> Real:
    return fitted.concurrency * rounds(tiles, fitted.concurrency, fitted.softness)


def _decode_tile_time(prepared: PreparedAttention, shape: Shape, score: Real) -> Real:
    """All queries that share keys in one tile, the keys cut over idle multiprocessors."""
    fitted = prepared.parameters
    packed = shape.queries * ceil(shape.heads / shape.kv_heads)
    keys = _keys_read(shape)
    share = keys * shape.batch * shape.kv_heads / prepared.slots
    share = larger(smaller(keys, _DECODE_KEYS), share)
    merge = where(keys > _DECODE_KEYS, prepared.merge, 0.0)
    time = share * _DECODE_ROWS * score + fitted.tile_overhead + merge
    return where(packed <= _DECODE_ROWS, time, inf)
