"""A small model of the same make: every block, stream and cut of the large one, few numbers.

What can go wrong in a split is kept: head counts, uneven tokens, padding, the order of layers.
Widths, layers and lengths, which only take time, are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from costmodels.program import Size
from planner.models import (
    Block,
    DeltaRule,
    Ffn,
    Heads,
    LatentAttention,
    Mamba,
    Model,
    Modulation,
    Numerics,
    Tower,
)
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies.sequence import convolved, is_causal

HEAD_SIZE: Final = 16
STATE: Final = 4
"""Rows and columns of a head's state."""
HIDDEN: Final = 64
FFN: Final = 32
ROWS: Final = 24
VOCABULARY: Final = 96
LINE: Final = 4
"""Tokens across an image that a FFN convolves over."""
LINES: Final = 3
"""Lines of it on a rank."""


def shrink(model: Model, workload: Workload, plan: Plan) -> tuple[Model, Workload]:
    """Return a small model and request that `plan` cuts as it cuts the large ones."""
    widths = _widths(model)
    layers = max(2, plan.degree("pp"))
    blocks = tuple(
        replace(
            block,
            count=min(block.count, layers),
            towers=tuple(_tower(tower, widths, plan) for tower in block.towers),
        )
        for block in model.blocks
    )
    small = replace(
        model,
        blocks=blocks,
        order=_order(model, blocks),
        input_features=min(model.input_features, FFN),
        output_features=min(model.output_features, FFN),
        vocabulary=VOCABULARY if model.vocabulary else 0,
        quantisation=None,
        numerics=_numerics(model.numerics),
    )
    return small, _workload(model, workload, plan)


def _numerics(numerics: Numerics | None) -> Numerics | None:
    """Keep what the numbers depend on, for small heads and few features."""
    if numerics is None:
        return None
    pairs = [axis * HEAD_SIZE // (2 * sum(numerics.axes)) for axis in numerics.axes]
    remainder = HEAD_SIZE // 2 - sum(pairs)
    axes = tuple(2 * (n + (remainder if index == 0 else 0)) for index, n in enumerate(pairs))
    return replace(
        numerics,
        axes=axes,
        conditions=tuple(
            replace(entry, features=min(entry.features, FFN)) for entry in numerics.conditions
        ),
        rows=tuple(replace(entry, features=min(entry.features, FFN)) for entry in numerics.rows),
    )


def _order(model: Model, small_blocks: Sequence[Block]) -> tuple[int, ...]:
    """Keep `small_blocks` layers of each kind, as evenly among all others as they stand."""
    small_order, counts = [], [0] * len(small_blocks)
    for kind in model.order:
        count, total, number = small_blocks[kind].count, model.blocks[kind].count, counts[kind]
        if number * count // total != (number - 1) * count // total:
            small_order.append(kind)
        counts[kind] += 1
    return tuple(small_order)


def _widths(model: Model) -> dict[int, int]:
    """Give each hidden width a small one; different ones stay different."""
    hidden = {tower.hidden for block in model.blocks for tower in block.towers}
    hidden |= {c.width for b in model.blocks for t in b.towers for c in t.cross}
    hidden |= {t.modulation.inputs for b in model.blocks for t in b.towers if t.modulation}
    return {old: HIDDEN + 16 * index for index, old in enumerate(sorted(hidden))}


def _tower(tower: Tower, widths: Mapping[int, int], plan: Plan) -> Tower:
    recurrence = _recurrence(tower.recurrence)
    return replace(
        tower,
        hidden=widths[tower.hidden],
        heads=_heads(tower.heads) if recurrence is None else recurrence.heads,
        recurrence=recurrence,
        ffn=_ffn(tower.ffn, plan),
        latent=_latent(tower.latent),
        modulation=_modulation(tower.modulation, tower.hidden, widths),
        cross=tuple(
            replace(cross, width=widths[cross.width], heads=_heads(cross.heads))
            for cross in tower.cross
        ),
        window=min(tower.window, ROWS // 2),
    )


def _heads(heads: Heads) -> Heads:
    return replace(heads, size=min(heads.size, HEAD_SIZE))


def _latent(spec: LatentAttention | None) -> LatentAttention | None:
    if spec is None:
        return None
    sizes = {field.name: min(getattr(spec, field.name), HEAD_SIZE) for field in fields(spec)}
    return LatentAttention(**sizes)


def _recurrence(spec: DeltaRule | Mamba | None) -> DeltaRule | Mamba | None:
    """Make states small; heads and what they share stay."""
    if isinstance(spec, DeltaRule):
        sizes = min(spec.key_size, STATE), min(spec.value_size, STATE)
        return replace(spec, key_size=sizes[0], value_size=sizes[1])
    if isinstance(spec, Mamba):
        return replace(spec, size=min(spec.size, STATE), state_size=min(spec.state_size, STATE))
    return None


def _ffn(ffn: Ffn | None, plan: Plan) -> Ffn | None:
    if ffn is None:
        return None
    degree, expert_split = plan.degree("tp"), max(1, plan.expert_ranks // plan.ep)
    experts = min(ffn.experts, max(8, plan.ep + ffn.experts % plan.ep))
    split = expert_split if experts else degree
    return replace(
        ffn,
        width=FFN * split + ffn.width % split,
        experts=experts,
        active=min(ffn.active, max(1, experts // 2)) if experts else 0,
        shared=FFN * degree + ffn.shared % degree if ffn.shared else 0,
        latent=min(ffn.latent, FFN),
    )


def _modulation(
    spec: Modulation | None, hidden: int, widths: Mapping[int, int]
) -> Modulation | None:
    if spec is None:
        return None
    vectors = max(1, spec.outputs // hidden)
    return replace(
        spec,
        inputs=widths[spec.inputs],
        outputs=vectors * widths[hidden],
        rank=min(spec.rank, HEAD_SIZE),
    )


def _workload(model: Model, workload: Workload, plan: Plan) -> Workload:
    grain = plan.sequence_ranks * plan.patch
    batch, replicas = int(np.asarray(workload.batch)), plan.replicas
    tokens = tuple(
        (stream.name, _length(workload.length(stream.name), grain, causal=is_causal(model)))
        for stream in model.streams
    )
    if convolved(model):
        image = dict.fromkeys(convolved(model), LINE * LINES * grain)
        tokens = tuple({**dict(tokens), **image}.items())
    return replace(
        workload,
        tokens=tokens,
        line=LINE if workload.line else 0,
        frames=1,
        batch=replicas if batch > 1 else 1,
        steps=min(int(np.asarray(workload.steps)), 2),
        output_tokens=min(int(np.asarray(workload.output_tokens)), 1),
    )


def _length(tokens: Size, grain: int, *, causal: bool) -> int:
    """Few tokens that leave the same remainder, and so the same padding or none."""
    length, step = int(np.asarray(tokens)), grain * (2 if causal else 1)
    if length <= ROWS:
        return length
    base = -(-ROWS // step) * step
    return base + length % step
