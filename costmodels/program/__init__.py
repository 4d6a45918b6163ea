"""The program of one rank: operations over tensors, in loops, and how they are emitted.

* tensors   tensors, the rows and features of one rank, weights
* ops       the operations; loops, programs and what walks over them
* emit      generators that yield operations as the mathematics reads
* rows      where rows stand in their streams and after an exchange
"""

from costmodels.program.ops import (
    Attention,
    CausalConvolution,
    Collective,
    Communication,
    Convolve,
    Depthwise,
    ExpertTokens,
    Function,
    HeadProduct,
    LinearAttention,
    Loop,
    Matmul,
    Op,
    Pointwise,
    Program,
    Rearrange,
    Recurrence,
    SendReceive,
    turns,
)
from costmodels.program.tensors import Part, Span, Tensor, Weight
from costmodels.sizes import Real, Size, ceil_div

__all__ = [
    "Attention", "CausalConvolution", "Collective", "Communication", "Convolve", "Depthwise",
    "ExpertTokens", "Function", "HeadProduct", "LinearAttention", "Loop", "Matmul", "Op", "Part",
    "Pointwise", "Program", "Real", "Rearrange", "Recurrence", "SendReceive", "Size", "Span",
    "Tensor", "Weight", "ceil_div", "turns",
]  # fmt: skip
