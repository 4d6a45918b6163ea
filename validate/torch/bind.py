"""One operation made ready to run. The only place that knows who runs which operation."""

from costmodels.program.ops import (
    Attention,
    Depthwise,
    LinearAttention,
    Matmul,
    Pointwise,
    Rearrange,
)
from validate.torch import attention, functions, layout, linear, products
from validate.torch.setting import Bound, Setting

Compute = Matmul | Attention | LinearAttention | Depthwise | Pointwise | Rearrange


def bind(op: Compute, setting: Setting) -> Bound:
    """Work out all that is known beforehand."""
    match op:
        case Matmul():
            return products.bind(op, setting)
        case Attention():
            return attention.bind(op, setting)
        case LinearAttention():
            return linear.bind(op, setting)
        case Depthwise():
            return linear.bind_depthwise(op, setting)
        case Pointwise():
            return functions.bind(op, setting)
        case Rearrange():
            return layout.bind(op, setting)
