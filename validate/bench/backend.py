"""Element-wise functions as the validator's own backend runs them, one kernel after another."""

import torch

from costmodels.program import Function, Pointwise, Span, Tensor
from validate.bench.cases import Case
from validate.bench.compute import numbers, sets_of
from validate.bench.functions import HEAD
from validate.bench.timing import Prepared

VECTORS = 6  # of a conditioning row


def backend_function(case: Case, device: torch.device) -> tuple[Prepared, float]:
    """Prepare a function on `rows` rows of `width`; also the bytes that it moves at least."""
    from validate.torch.functions import bind  # noqa: PLC0415  # large
    from validate.torch.setting import Setting  # noqa: PLC0415

    op = operation_of(case.text("name"), case.number("rows"), case.number("width"))
    setting = Setting(device=device, dtype=torch.bfloat16, index={})
    bound = bind(op, setting)
    sets = sets_of(float(op.traffic))

    def made() -> list[torch.Tensor]:
        return [
            numbers(*map(int, tensor.shape), device=device).to(setting.dtype_of(tensor))
            for tensor in op.inputs
        ]

    inputs = [[*made(), *bound.tables] for _ in range(sets)]
    return (
        Prepared(work=lambda index: bound.run(inputs[index % sets]), sets=sets),
        float(op.traffic),
    )


def operation_of(name: str, rows: int, width: int) -> Pointwise:
    """Write a function as an operation of a program.

    >>> operation_of("residual", 10, 4).traffic
    240.0
    """
    heads = max(1, width // HEAD)
    x, wide = _rows("x", rows, width), _rows("x", rows, 4 * width)
    row = Tensor("row", (1, 1, VECTORS * width))
    sums = Tensor("sum", (1, rows, heads), 4)
    three = _rows("x", rows, 3 * width)
    inputs: dict[str, tuple[Tensor, ...]] = {
        "modulated_norm": (x, row),
        "gated_residual": (x, x, row),
        "residual": (x, x),
        "rotary": (three,),
        "gelu": (wide,),
        "silu_gated": (_rows("x", rows, 8 * width),),
        "merge": (x, sums, x, sums),
        "guidance": (Tensor("x", (2, 1, rows, width)),),
        "step": (x, x),
    }
    outputs: dict[str, tuple[Tensor, ...]] = {
        "rotary": (three,),
        "gelu": (wide,),
        "silu_gated": (wide,),
        "merge": (x, sums),
    }
    function: Function = name  # type: ignore[assignment]  # one of the benchmark's own list
    return Pointwise(
        function=function,
        inputs=inputs.get(name, (x,)),
        outputs=outputs.get(name, (x,)),
        spans=(Span("rows", rows),),
        heads=(heads, heads),
        size=HEAD,
    )


def _rows(name: str, rows: int, width: int) -> Tensor:
    return Tensor(name, (1, rows, width))
