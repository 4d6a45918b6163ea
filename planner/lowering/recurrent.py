"""Recurrences in place of attention: each head keeps one state of a sequence, however long it is.

A causal convolution over a few tokens runs over each feature first. Of the gated delta rule [1]_
the features are queries, keys and values; of Mamba-2 [2]_ values, and what goes into the state and
out of it. The result is normed and gated. Heads are cut by tensor parallelism, states and all.

References
----------
.. [1] Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv:2412.06464
.. [2] Dao and Gu, "Transformers are SSMs", 2024, arXiv:2405.21060
"""

from dataclasses import replace
from typing import Literal

from costmodels.program import (
    CausalConvolution,
    Part,
    Pointwise,
    Rearrange,
    Recurrence,
    Tensor,
    Weight,
)
from costmodels.program.emit import Emits, concat_rows, matmul, regroup, split_features, split_rows
from planner.lowering.work import RankWork
from planner.models import DeltaRule, Mamba, Tower
from topology.base.values import dataclass

STATE_BYTES = 4
"""Bytes of a number of a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the two recurrences have in common, of a whole layer.

    features : that are convolved. gates : numbers a token and head. heads of `value` features,
    whose states have `key` rows; `groups` share keys. kernel : tokens of the convolution.
    normed : features that are normed together. chunk : tokens that are run at once in a prompt.
    """

    kind: Literal["delta", "mamba"]
    features: tuple[Part, ...]
    gates: tuple[Part, ...]
    heads: int
    groups: int
    key: int
    value: int
    kernel: int
    normed: int
    chunk: int


CHUNK = 64
"""Tokens that kernels of the gated delta rule take at once (fla, FlashQLA)."""


def sizes_of(tower: Tower) -> Sizes:
    """Say what is convolved, kept and gated in a layer."""
    spec = tower.recurrence
    if isinstance(spec, DeltaRule):
        keys, values = Part(spec.key_heads, spec.key_size), Part(spec.value_heads, spec.value_size)
        return Sizes(
            kind="delta", features=(keys, keys, values), gates=(Part(spec.value_heads),) * 2,
            heads=spec.value_heads, groups=spec.key_heads, key=spec.key_size,
            value=spec.value_size, kernel=spec.kernel, normed=spec.value_size, chunk=CHUNK,
        )  # fmt: skip
    assert isinstance(spec, Mamba)
    values, group_states = Part(spec.count, spec.size), Part(spec.groups, spec.state_size)
    return Sizes(
        kind="mamba", features=(values, group_states, group_states), gates=(Part(spec.count),),
        heads=spec.count, groups=spec.groups, key=spec.state_size, value=spec.size,
        kernel=spec.kernel, normed=spec.inner // spec.groups, chunk=spec.chunk,
    )  # fmt: skip


def recurrent_mixing(
    work: RankWork, tower: Tower, h: Tensor, layer: str, name: str
) -> Emits[Tensor]:
    """Emit a recurrence over rows; ``[batch, rows, heads * value]``, normed and gated."""
    sizes, degree = sizes_of(tower), work.share.tensor
    values = Part(sizes.heads, sizes.value)
    columns = (*sizes.features, values, *sizes.gates)
    into = work.weight(f"{name}.into", (Part(tower.hidden),), columns, part="attention")
    projected = yield from matmul(h, into, f"{name}.into")
    counts = (len(sizes.features), 1, len(sizes.gates))
    local_widths = [part.local(degree) for part in columns]
    widths = [
        sum(local_widths[sum(counts[:group]) : sum(counts[: group + 1])]) for group in range(3)
    ]
    names = [f"{name}.{kind}" for kind in ("features", "z", "gates")]
    features, z, gates = yield from split_features(projected, widths, names)
    out = yield from _over_sequences(work, tower, (features, gates), layer, name)
    normed = Tensor(f"{name}.normed", out.shape, out.itemsize)
    yield Pointwise(
        function="gated_norm", inputs=(out, z), outputs=(normed,), size=sizes.normed
    )  # fmt: skip
    return normed


def _over_sequences(
    work: RankWork, tower: Tower, projected: tuple[Tensor, Tensor], layer: str, name: str
) -> Emits[Tensor]:
    """Emit the recurrence of a batch, or of every chunk of a step."""
    if not work.chunks:
        return (yield from _recurrence(work, tower, projected, layer, name))
    features, gates = projected
    names = [f"{name}.{chunk.name}" for chunk in work.chunks]
    counts = [span.rows for span in work.rows(tower)]
    pieces = yield from split_rows(
        features, counts, [f"{chunk_name}.features" for chunk_name in names]
    )
    gate_pieces = yield from split_rows(
        gates, counts, [f"{chunk_name}.gates" for chunk_name in names]
    )
    chunk_results = []
    for chunk, chunk_name, piece, gate in zip(work.chunks, names, pieces, gate_pieces, strict=True):
        chunk_features = yield from regroup(
            piece, chunk.sequences, chunk.tokens, f"{chunk_name}.apart"
        )
        steps = yield from regroup(gate, chunk.sequences, chunk.tokens, f"{chunk_name}.gates_apart")
        out = yield from _recurrence(
            work, tower, (chunk_features, steps), layer, chunk_name, chunk.name
        )
        joined = yield from regroup(out, 1, piece.shape[1], f"{chunk_name}.met")
        chunk_results.append(joined)
    return (yield from concat_rows(chunk_results, f"{name}.met", view=True))


def _recurrence(
    work: RankWork, tower: Tower, projected: tuple[Tensor, Tensor], layer: str, name: str,
    part: str = "",
) -> Emits[Tensor]:  # fmt: skip
    """Emit the convolution and the recurrence of sequences, from what is kept of them."""
    (features, gates), sizes, degree = projected, sizes_of(tower), work.share.tensor
    heads, groups = sizes.heads // degree, max(1, sizes.groups // degree)
    lead, cache = features.shape[0], f"cache.{layer}.{tower.streams[0]}{f'.{part}' if part else ''}"
    inputs = Tensor(f"{cache}.inputs", (lead, sizes.kernel - 1, features.shape[2]))
    state = Tensor(f"{cache}.state", (lead, heads, sizes.key, sizes.value), STATE_BYTES)
    before = [replace(tensor, name=f"{tensor.name}.before") for tensor in (inputs, state)]
    after = [replace(tensor, name=f"{tensor.name}.after") for tensor in (inputs, state)]
    yield Rearrange(move="recall", inputs=(inputs, state), outputs=tuple(before), view=True)
    weight_prefix = f"{layer}.{tower.streams[0]}"
    taps = Weight(
        name=f"{weight_prefix}.taps", rows=(Part(sizes.kernel),), columns=sizes.features,
        split="columns",
        degree=degree,
    )  # fmt: skip
    convolved = Tensor(f"{name}.convolved", features.shape, features.itemsize)
    yield CausalConvolution(
        x=features, kept=before[0], weight=taps, out=convolved, after=after[0]
    )  # fmt: skip
    decay = Weight(
        name=f"{weight_prefix}.decay", rows=(Part(2),), columns=(Part(sizes.heads),),
        split="columns",
        degree=degree,
    )  # fmt: skip
    out = Tensor(f"{name}.recurred", (*features.shape[:2], heads * sizes.value), features.itemsize)
    yield Recurrence(
        kind=sizes.kind, inputs=(convolved, gates), state=before[1], weight=decay, out=out,
        after=after[1], heads=heads, groups=groups, key=sizes.key, value=sizes.value,
        chunk=sizes.chunk,
    )  # fmt: skip
    if work.memory in ("store", "append"):
        yield Rearrange(move="keep", inputs=tuple(after), outputs=(inputs, state), view=True)
    return out
