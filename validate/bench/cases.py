"""What is measured, in which order: families of cases, tier by tier, of sizes that models have.

Tier 1 is what `--quick` runs. Cases of a tier are shuffled, so that a machine that warms up does
not look like one that is slow at large sizes. Some families need all ranks at once; the others are
handed to whichever rank is free.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, product
from typing import Any, Final, Literal, NamedTuple

from topology.base import GIB, KIB, MIB
from topology.base.values import dataclass
from validate.tables import shipped_table

SPLITS: Final = (1, 2, 4, 8)
Family = Literal[
    "memory", "anchor", "host", "collective", "matmul", "attention", "pointwise", "function",
    "beside", "forced", "peer", "compiled", "stack",
]  # fmt: skip
Value = int | str

SHARED: Final = frozenset({"collective", "beside", "forced", "peer"})
"""Families that need several ranks."""
TOGETHER: Final = frozenset({"memory", "anchor", "host", *SHARED})
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
FLUX_HEADS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One thing to measure: its family, and its sizes and choices by name."""

    family: Family
    tier: int
    sizes: tuple[tuple[str, Value], ...]

    @property
    def key(self) -> str:
        """What tells it from all others.

        >>> case_of("matmul", 1, m=8, n=16).key
        'matmul m=8 n=16'
        """
        return " ".join([self.family, *(f"{name}={value}" for name, value in self.sizes)])

    @property
    def together(self) -> bool:
        """Whether all ranks run it at the same time."""
        return self.family in TOGETHER

    def number(self, name: str) -> int:
        """Return a size of the case by its name."""
        return int(dict(self.sizes)[name])

    def text(self, name: str) -> str:
        """Return a choice; empty where it has none of that name."""
        return str(dict(self.sizes).get(name, ""))


def case_of(family: Family, tier: int, **sizes: Value) -> Measurement:
    """Make a case from named sizes."""
    return Measurement(family=family, tier=tier, sizes=tuple(sizes.items()))


def all_cases(ranks: int, *, small: bool = False) -> list[Measurement]:
    """List every case, in the order in which it is run; `small` ones suit a CPU.

    >>> [case.key for case in all_cases(1)][:2]
    ['memory stage=context', 'memory stage=matmul']
    """
    unique_cases: dict[str, Measurement] = {}
    for tier, family in product(TIERS, _SMALL_FAMILIES if small else _FAMILIES):
        cases = list(dict.fromkeys(case for case in family() if case.tier == tier))
        if family is not _memory:
            random.Random(1).shuffle(cases)  # noqa: S311  # an order, not a secret
        for case in cases:
            if ranks > 1 or case.family not in SHARED:
                unique_cases.setdefault(case.key, case)
    return list(unique_cases.values())


def runs(cases: Sequence[Measurement]) -> list[list[Measurement]]:
    """Cut a list where cases that need all ranks meet cases that do not.

    >>> [len(run) for run in runs(all_cases(2, small=True))][:2]
    [24, 2]
    """
    return [list(run) for _, run in groupby(cases, lambda case: case.together)]


def _memory() -> Iterator[Measurement]:
    for stage in ("context", "matmul", "attention", "communicator", "exchange", "second"):
        yield case_of("memory", 1, stage=stage)


def _anchor() -> Iterator[Measurement]:
    yield case_of("anchor", 1, work="matmul", m=4096, n=12288, k=3072)
    yield case_of("anchor", 1, work="attention", heads=24, queries=4608, keys=4608)
    yield case_of("anchor", 1, work="pointwise", how="copy", bytes=GIB)


def _host() -> Iterator[Measurement]:
    for op in (
        "add", "linear", "layer_norm", "rms_norm", "chunk", "cast", "silu", "attention",
        "all_reduce", "all_gather", "all_to_all", "send_recv", "graph", "gap",
    ):  # fmt: skip
        yield case_of("host", 1, op=op)


def _collective() -> Iterator[Measurement]:
    for op in OPS:
        in_plans = op in USED
        for octave in range(20, 30):  # the steps of protocols and channels lie between octaves too
            yield case_of("collective", 2 if in_plans else 3, op=op, bytes=3 * 2 ** (octave - 1))
        for octave in range(10, 31):
            tier = 1 + (not in_plans) + octave % 2
            yield case_of("collective", tier, op=op, bytes=2**octave)


def _forced() -> Iterator[Measurement]:
    for protocol, octave in product(("LL", "LL128", "Simple"), range(10, 31, 2)):
        if protocol == "LL" and octave > 26:
            continue
        ring_ops = [(op, "Ring") for op in ("all_reduce", "all_gather", "reduce_scatter")]
        for op, algorithm in (*ring_ops, ("all_reduce", "Tree")):
            sizes = {"bytes": 2**octave, "algorithm": algorithm, "protocol": protocol}
            yield case_of("forced", 2, op=op, **sizes)


def _matmul() -> Iterator[Measurement]:
    """Yield the main products of blocks and general ones, their splits, and all that is left."""
    table = shipped_table("bench_cases.toml")
    for block in table["blocks"].values():
        for (index, rows), degree in product(enumerate(block["rows"]), SPLITS):
            tier = 1 if index == 0 and degree == 1 else 2 if degree <= 2 else 3
            for m, n, k in _rank_products(block, rows, degree):
                yield case_of("matmul", tier, m=m, n=n, k=k, precision="bf16")
    for tier, name in ((1, "general"), (2, "small"), (2, "eight_bit")):
        precision = "fp8" if name == "eight_bit" else "bf16"
        for m, n, k in table["products"][name]:
            yield case_of("matmul", tier, m=m, n=n, k=k, precision=precision)


def _rank_products(
    block: Mapping[str, Any], rows: int, degree: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the products ``(m, n, k)`` of one of `degree` ranks, by sequence and by tensor."""
    share = -(-rows // degree)
    for n, k in (*block["columns"], *block["rows_cut"]):
        yield share, n, k
    if degree > 1:
        for n, k in block["columns"]:
            yield rows, n // degree, k
        for n, k in block["rows_cut"]:
            yield rows, n, k // degree


class Scores(NamedTuple):
    """Sizes of one attention call; `kv_heads` of keys and values, 0 for as many as of queries."""

    heads: int
    queries: int
    keys: int
    head_dim: int = 128
    kv_heads: int = 0
    batch: int = 1
    causal: int = 0

    def case(self, tier: int, kernel: str) -> Measurement:
        """Make a case of a kernel."""
        sizes = {**self._asdict(), "kv_heads": self.kv_heads or self.heads}
        names = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal")
        return case_of("attention", tier, kernel=kernel, **{name: sizes[name] for name in names})


def _scores(tier: int) -> Iterator[Scores]:
    if tier == 2:
        yield from _split_scores()
    yield from (
        Scores(*row) for row in shipped_table("bench_cases.toml")["attention"][f"tier_{tier}"]
    )


def _split_scores() -> Iterator[Scores]:
    """Yield what plans of 2, 4 and 8 ranks make of a call."""
    for heads, tokens in ((24, 4608), (24, 1536), (24, 16896), (12, 32760), (40, 32760)):
        for degree in SPLITS[1:]:
            if heads % degree == 0:
                yield Scores(heads // degree, tokens, tokens)
            share = tokens // degree
            if heads < 40 or degree > 4:
                yield Scores(heads, share, share)
                yield Scores(heads, share, tokens)


def _attention() -> Iterator[Measurement]:
    for tier in TIERS:
        yield from (scores.case(tier, "default") for scores in _scores(tier))
    for scores in _scores(1):
        if scores.queries > 1:
            yield scores.case(1 if scores.heads == FLUX_HEADS else 2, "flash")
        if not scores.causal and not scores.kv_heads:
            yield scores.case(2, "cudnn_lse")
            yield scores.case(2, "flash_lse")
    yield from (scores.case(3, "flash") for scores in _scores(2))


def _pointwise() -> Iterator[Measurement]:
    for how, octave in product(("copy", "add", "fill", "sum"), range(14, 32)):
        tier = 3 if octave % 2 else 1 if how in ("copy", "add") else 2
        yield case_of("pointwise", tier, how=how, bytes=2**octave)


def _function() -> Iterator[Measurement]:
    for name, rows, way in product(FUNCTIONS, (64, 512, 4608, 32768), ("eager", "lean")):
        if (name, way) != ("cast", "lean"):  # the backend's is no kernel at all
            tier = 1 if rows in (64, 4608) else 2
            yield case_of("function", tier, name=name, rows=rows, width=3072, way=way)


def _compiled() -> Iterator[Measurement]:
    for way, layers in product(("compiled", "eager"), (2, 8)):
        yield case_of("stack", 2, layers=layers, way=way)
    for name in FUNCTIONS:
        yield case_of("compiled", 2, name=name, width=3072)


def _beside() -> Iterator[Measurement]:
    for op, work, size in product(USED, ("matmul", "attention"), (16 * MIB, 64 * MIB, 256 * MIB)):
        yield case_of("beside", 1 if size == 64 * MIB else 2, op=op, bytes=size, work=work)


def _peer() -> Iterator[Measurement]:
    for way, octave in product(("one", "both"), range(12, 31, 3)):
        yield case_of("peer", 2, way=way, bytes=2**octave)


def _small_work() -> Iterator[Measurement]:
    yield case_of("matmul", 1, m=8, n=64, k=32, precision="bf16")
    yield Scores(2, 8, 8, head_dim=16).case(1, "default")
    yield case_of("pointwise", 1, how="copy", bytes=4 * KIB)
    for way in ("eager", "lean"):
        yield case_of("function", 1, name="modulated_norm", rows=8, width=128, way=way)
    yield case_of("host", 1, op="add")


def _small_collective() -> Iterator[Measurement]:
    for op, octave in product(OPS, (10, 12)):
        yield case_of("collective", 1, op=op, bytes=2**octave)


Maker = Callable[[], Iterator[Measurement]]
_FAMILIES: Final[tuple[Maker, ...]] = (
    _memory, _anchor, _host, _collective, _beside, _matmul, _attention, _pointwise, _function,
    _forced, _peer, _compiled,
)  # fmt: skip
_SMALL_FAMILIES: Final[tuple[Maker, ...]] = (_memory, _small_collective, _small_work)
