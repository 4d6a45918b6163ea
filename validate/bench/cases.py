"""What is measured, in which order: families of cases, tier by tier, of sizes that models have.

Tier 1 is what `--quick` runs. Cases of a tier are shuffled, so that a machine that warms up does
not look like one that is slow at large sizes. Some families need all ranks at once; the others are
handed to whichever rank is free.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from topology.base import GIB, KIB, MIB

SPLITS: Final = (1, 2, 4, 8)
Family = Literal[
    "memory", "anchor", "host", "collective", "matmul", "attention", "pointwise", "function",
    "beside", "forced", "peer", "compiled", "stack",
]  # fmt: skip
Value = int | str

TOGETHER: Final = frozenset({"memory", "anchor", "host", "collective", "beside", "forced", "peer"})
"""Families that all ranks run at the same time."""
TIERS: Final = (1, 2, 3)
OPS: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "reduce",
    "gather", "scatter",
)  # fmt: skip
USED: Final = OPS[:5]
"""Collectives that plans are made of."""
FUNCTIONS: Final = (
    "norm", "modulated_norm", "gated_residual", "residual", "rotary", "gelu", "silu_gated",
    "merge", "guidance", "step", "cast",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of transformer block: rows at once, and its matrices ``(n, k)``.

    columns : matrices that tensor parallelism cuts along n. rows_cut : along k.
    """

    name: str
    rows: tuple[int, ...]
    columns: tuple[tuple[int, int], ...]
    rows_cut: tuple[tuple[int, int], ...]


BLOCKS: Final = (
    Block(
        name="flux",
        rows=(4096, 512, 1024, 16384),
        columns=((9216, 3072), (12288, 3072)),
        rows_cut=((3072, 3072), (3072, 12288)),
    ),
    Block(
        name="flux-single",
        rows=(4608, 1536, 16896),
        columns=((21504, 3072),),
        rows_cut=((3072, 15360),),
    ),
    Block(
        name="wan-1.3b",
        rows=(32760,),
        columns=((4608, 1536), (8960, 1536)),
        rows_cut=((1536, 1536), (1536, 8960)),
    ),
    Block(
        name="wan-14b",
        rows=(32760, 512),
        columns=((15360, 5120), (13824, 5120)),
        rows_cut=((5120, 5120), (5120, 13824)),
    ),
    Block(
        name="cosmos3-nano",
        rows=(18720, 44160, 3250),
        columns=((6144, 4096), (24576, 4096)),
        rows_cut=((4096, 4096), (4096, 12288)),
    ),
    Block(
        name="hunyuanvideo",
        rows=(67576,),
        columns=((21504, 3072),),
        rows_cut=((3072, 15360),),
    ),
    Block(
        name="llama-8b",
        rows=(2048, 1, 16, 64, 8192),
        columns=((6144, 4096), (28672, 4096)),
        rows_cut=((4096, 4096), (4096, 14336)),
    ),
    Block(
        name="llama-70b",
        rows=(2048, 1, 32, 128),
        columns=((10240, 8192), (57344, 8192)),
        rows_cut=((8192, 8192), (8192, 28672)),
    ),
)

Product = tuple[int, int, int]


def products(tier: int) -> Iterator[Product]:
    """Yield sizes ``(m, n, k)``; `tier` 1 has the main ones, 2 their splits, 3 all that is left."""
    for block in BLOCKS:
        for place, rows in enumerate(block.rows):
            for degree in SPLITS:
                if tier == (1 if place == 0 and degree == 1 else 2 if degree <= 2 else 3):
                    yield from _split(block, rows, degree)
    if tier == 1:
        yield from GENERAL
    if tier == 2:
        yield from SMALL


def _split(block: Block, rows: int, degree: int) -> Iterator[Product]:
    share = -(-rows // degree)
    for n, k in (*block.columns, *block.rows_cut):
        yield share, n, k  # sequence parallel
    if degree > 1:
        for n, k in block.columns:
            yield rows, n // degree, k
        for n, k in block.rows_cut:
            yield rows, n, k // degree


GENERAL: Final[tuple[Product, ...]] = (
    (16384, 16384, 16384),
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (512, 512, 512),
    (256, 256, 256),
    (128, 4096, 16384),
    (16, 4096, 4096),
    (1, 9216, 3072),
    (1, 18432, 3072),
    (4096, 64, 3072),
    (4096, 3072, 64),
)
SMALL: Final[tuple[Product, ...]] = (
    (1, 4096, 14336),
    (4, 4096, 4096),
    (8, 28672, 4096),
    (32, 4096, 4096),
    (32, 4096, 14336),
    (96, 6144, 4096),
    (128, 3072, 3072),
    (192, 5120, 5120),
    (256, 12288, 3072),
    (384, 3072, 12288),
    (768, 8960, 1536),
    (64, 256, 8192),
    (3072, 192, 4096),
    (1, 128256, 4096),
)

MIXED: Final[tuple[Product, ...]] = (
    (4608, 21504, 3072),
    (4608, 3072, 15360),
    (18720, 4096, 4096),
    (2048, 28672, 4096),
    (8192, 8192, 8192),
    (512, 4096, 4096),
    (64, 28672, 4096),
    (1024, 1024, 8192),
)
"""Products that are also measured with 8-bit inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Sizes of one attention call. `batch` sequences, `kv_heads` heads of keys and values."""

    heads: int
    queries: int
    keys: int
    head_dim: int = 128
    kv_heads: int = 0
    batch: int = 1
    causal: bool = False


def attentions(tier: int) -> Iterator[Scores]:
    """Yield attention calls; `tier` as for `products`."""
    return {1: _main, 2: _splits, 3: _rest}[tier]()


def _main() -> Iterator[Scores]:
    for heads, tokens in (
        (24, 4608),
        (24, 1536),
        (12, 32760),
        (40, 8192),
        (24, 16896),
        (32, 18720),
    ):
        yield Scores(heads=heads, queries=tokens, keys=tokens)
    yield Scores(heads=12, queries=4608, keys=4608)  # ulysses or tensor parallel
    yield Scores(heads=24, queries=2304, keys=2304)  # a step of a ring
    yield Scores(heads=24, queries=2304, keys=4608)  # gathered keys
    yield Scores(heads=3, queries=4608, keys=4608)
    yield Scores(heads=12, queries=32760, keys=512)  # cross attention
    yield Scores(heads=48, queries=17776, keys=17776, head_dim=64)
    yield Scores(heads=24, queries=4096, keys=4096, head_dim=96)
    yield Scores(heads=16, queries=4096, keys=4096, head_dim=256)
    yield Scores(heads=32, kv_heads=8, queries=2048, keys=2048, causal=True)
    yield Scores(heads=32, kv_heads=8, queries=8192, keys=8192, causal=True)
    yield Scores(heads=32, kv_heads=8, queries=9360, keys=21970)
    for batch in (1, 16):
        yield Scores(heads=32, kv_heads=8, queries=1, keys=2112, batch=batch)


def _splits() -> Iterator[Scores]:
    for heads, tokens in ((24, 4608), (24, 1536), (24, 16896), (12, 32760), (40, 32760)):
        for degree in (2, 4, 8):
            if heads % degree == 0:
                yield Scores(heads=heads // degree, queries=tokens, keys=tokens)
            share = tokens // degree
            if heads < 40 or degree > 4:
                yield Scores(heads=heads, queries=share, keys=share)
                yield Scores(heads=heads, queries=share, keys=tokens)
    for head_dim in (64, 96, 256):
        for heads, tokens in ((16, 1024), (32, 2048), (8, 8192)):
            yield Scores(heads=heads, queries=tokens, keys=tokens, head_dim=head_dim)
    for tokens in (512, 1024, 4096, 16384):
        yield Scores(heads=16, queries=tokens, keys=tokens, causal=True)
    yield Scores(heads=40, queries=16380, keys=512)
    yield Scores(heads=32, kv_heads=8, queries=1, keys=8192, batch=64)
    yield Scores(heads=64, kv_heads=8, queries=1, keys=32768)


def _rest() -> Iterator[Scores]:
    for heads in (3, 4, 6, 8, 10, 20, 48, 64):
        yield Scores(heads=heads, queries=2048, keys=2048)
        yield Scores(heads=heads, queries=9216, keys=9216)
    yield Scores(heads=40, queries=32760, keys=32760)
    yield Scores(heads=32, kv_heads=8, queries=44160, keys=47410)
    yield Scores(heads=24, queries=67576, keys=67576)
    yield Scores(heads=24, queries=33788, keys=67576)
    for batch in (2, 4, 8):
        yield Scores(heads=32, queries=4096, keys=4096, batch=batch, head_dim=64)
        yield Scores(heads=32, kv_heads=8, queries=1, keys=4096, batch=batch)
    for share in (512, 1024, 2048):
        yield Scores(heads=16, queries=share, keys=8 * share, head_dim=64)
        yield Scores(heads=8, queries=share, keys=4 * share, causal=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure: its family, and its sizes and choices by name."""

    family: Family
    tier: int
    sizes: tuple[tuple[str, Value], ...]

    @property
    def key(self) -> str:
        """What tells it from all others.

        >>> Case(family="matmul", tier=1, sizes=(("m", 8), ("n", 16))).key
        'matmul m=8 n=16'
        """
        return " ".join([self.family, *(f"{name}={value}" for name, value in self.sizes)])

    @property
    def together(self) -> bool:
        """Whether all ranks run it at the same time."""
        return self.family in TOGETHER

    def number(self, name: str) -> int:
        """Return a size."""
        return int(dict(self.sizes)[name])

    def text(self, name: str) -> str:
        """Return a choice; empty where it has none of that name."""
        return str(dict(self.sizes).get(name, ""))


def all_cases(ranks: int, *, small: bool = False, seed: int = 1) -> list[Case]:
    """List every case, in the order in which it is run; `small` ones suit a CPU.

    >>> [case.key for case in all_cases(1)][:2]
    ['memory stage=context', 'memory stage=matmul']
    """
    families = _SMALL if small else _FAMILIES
    cases: list[Case] = []
    for tier in TIERS:
        for family in families:
            different = list(dict.fromkeys(family(tier)))
            if family is not _memory:
                random.Random(seed).shuffle(different)  # noqa: S311  # an order, not a secret
            cases += different
    first: dict[str, Case] = {}
    for case in cases:
        if ranks > 1 or case.family not in ("collective", "beside", "forced", "peer"):
            first.setdefault(case.key, case)
    return list(first.values())


def case_of(family: Family, tier: int, **sizes: Value) -> Case:
    """Make a case from named sizes."""
    return Case(family=family, tier=tier, sizes=tuple(sizes.items()))


def _memory(tier: int) -> Iterator[Case]:
    if tier == 1:
        for stage in ("context", "matmul", "attention", "communicator", "exchange", "second"):
            yield case_of("memory", 1, stage=stage)


def _anchor(tier: int) -> Iterator[Case]:
    if tier == 1:
        yield case_of("anchor", 1, work="matmul", m=4096, n=12288, k=3072)
        yield case_of("anchor", 1, work="attention", heads=24, queries=4608, keys=4608)
        yield case_of("anchor", 1, work="pointwise", how="copy", bytes=GIB)


def _host(tier: int) -> Iterator[Case]:
    if tier == 1:
        for op in ("add", "linear", "layer_norm", "rms_norm", "chunk", "cast", "silu", "attention"):
            yield case_of("host", 1, op=op)
        for op in ("all_reduce", "all_gather", "all_to_all", "send_recv"):
            yield case_of("host", 1, op=op)
        for op in ("graph", "gap"):
            yield case_of("host", 1, op=op)


def _collective(tier: int) -> Iterator[Case]:
    octaves = range(10, 31)
    for op in OPS:
        for octave in range(20, 30):  # the steps of protocols and channels lie between octaves too
            if tier == (2 if op in USED else 3):
                yield case_of("collective", tier, op=op, bytes=3 * 2 ** (octave - 1))
        for octave in octaves:
            main = op in USED and octave % 2 == 0
            place = 1 if main else 2 if op in USED or octave % 2 == 0 else 3
            if place == tier:
                yield case_of("collective", tier, op=op, bytes=2**octave)


def _forced(tier: int) -> Iterator[Case]:
    if tier != 2:
        return
    for protocol in ("LL", "LL128", "Simple"):
        for octave in range(10, 31, 2):
            if protocol == "LL" and octave > 26:
                continue
            for op in ("all_reduce", "all_gather", "reduce_scatter"):
                yield case_of(
                    "forced", 2, op=op, bytes=2**octave, algorithm="Ring", protocol=protocol
                )
            yield case_of(
                "forced", 2, op="all_reduce", bytes=2**octave, algorithm="Tree", protocol=protocol
            )


def _matmul(tier: int) -> Iterator[Case]:
    for m, n, k in products(tier):
        yield case_of("matmul", tier, m=m, n=n, k=k, precision="bf16")
    if tier == 2:
        for m, n, k in MIXED:
            yield case_of("matmul", 2, m=m, n=n, k=k, precision="fp8")


def _attention(tier: int) -> Iterator[Case]:
    for scores in attentions(tier):
        yield _scores(tier, scores, "default")
    for scores in attentions(1):
        main = scores.heads == FLUX_HEADS
        if scores.queries > 1 and tier == (1 if main else 2):
            yield _scores(tier, scores, "flash")
        if tier == 2 and not scores.causal and not scores.kv_heads:
            yield _scores(2, scores, "cudnn_lse")
            yield _scores(2, scores, "flash_lse")
    if tier == 3:
        for scores in attentions(2):
            yield _scores(3, scores, "flash")


def _scores(tier: int, s: Scores, kernel: str) -> Case:
    return case_of(
        "attention",
        tier,
        kernel=kernel,
        batch=s.batch,
        heads=s.heads,
        kv_heads=s.kv_heads or s.heads,
        queries=s.queries,
        keys=s.keys,
        head_dim=s.head_dim,
        causal=int(s.causal),
    )


def _pointwise(tier: int) -> Iterator[Case]:
    for how in ("copy", "add", "fill", "sum"):
        for octave in range(14, 32):
            place = 1 if how in ("copy", "add") and octave % 2 == 0 else 2 if octave % 2 == 0 else 3
            if place == tier:
                yield case_of("pointwise", tier, how=how, bytes=2**octave)


def _function(tier: int) -> Iterator[Case]:
    for name in FUNCTIONS:
        for rows in (64, 512, 4608, 32768):
            if tier == (1 if rows in (64, 4608) else 2):
                yield case_of("function", tier, name=name, rows=rows, width=3072, way="eager")
                if name != "cast":  # the backend's is no kernel at all
                    yield case_of("function", tier, name=name, rows=rows, width=3072, way="lean")


def _compiled(tier: int) -> Iterator[Case]:
    if tier == 2:
        for layers in (2, 8):
            yield case_of("stack", 2, layers=layers, way="compiled")
        for layers in (2, 8):
            yield case_of("stack", 2, layers=layers, way="eager")
        for name in FUNCTIONS:
            yield case_of("compiled", 2, name=name, width=3072)


def _beside(tier: int) -> Iterator[Case]:
    for op in USED:
        for work in ("matmul", "attention"):
            for size in (16 * MIB, 64 * MIB, 256 * MIB):
                if tier == (1 if size == 64 * MIB else 2):
                    yield case_of("beside", tier, op=op, bytes=size, work=work)


def _peer(tier: int) -> Iterator[Case]:
    if tier == 2:
        for way in ("one", "both"):
            for octave in range(12, 31, 3):
                yield case_of("peer", 2, way=way, bytes=2**octave)


def _small_work(tier: int) -> Iterator[Case]:
    if tier == 1:
        yield case_of("matmul", 1, m=8, n=64, k=32, precision="bf16")
        yield case_of("attention", 1, kernel="default", batch=1, heads=2, kv_heads=2, queries=8,
                   keys=8, head_dim=16, causal=0)  # fmt: skip
        yield case_of("pointwise", 1, how="copy", bytes=4 * KIB)
        yield case_of("function", 1, name="modulated_norm", rows=8, width=128, way="eager")
        yield case_of("function", 1, name="modulated_norm", rows=8, width=128, way="lean")
        yield case_of("host", 1, op="add")


def _small_collective(tier: int) -> Iterator[Case]:
    if tier == 1:
        for op in OPS:
            for octave in (10, 12):
                yield case_of("collective", 1, op=op, bytes=2**octave)


FLUX_HEADS: Final = 24
Maker = Callable[[int], Iterator[Case]]
_FAMILIES: Final[tuple[Maker, ...]] = (
    _memory,
    _anchor,
    _host,
    _collective,
    _beside,
    _matmul,
    _attention,
    _pointwise,
    _function,
    _forced,
    _peer,
    _compiled,
)
_SMALL: Final[tuple[Maker, ...]] = (_memory, _small_collective, _small_work)


def runs(cases: Sequence[Case]) -> list[list[Case]]:
    """Cut a list where cases that need all ranks meet cases that do not.

    >>> [len(run) for run in runs(all_cases(2, small=True))][:2]
    [24, 2]
    """
    groups: list[list[Case]] = []
    for case in cases:
        if not groups or groups[-1][0].together != case.together:
            groups.append([])
        groups[-1].append(case)
    return groups
