"""Single layers, each with the shape that it makes."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from planner.tensorrt.sheet import Draft, Dtype, Value


def cast(draft: Draft, x: Value, dtype: Dtype, hint: str) -> Value:
    """Convert; nothing where the type is right."""
    return x if x.dtype == dtype else draft.add("cast", (x,), x.shape, dtype, hint)


def wide(draft: Draft, x: Value) -> Value:
    """Convert to 32 bits, in which sums and functions are computed."""
    return cast(draft, x, "fp32", f"{x.name}.wide")


def elementwise(draft: Draft, operation: str, left: Value, right: Value, hint: str) -> Value:
    """Combine two values of one type, broadcast; comparisons give truth values."""
    shape = np.broadcast_shapes(left.shape, right.shape)
    dtype: Dtype = "bool" if operation in ("GREATER", "LESS", "EQUAL") else left.dtype
    return draft.add("elementwise", (left, right), shape, dtype, hint, operation=operation)


def scalar(draft: Draft, number: float, like: Value, hint: str) -> Value:
    """Make a number of the rank and type of `like`."""
    shape = (1,) * len(like.shape)
    if like.dtype == "int32":
        return draft.constant(np.full(shape, number, np.int32), hint)
    return cast(draft, draft.constant(np.full(shape, number, np.float32), hint), like.dtype, hint)


def scaled(draft: Draft, x: Value, factor: float, hint: str) -> Value:
    """Multiply by a number."""
    return elementwise(draft, "PROD", x, scalar(draft, factor, x, f"{hint}.factor"), hint)


def unary(draft: Draft, operation: str, x: Value, hint: str) -> Value:
    """Apply a function of one argument."""
    return draft.add("unary", (x,), x.shape, x.dtype, hint, operation=operation)


def activation(draft: Draft, operation: str, x: Value, hint: str) -> Value:
    """Apply an activation."""
    return draft.add("activation", (x,), x.shape, x.dtype, hint, operation=operation)


def reduce(draft: Draft, operation: str, x: Value, axis: int, hint: str) -> Value:
    """Reduce one axis to length one."""
    shape = tuple(1 if place == axis % len(x.shape) else size for place, size in enumerate(x.shape))
    return draft.add(
        "reduce", (x,), shape, x.dtype, hint, operation=operation, axis=axis % len(x.shape)
    )


def shuffle(
    draft: Draft,
    x: Value,
    shape: Sequence[int],
    hint: str,
    first: Sequence[int] = (),
    second: Sequence[int] = (),
) -> Value:
    """Transpose by `first`, reshape to `shape`, transpose by `second`; nothing for no change."""
    assert prod(shape) == prod(x.shape), f"{hint}: {x.shape} to {tuple(shape)}"
    made = tuple(shape[axis] for axis in second) if second else tuple(shape)
    if not first and not second and made == x.shape:
        return x
    return draft.add(
        "shuffle",
        (x,),
        made,
        x.dtype,
        hint,
        first=list(first),
        to=[int(size) for size in shape],
        second=list(second),
    )


def take(draft: Draft, x: Value, start: int, count: int, axis: int, hint: str) -> Value:
    """Cut `count` neighbours out of an axis; nothing where that is all of it."""
    axis %= len(x.shape)
    if start == 0 and count == x.shape[axis]:
        return x
    starts = [start if place == axis else 0 for place in range(len(x.shape))]
    sizes = [count if place == axis else size for place, size in enumerate(x.shape)]
    return draft.add("slice", (x,), sizes, x.dtype, hint, start=starts)


def concat(draft: Draft, parts: Sequence[Value], axis: int, hint: str) -> Value:
    """Lay values end to end; one is left as it is."""
    if len(parts) == 1:
        return parts[0]
    axis %= len(parts[0].shape)
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return draft.add("concat", parts, shape, parts[0].dtype, hint, axis=axis)


def gather(draft: Draft, x: Value, places: Value, axis: int, hint: str) -> Value:
    """Pick by index along an axis; the indices' shape stands in its place."""
    axis %= len(x.shape)
    shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
    return draft.add("gather", (x, places), shape, x.dtype, hint, axis=axis)


def matmul(
    draft: Draft,
    left: Value,
    right: Value,
    hint: str,
    *,
    transpose: bool = False,
    learned: Sequence[Mapping[str, object]] = (),
) -> Value:
    """Multiply the last two axes; `transpose` the right one's. `learned` may follow."""
    columns = right.shape[-2] if transpose else right.shape[-1]
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return draft.add(
        "matmul",
        (left, right),
        (*lead, left.shape[-2], columns),
        left.dtype,
        hint,
        transpose=transpose,
        **({"learned": list(learned)} if learned else {}),
    )
