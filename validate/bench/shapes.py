"""Sizes of matrix products and attention that real models have, whole and split over GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SPLITS: Final = (1, 2, 4, 8)


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


def products(rank: int) -> Iterator[Product]:
    """Yield sizes ``(m, n, k)``; `rank` 1 are the main ones, 2 their splits, 3 all that is left.

    Parameters
    ----------
    rank : how informative: 1, 2 or 3.
    """
    for block in BLOCKS:
        for place, rows in enumerate(block.rows):
            for degree in SPLITS:
                importance = 1 if place == 0 and degree == 1 else 2 if degree <= 2 else 3
                if importance == rank:
                    yield from _split(block, rows, degree)
    if rank == 1:
        yield from GENERAL
    if rank == 2:
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


def attentions(rank: int) -> Iterator[Scores]:
    """Yield attention calls; `rank` as for `products`."""
    table = {1: _main, 2: _splits, 3: _rest}
    yield from table[rank]()


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
