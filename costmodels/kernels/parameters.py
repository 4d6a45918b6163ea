"""What a kernel reaches of a GPU's promise, and where that is known from; read from TOML text."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

from costmodels.basis import Basis
from costmodels.kernels.common import Number
from costmodels.sizes import is_array
from topology.base import (
    BytesPerSecond,
    CatalogueError,
    FlopPerSecond,
    Kind,
    Seconds,
    parse,
    read_sourced,
)
from topology.base.values import dataclass

NEAR: Final = 4.0
"""Factor beyond the sizes of a fit up to which its law is carried on rather than guessed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a record comes from and what it was checked on.

    hardware : names it was fitted on; others take it over by mechanism.
    compute_capabilities : GPUs it stands for. rows : measurements it was fitted to.
    ranges : smallest and largest value seen, by name of the size.
    median_error, p90_error : relative, over the rows of the fit.
    """

    kind: Kind
    source: str
    hardware: tuple[str, ...]
    compute_capabilities: tuple[str, ...]
    rows: int = 0
    median_error: float = 0.0
    p90_error: float = 0.0
    ranges: tuple[tuple[str, float, float], ...] = ()

    def saw(self, sizes: Mapping[str, Number], margin: float = 1.0) -> bool:
        """Whether the fit saw sizes like all of these; one it knows no range of does not count.

        margin : factor beyond the range that still counts.
        """
        for name, least, most in self.ranges:
            size = sizes.get(name)
            if size is None:
                continue
            smallest, largest = (size.min(), size.max()) if is_array(size) else (size, size)
            if smallest < least / margin or largest > most * margin:
                return False
        return True

    def basis(self, device: str, sizes: Mapping[str, Number], *, alike: bool = True) -> Basis:
        """How well what the record says of `sizes` is known.

        device : name of the GPU. alike : whether the kernels asked about are those of the fit.
        """
        if self.kind == "assumed" or not self.saw(sizes, NEAR):
            return Basis.ASSUMED
        if device not in self.hardware or not alike:
            return Basis.DATASHEET
        if not self.saw(sizes):
            return Basis.EXTRAPOLATED
        return Basis.MEASURED if self.kind == "measured" else Basis.CALIBRATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was fitted of a kernel: the numbers of a formula, and where they come from."""

    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulParameters(Record):
    """One generation's matrix products; see `costmodels.kernels.matmul` for the formula.

    flop_per_cycle : of one multiprocessor, dense, 16-bit inputs, 32-bit sums.
    efficiency : share of that at the boost clock that an endless tile reaches.
    ceiling : share of the catalogue's peak that no product exceeds.
    tile_half : side of a square tile that reaches half of `efficiency`, times two.
    floor, vector_floor : s, an empty kernel, and one for a single row.
    tile_overhead : s, filling and draining the pipeline of a tile.
    split_overhead : s, and reduction_passes : of the 32-bit partial sums over memory, when the
    inner dimension is cut.
    load_bandwidth : B/s, what one multiprocessor reads. memory_efficiency : share of nominal.
    ramp : s, until memory streams at that pace; see `common.streamed`.
    softness : of rounds. sustained_drop : of the clock, see `common.slowed`.
    reference_rate, reference_power : FLOP/s and W of the GPU the fit saw, and power_exponent :
    how the rate that a power limit keeps up grows with the limit.
    fp8, int8, nvfp4 : efficiency relative to that of 16-bit inputs.
    """

    flop_per_cycle: float
    efficiency: float
    ceiling: float
    tile_half: float
    floor: Seconds
    vector_floor: Seconds
    tile_overhead: Seconds
    split_overhead: Seconds
    reduction_passes: float
    load_bandwidth: BytesPerSecond
    memory_efficiency: float
    softness: float
    sustained_drop: float
    reference_rate: FlopPerSecond
    reference_power: float
    power_exponent: float
    fp8: float
    int8: float
    nvfp4: float
    ramp: Seconds = Seconds(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedParameters(Record):
    """Products of quantised numbers, with what an engine does to their inputs before.

    gain : share that its kernels reach of the tensor cores' rate as `MatmulParameters` has it.
    memory : of the bandwidth that 16-bit products reach. tile_overhead, split_overhead : s, in
    place of those of 16-bit products. wait : s of a step of the inner loop that nothing hides.
    fixed : s, and passes : over the inputs in 16 bits, that scaling and rounding them takes.
    """

    gain: float
    memory: float
    tile_overhead: Seconds
    split_overhead: Seconds
    fixed: Seconds
    passes: float
    wait: Seconds = Seconds(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadProductParameters(QuantisedParameters):
    """Products of latent attention, one a head, with what an engine does to their inputs before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentContextParameters(Record):
    """Latent attention over prompts, expanded; see `costmodels.kernels.latent`.

    gain : share of the rate of large products. item : s of a multiprocessor for a tile of queries.
    fixed : s, of all kernels. passes : over queries, keys and values of all heads, in 16 bits.
    tile : queries.
    """

    gain: float
    item: Seconds
    fixed: Seconds
    passes: float
    tile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentDecodeParameters(Record):
    """Latent attention of new tokens, absorbed; see `costmodels.kernels.latent`.

    gain : share of the rate of large products. load_bandwidth : B/s at which one multiprocessor
    takes up rows. item : s of a multiprocessor for a request. merge : s, of rows that were cut.
    memory_efficiency : share of the nominal bandwidth. floor : s, of all kernels. passes : over
    queries and results. tile : heads that go together. least : fewest rows that are worth a
    multiprocessor of their own; more than any where a kernel does not cut.
    """

    gain: float
    load_bandwidth: BytesPerSecond
    item: Seconds
    merge: Seconds
    memory_efficiency: float
    floor: Seconds
    passes: float
    tile: float
    least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConvolutionParameters(Record):
    """Convolutions over time before a state; see `costmodels.kernels.state`.

    floor : s. sequence : s that each one of 4096 features takes to begin. cycle_bytes : that a
    multiprocessor reads and writes in a cycle.
    """

    floor: Seconds
    sequence: Seconds
    cycle_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateScanParameters(Record):
    """Passes over prompts that leave a state; see `costmodels.kernels.state`.

    floor : s. item, step : s of a multiprocessor for a head of a sequence, and for each 64 tokens
    of it, with a state of 128 x 128. passes : over what is read and written of the rows.
    """

    floor: Seconds
    item: Seconds
    step: Seconds
    passes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUpdateParameters(Record):
    """Updates of a state by a new token. floor : s. memory_efficiency : share of nominal."""

    floor: Seconds
    memory_efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsParameters(Record):
    """A layer of experts in a serving engine; see `costmodels.kernels.experts`.

    gain, memory, tile_overhead : of its products, as of `QuantisedParameters`.
    fixed : s, of all its kernels. spread : s more where other ranks hold experts too.
    local_passes : over the rows of this rank's experts, in 16 bits; passes, inner_passes : over
    those of all experts, by their hidden and their intermediate size.
    blocks : rows of a tile where a rank has an expert for each token or more, and where it has
    fewer; empty where the best tile is taken.
    """

    gain: float
    memory: float
    tile_overhead: Seconds
    fixed: Seconds
    spread: Seconds
    local_passes: float
    passes: float
    inner_passes: float
    blocks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParameters(Record):
    """What an engine's attention over a prompt has in place of that of ``trtllm`` and around it.

    cycles : for its head sizes, of the precision in the record's name. tile_overhead : s.
    softness, tail, sustained_drop : as of `AttentionParameters`. fixed : s, and passes : over q, k,
    v and the output, in kernels of its own.
    """

    cycles: tuple[float, ...]
    tile_overhead: Seconds
    softness: float
    tail: float
    sustained_drop: float
    fixed: Seconds
    passes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeParameters(Record):
    """Attention of one new token a request in a serving engine; see `costmodels.kernels.decode`.

    floor : s, of all its kernels. item : s of a multiprocessor for a request and head of keys.
    load_bandwidth : B/s at which one multiprocessor takes up keys and values. merge : s, of keys
    that were cut. memory_efficiency : share of the nominal bandwidth. ramp : s, until memory
    streams at that pace. passes : over the new queries, keys and values: writing them to the cache,
    and the result.
    shared : most heads that share keys and go along with them; of more each goes on its own.
    """

    floor: Seconds
    item: Seconds
    load_bandwidth: BytesPerSecond
    merge: Seconds
    memory_efficiency: float
    passes: float
    ramp: Seconds = Seconds(0.0)
    shared: float = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParameters(Record):
    """One implementation on one generation; see `costmodels.kernels.attention`.

    head_dims, cycles : one multiprocessor's cycles per score (query times key) at some head
    sizes, 16-bit inputs. grain : others are padded to a multiple of it, and lie between; 0 where
    they are padded to the next of `head_dims`.
    eight_bit : 1 where 16-bit inputs are multiplied as 8-bit numbers, else 0.
    fp8_cycles : the same for 8-bit inputs; empty where the kernel has none.
    odd_cycles : per score when the head size is no multiple of 16 and the implementation falls
    back to an older kernel; 0 where it does not.
    tile_rows : queries of a tile, for each of `head_dims`; odd_rows : of that older kernel.
    key_block : keys of a step. ragged : share that every step takes longer where keys do not fill
    the last one.
    concurrency : tiles a multiprocessor must hold to be busy.
    tile_overhead : s. softness : of rounds. tail : share of the difference between a long and a
    mean tile that the last round of causal work waits. sustained_drop : see `common.slowed`.
    serial_share : share of the peak that a tile's matrix products reach, where softmax waits for
    them and they for it; 0 where the two overlap. serial_rate : peak FLOP a cycle of one
    multiprocessor of the GPU that was fitted. On a GPU with slower tensor cores for its
    multiprocessors only the products take longer.
    power_exponent : on a GPU with less than `reference_power` watts a multiprocessor, a busy clock
    falls as this power of their ratio.
    mask_keys, mask_pairs : cycles that a score takes longer under a mask with a flag for every key,
    or for every pair of a query and a key.
    """

    head_dims: tuple[float, ...]
    cycles: tuple[float, ...]
    grain: float = 16.0
    eight_bit: float = 0.0
    fp8_cycles: tuple[float, ...] = ()
    odd_cycles: float = 0.0
    tile_rows: tuple[float, ...]
    odd_rows: float = 64.0
    key_block: float
    concurrency: float
    tile_overhead: Seconds
    softness: float
    tail: float
    sustained_drop: float
    serial_share: float = 0.0
    serial_rate: float = 0.0
    reference_power: float = 0.0
    power_exponent: float = 0.0
    ragged: float = 0.0
    mask_keys: float = 0.0
    mask_pairs: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParameters(Record):
    """What a serving engine does around its attention kernel, in kernels of its own.

    fixed, causal_fixed : s. passes, causal_passes : over q, k, v and the output in memory.
    """

    fixed: Seconds
    passes: float
    causal_fixed: Seconds
    causal_passes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseParameters(Record):
    """Kernels bound by memory. floor : s. ramp : s until all of memory is at work.

    cache : how many times faster than memory the second-level cache hands on what a kernel leaves
    for the next one; 1 where nothing is known.
    """

    floor: Seconds
    ramp: Seconds
    memory_efficiency: float
    cache: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchParameters(Record):
    """A kernel that takes tokens to the ranks of their experts, or brings results back.

    See `costmodels.collectives.dispatch` for the formula.

    launch : s. expert, rank : s more for every expert, and rank, of the layer. alone : B/s at
    which a single token passes.
    token, copy : s of a channel for a token, and for one that goes to another rank.
    home, rate : B/s at which a channel reads a token, and moves what goes out; 0 for no limit.
    multiprocessors : that an engine gives it; 0 where the way has no choice. notify : s before the
    kernel, in which ranks and hosts learn how much comes, where that was not measured with it.
    efficiency : share of the links' nominal bandwidth. sharpness : how start and stream join, as of
    `costmodels.collectives.curve.Curve`.
    """

    launch: Seconds
    expert: Seconds = Seconds(0.0)
    rank: Seconds = Seconds(0.0)
    alone: BytesPerSecond = BytesPerSecond(0.0)
    token: Seconds = Seconds(0.0)
    copy: Seconds = Seconds(0.0)
    home: BytesPerSecond = BytesPerSecond(0.0)
    rate: BytesPerSecond = BytesPerSecond(0.0)
    multiprocessors: float = 0.0
    notify: Seconds = Seconds(0.0)
    efficiency: float
    sharpness: float = 1.0


Parameters = TypeVar("Parameters", bound=Record)

_TIMES: Final = (
    "floor", "vector_floor", "tile_overhead", "split_overhead", "item", "merge", "fixed",
    "causal_fixed", "ramp", "launch", "expert", "rank", "token", "copy", "notify", "spread",
    "sequence", "step", "wait",
)  # fmt: skip
UNITS: Final = {
    **dict.fromkeys(_TIMES, "s"), "load_bandwidth": "B/s", "alone": "B/s", "home": "B/s",
    "rate": "B/s", "reference_rate": "FLOP/s", "reference_power": "W",
}  # fmt: skip
_SERIES: Final = ("head_dims", "cycles", "fp8_cycles", "tile_rows", "blocks")
_PROVENANCE: Final = {field.name for field in fields(Provenance)}


def load(tables: Mapping[str, Any], form: type[Parameters]) -> dict[str, Parameters]:
    """Read a table of records of one `form`.

    A value is text with its unit, or a table with its own kind and source.

    >>> row = {"kind": "assumed", "source": "example", "floor": "2 us", "ramp": "1 us"}
    >>> row |= {"hardware": ["b200"], "compute_capabilities": ["10.0"], "memory_efficiency": "0.9"}
    >>> load({"b200": row}, PointwiseParameters)["b200"].ramp
    1e-06
    """
    return {name: read_record(name, row, form) for name, row in tables.items()}


def read_record(where: str, row: Mapping[str, object], form: type[Parameters]) -> Parameters:
    """Read one record; `where` names it in errors."""
    wanted = {field.name for field in fields(form)} - {"provenance"}
    unexpected = set(row) - wanted - _PROVENANCE - {"note"}
    if unexpected:
        raise CatalogueError(f"{where}: unexpected {sorted(unexpected)}, expected {sorted(wanted)}")
    provenance = _provenance(where, row)
    values = {name: _value(where, name, row) for name in row if name in wanted}
    try:
        return form(provenance=provenance, **values)
    except TypeError as error:
        raise CatalogueError(f"{where}: {error}") from None


def _value(where: str, name: str, row: Mapping[str, object]) -> float | tuple[float, ...]:
    entry = row[name]
    if name in _SERIES:
        if not isinstance(entry, list):
            raise CatalogueError(f"{where}.{name}: expected a list, got {entry!r}")
        return tuple(parse(str(item), "1") for item in entry)
    unit = UNITS.get(name, "1")
    return read_sourced(f"{where}.{name}", entry, unit, row).value


def _provenance(where: str, row: Mapping[str, object]) -> Provenance:
    checked = read_sourced(where, "0", "1", row)  # kind and source are there and legal
    return Provenance(
        kind=checked.kind,
        source=checked.source,
        hardware=tuple(_names(where, row, "hardware")),
        compute_capabilities=tuple(_names(where, row, "compute_capabilities")),
        rows=int(str(row.get("rows", 0))),
        median_error=parse(str(row.get("median_error", "0")), "1"),
        p90_error=parse(str(row.get("p90_error", "0")), "1"),
        ranges=tuple(_ranges(where, row.get("ranges", {}))),
    )


def _names(where: str, row: Mapping[str, object], key: str) -> list[str]:
    names = row.get(key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CatalogueError(f"{where}.{key}: expected a list of names, got {names!r}")
    return names


def _ranges(where: str, table: object) -> Iterator[tuple[str, float, float]]:
    if not isinstance(table, Mapping):
        raise CatalogueError(f"{where}.ranges: expected a table, got {table!r}")
    for name, text in table.items():
        least, _, most = str(text).partition("..")
        yield str(name), parse(least, "1"), parse(most, "1")
