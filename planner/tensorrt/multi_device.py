"""Programs whose attention reads keys and values where they lie, on several devices.

TensorRT's attention can be told its number of ranks; each gives its own keys and values and asks
with its own queries. That stands for AllGather-KV where every row of keys is cut, nothing is
masked, and no other axis meets in the same engine.
"""

from dataclasses import replace

from costmodels.program.ops import Attention, Collective, Loop, Op, Program, Rearrange, Tensor

AXIS = "allgather_kv"
Item = Op | Loop


def with_multi_device_attention(
    program: Program, *, asked: bool = True
) -> tuple[Program, frozenset[str]]:
    """Leave out the gathers that such an attention makes needless.

    Returns
    -------
    the program, and the names of the results of attentions that run on several devices
    """
    others = [name for name, _ in program.axes if name in ("tp", "ulysses", "ring", "pp")]
    if not asked or others or AXIS not in dict(program.axes):
        return program, frozenset()
    names: set[str] = set()
    stages = tuple(_changed(loop, names) for loop in program.stages)
    return replace(program, stages=stages), frozenset(names)


def _changed(loop: Loop, names: set[str]) -> Loop:
    body = [_changed(item, names) if isinstance(item, Loop) else item for item in loop.body]
    made = {
        tensor.name: item for item in body if not isinstance(item, Loop) for tensor in item.writes
    }
    for attention in [item for item in body if isinstance(item, Attention)]:
        chain = _gathered(attention, made)
        if chain:
            names.add(attention.out.name)
            body = _without(body, attention, chain)
    return replace(loop, body=tuple(body))


def _gathered(op: Attention, made: dict[str, Op]) -> list[Rearrange | Collective]:
    """Return the cut, the unpacking, the gather and the stacking behind keys, if that is all."""
    chain: list[Rearrange | Collective] = []
    name = op.k.name
    for move in ("split_features", "unpack_rows", "", "stack"):
        item = made.get(name)
        if not isinstance(item, Rearrange | Collective):
            return []
        if isinstance(item, Rearrange) and item.move != move:
            return []
        if isinstance(item, Collective) and (move or item.axis != AXIS):
            return []
        chain.append(item)
        name = item.reads[0].name
    unpack = chain[1]
    assert isinstance(unpack, Rearrange)
    padded = any(int(span.padded) != int(span.tokens) for span in unpack.spans)
    return [] if padded or op.causal or op.window else chain


def _without(
    body: list[Item], attention: Attention, chain: list[Rearrange | Collective]
) -> list[Item]:
    split, unpack, gather, stack = chain
    assert isinstance(split, Rearrange)
    assert isinstance(unpack, Rearrange)
    local, spans = stack.reads[0], unpack.spans
    parts = tuple(_local(part, local) for part in split.outputs)
    cut = replace(split, inputs=(local,), outputs=parts)
    new = replace(attention, k=parts[0], v=parts[1], key_spans=spans)
    left = (id(unpack), id(gather), id(stack))
    swaps: dict[int, Item] = {id(split): cut, id(attention): new}
    return [swaps.get(id(item), item) for item in body if id(item) not in left]


def _local(part: Tensor, local: Tensor) -> Tensor:
    return replace(part, shape=(local.shape[0], local.shape[1], part.shape[2]))
