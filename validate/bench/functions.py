"""Element-wise functions: as eager code writes them, compiled, and as the backend here runs them.

Each moves a known least number of bytes: inputs read once, outputs written once. What eager code
moves and launches beyond that is what a runtime's table of functions says.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from costmodels import program
from topology.base.values import dataclass
from validate.bench.cases import Measurement
from validate.bench.compute import numbers, prepare, sets_of
from validate.bench.timing import PreparedWork

HEAD: Final = 128
ROOT: Final = 1e-3  # keeps a norm of nothing finite
VECTORS: Final = 6  # of a conditioning row


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of tensors whose widths are `inputs` and `outputs`, in units of the row's width.

    single : how many of the last inputs are one row of conditioning; the others have all rows.
    """

    call: Callable[..., object]
    inputs: tuple[float, ...]
    outputs: float = 1
    single: int = 0

    def shapes(self, rows: int, width: int) -> list[tuple[int, int]]:
        """Rows and columns of each input."""
        return [(count, round(share * width)) for count, share in self._row_shares(rows)]

    def _row_shares(self, rows: int) -> list[tuple[int, float]]:
        counts = [rows] * (len(self.inputs) - self.single) + [1] * self.single
        return list(zip(counts, self.inputs, strict=True))

    def traffic(self, rows: int, width: int) -> float:
        """Bytes read and written once, 2 bytes an element.

        >>> Function(call=max, inputs=(1, 1), single=1).traffic(10, 4)
        168.0
        """
        read = sum(share * count for count, share in self._row_shares(rows))
        return 2.0 * width * (read + self.outputs * rows)


def norm(x: Tensor) -> Tensor:
    """Root-mean-square norm in 32 bits."""
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().mean(-1, keepdim=True) + ROOT)).to(x.dtype)


def modulated_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer norm, scaled and shifted by a conditioning row."""
    return functional.layer_norm(x, (x.shape[-1],)) * (1 + scale) + shift


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """``x + gate y``."""
    return x + gate * y


def residual(x: Tensor, y: Tensor) -> Tensor:
    """``x + y``."""
    return x + y


def gelu(x: Tensor) -> Tensor:
    """Gaussian error unit, by the hyperbolic tangent."""
    return functional.gelu(x, approximate="tanh")


def rotary(qkv: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, ...]:
    """Norm of every head of q and k, and rotation by position in 32 bits; v as it is."""
    q, k, v = (part.unflatten(-1, (-1, HEAD)) for part in qkv.chunk(3, -1))
    return _turn(norm(q), cosine, sine), _turn(norm(k), cosine, sine), v


def _turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-imaginary, real], -1).flatten(-2)
    cosine, sine = (row.unflatten(-1, (-1, HEAD))[:, :1] for row in (cosine, sine))
    return (x.float() * cosine.float() + turned.float() * sine.float()).to(x.dtype)


def silu_gated(x: Tensor) -> Tensor:
    """``silu(first half) * second half``."""
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def merge(a: Tensor, weight_a: Tensor, b: Tensor, weight_b: Tensor) -> Tensor:
    """Merge two attention parts by their log-sum-exp, one a head."""
    share = torch.sigmoid(weight_b.float() - weight_a.float())[..., None]
    values_a, values_b = (part.unflatten(-1, (-1, HEAD)) for part in (a, b))
    return (
        (values_a.float() + share * (values_b.float() - values_a.float())).to(a.dtype).flatten(-2)
    )


def guidance(both: Tensor) -> Tensor:
    """Mix the forward with a prompt and the one without."""
    conditional, unconditional = both.chunk(2, -1)
    return unconditional + 5.0 * (conditional - unconditional)


def step(x: Tensor, velocity: Tensor) -> Tensor:
    """One Euler step of a flow, in 32 bits."""
    return (x.float() + 0.02 * velocity.float()).to(x.dtype)


def cast(x: Tensor) -> Tensor:
    """Copy rows into place."""
    return x.clone()


FUNCTIONS: Final[Mapping[str, Function]] = {
    "norm": Function(call=norm, inputs=(1,)),
    "modulated_norm": Function(call=modulated_norm, inputs=(1, 1, 1), single=2),
    "gated_residual": Function(call=gated_residual, inputs=(1, 1, 1), single=1),
    "residual": Function(call=residual, inputs=(1, 1)),
    "rotary": Function(call=rotary, inputs=(3, 1, 1), outputs=3, single=2),
    "gelu": Function(call=gelu, inputs=(4,), outputs=4),
    "silu_gated": Function(call=silu_gated, inputs=(8,), outputs=4),
    "merge": Function(call=merge, inputs=(1, 1 / HEAD, 1, 1 / HEAD), outputs=1 + 1 / HEAD),
    "guidance": Function(call=guidance, inputs=(2,)),
    "step": Function(call=step, inputs=(1, 1)),
    "cast": Function(call=cast, inputs=(1,)),
}


def function(case: Measurement, device: torch.device) -> PreparedWork:
    """Prepare a function on `rows` rows of `width`, eager or compiled."""
    name, rows, width = case.text("name"), case.number("rows"), case.number("width")
    spec = FUNCTIONS[name]
    call = torch.compile(spec.call, dynamic=False) if case.text("way") == "compiled" else spec.call
    sets = sets_of(spec.traffic(rows, width))
    shapes = spec.shapes(rows, width)
    return prepare(call, sets, lambda: [numbers(*shape, device=device) for shape in shapes])


def backend_function(case: Measurement, device: torch.device) -> tuple[PreparedWork, float]:
    """Prepare the backend's function on `rows` rows of `width`, and the least bytes that it moves.

    It runs one kernel after another.
    """
    from validate.torch.functions import bind  # noqa: PLC0415  # large
    from validate.torch.setting import Setting  # noqa: PLC0415

    op = operation_of(case.text("name"), case.number("rows"), case.number("width"))
    setting = Setting(device=device, dtype=torch.bfloat16, index={})
    bound = bind(op, setting)

    def make() -> list[Tensor]:
        inputs = [
            numbers(*map(int, tensor.shape), device=device).to(setting.dtype_of(tensor))
            for tensor in op.inputs
        ]
        return [*inputs, *bound.tables]

    traffic = float(op.traffic)
    return prepare(lambda *inputs: bound.run(inputs), sets_of(traffic), make), traffic


def operation_of(name: str, rows: int, width: int) -> program.Pointwise:
    """Write a function as an operation of a program.

    >>> operation_of("residual", 10, 4).traffic
    240.0
    """
    heads = max(1, width // HEAD)
    x, wide_rows = _rows("x", rows, width), _rows("x", rows, 4 * width)
    row = program.Tensor("row", (1, 1, VECTORS * width))
    sums = program.Tensor("sum", (1, rows, heads), 4)
    qkv_rows = _rows("x", rows, 3 * width)
    inputs: dict[str, tuple[program.Tensor, ...]] = {
        "modulated_norm": (x, row),
        "gated_residual": (x, x, row),
        "residual": (x, x),
        "rotary": (qkv_rows,),
        "gelu": (wide_rows,),
        "silu_gated": (_rows("x", rows, 8 * width),),
        "merge": (x, sums, x, sums),
        "guidance": (program.Tensor("x", (2, 1, rows, width)),),
        "step": (x, x),
    }
    outputs: dict[str, tuple[program.Tensor, ...]] = {
        "rotary": (qkv_rows,),
        "gelu": (wide_rows,),
        "silu_gated": (wide_rows,),
        "merge": (x, sums),
    }
    function: program.Function = name  # type: ignore[assignment]  # one of the benchmark's own list
    return program.Pointwise(
        function=function,
        inputs=inputs.get(name, (x,)),
        outputs=outputs.get(name, (x,)),
        spans=(program.Span("rows", rows),),
        heads=(heads, heads),
        size=HEAD,
    )


def _rows(name: str, rows: int, width: int) -> program.Tensor:
    return program.Tensor(name, (1, rows, width))
