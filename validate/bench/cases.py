"""What is measured, in which order: families of cases, tier by tier.

Tier 1 is what `--quick` runs. Cases of a tier are shuffled, so that a machine that warms up does
not look like one that is slow at large sizes. Some families need all ranks at once; the others are
handed to whichever rank is free.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from topology.base import GIB, KIB, MIB
from validate.bench.shapes import MIXED, Scores, attentions, products

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
            found = list(dict.fromkeys(family(tier)))
            if family is not _memory:
                random.Random(seed).shuffle(found)  # noqa: S311  # an order, not a secret
            cases += found
    first: dict[str, Case] = {}
    for case in cases:
        if ranks > 1 or case.family not in ("collective", "beside", "forced", "peer"):
            first.setdefault(case.key, case)
    return list(first.values())


def case(family: Family, tier: int, **sizes: Value) -> Case:
    """Make a case from named sizes."""
    return Case(family=family, tier=tier, sizes=tuple(sizes.items()))


def _memory(tier: int) -> Iterator[Case]:
    if tier == 1:
        for stage in ("context", "matmul", "attention", "communicator", "exchange", "second"):
            yield case("memory", 1, stage=stage)


def _anchor(tier: int) -> Iterator[Case]:
    if tier == 1:
        yield case("anchor", 1, work="matmul", m=4096, n=12288, k=3072)
        yield case("anchor", 1, work="attention", heads=24, queries=4608, keys=4608)
        yield case("anchor", 1, work="pointwise", how="copy", bytes=GIB)


def _host(tier: int) -> Iterator[Case]:
    if tier == 1:
        for op in ("add", "linear", "layer_norm", "rms_norm", "chunk", "cast", "silu", "attention"):
            yield case("host", 1, op=op)
        for op in ("all_reduce", "all_gather", "all_to_all", "send_recv"):
            yield case("host", 1, op=op)
        for op in ("graph", "gap"):
            yield case("host", 1, op=op)


def _collective(tier: int) -> Iterator[Case]:
    octaves = range(10, 31)
    for op in OPS:
        for octave in range(20, 30):  # the steps of protocols and channels lie between octaves too
            if tier == (2 if op in USED else 3):
                yield case("collective", tier, op=op, bytes=3 * 2 ** (octave - 1))
        for octave in octaves:
            main = op in USED and octave % 2 == 0
            place = 1 if main else 2 if op in USED or octave % 2 == 0 else 3
            if place == tier:
                yield case("collective", tier, op=op, bytes=2**octave)


def _forced(tier: int) -> Iterator[Case]:
    if tier != 2:
        return
    for protocol in ("LL", "LL128", "Simple"):
        for octave in range(10, 31, 2):
            if protocol == "LL" and octave > 26:
                continue
            for op in ("all_reduce", "all_gather", "reduce_scatter"):
                yield case("forced", 2, op=op, bytes=2**octave, algorithm="Ring", protocol=protocol)
            yield case(
                "forced", 2, op="all_reduce", bytes=2**octave, algorithm="Tree", protocol=protocol
            )


def _matmul(tier: int) -> Iterator[Case]:
    for m, n, k in products(tier):
        yield case("matmul", tier, m=m, n=n, k=k, precision="bf16")
    if tier == 2:
        for m, n, k in MIXED:
            yield case("matmul", 2, m=m, n=n, k=k, precision="fp8")


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
    return case(
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
                yield case("pointwise", tier, how=how, bytes=2**octave)


def _function(tier: int) -> Iterator[Case]:
    for name in FUNCTIONS:
        for rows in (64, 512, 4608, 32768):
            if tier == (1 if rows in (64, 4608) else 2):
                yield case("function", tier, name=name, rows=rows, width=3072, way="eager")
                if name != "cast":  # the backend's is no kernel at all
                    yield case("function", tier, name=name, rows=rows, width=3072, way="lean")


def _compiled(tier: int) -> Iterator[Case]:
    if tier == 2:
        for layers in (2, 8):
            yield case("stack", 2, layers=layers, way="compiled")
        for layers in (2, 8):
            yield case("stack", 2, layers=layers, way="eager")
        for name in FUNCTIONS:
            yield case("compiled", 2, name=name, width=3072)


def _beside(tier: int) -> Iterator[Case]:
    for op in USED:
        for work in ("matmul", "attention"):
            for size in (16 * MIB, 64 * MIB, 256 * MIB):
                if tier == (1 if size == 64 * MIB else 2):
                    yield case("beside", tier, op=op, bytes=size, work=work)


def _peer(tier: int) -> Iterator[Case]:
    if tier == 2:
        for way in ("one", "both"):
            for octave in range(12, 31, 3):
                yield case("peer", 2, way=way, bytes=2**octave)


def _small_work(tier: int) -> Iterator[Case]:
    if tier == 1:
        yield case("matmul", 1, m=8, n=64, k=32, precision="bf16")
        yield case("attention", 1, kernel="default", batch=1, heads=2, kv_heads=2, queries=8,
                   keys=8, head_dim=16, causal=0)  # fmt: skip
        yield case("pointwise", 1, how="copy", bytes=4 * KIB)
        yield case("function", 1, name="modulated_norm", rows=8, width=128, way="eager")
        yield case("function", 1, name="modulated_norm", rows=8, width=128, way="lean")
        yield case("host", 1, op="add")


def _small_collective(tier: int) -> Iterator[Case]:
    if tier == 1:
        for op in OPS:
            for octave in (10, 12):
                yield case("collective", 1, op=op, bytes=2**octave)


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
    for one in cases:
        if not groups or groups[-1][0].together != one.together:
            groups.append([])
        groups[-1].append(one)
    return groups
