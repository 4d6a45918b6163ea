"""Number formats of matrix products: bytes of inputs and weights, and what multiplies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

Number = TypeVar("Number", float, "NDArray[Any]")
_SCALES: Final = 4 / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Bytes of an element of the inputs and of the weights, and what multiplies them.

    Scales count: 16 bits for 128 weights of int4, with their zero; 8 for 16 of nvfp4, for 32 of
    mxfp4. multiplied : as which precision; empty for the 16-bit one of the device.
    scale, group : bytes of a scale, and the weights that share one, where a checkpoint may choose.
    """

    inputs: float
    weights: float
    multiplied: str
    scale: float = 0.0
    group: int = 1

    def grouped(self, group: int) -> float:
        """Bytes of a weight where `group` of them share a scale; 0 for the usual number.

        >>> FORMATS["int4"].grouped(128), round(FORMATS["int4"].grouped(32), 3)
        (0.52, 0.567)
        """
        return self.weights + self.scale * (1 / group - 1 / self.group) if group else self.weights


FORMATS: Final = {
    "bf16": Format(inputs=2.0, weights=2.0, multiplied="bf16"),
    "fp16": Format(inputs=2.0, weights=2.0, multiplied="fp16"),
    "fp8": Format(inputs=1.0, weights=1.0, multiplied="fp8"),
    "fp8_block": Format(inputs=1.0, weights=1.0, multiplied="fp8"),
    "int8": Format(inputs=1.0, weights=1.0, multiplied="int8"),
    "nvfp4": Format(inputs=0.5625, weights=0.5625, multiplied="nvfp4"),
    "int4": Format(inputs=2.0, weights=0.52, multiplied="", scale=2.0, group=128),
    "mxfp4": Format(inputs=2.0, weights=0.53125, multiplied=""),
    "mxfp4_mxfp8": Format(inputs=1.03125, weights=0.53125, multiplied="fp8"),
}
"""What products there are. fp8 has a scale a tensor, channel or token, fp8_block one for a block of
128 x 128 weights and 128 inputs of a token; mxfp4_mxfp8 are mxfp4 weights whose inputs are rounded
too, with 8 bits of scale for 32."""
SERVING: Final = ("tensorrt-llm", "vllm", "sglang-llm")
"""Engines whose kernels were measured on their own."""


def token_bytes(hidden: Number, precision: str) -> Number:
    """Bytes of a token of `hidden` features on its way to experts, with its scales.

    One of 32 bits for 128 numbers of fp8, as DeepEP sends them.

    >>> [token_bytes(7168.0, precision) for precision in ("bf16", "fp8", "nvfp4")]
    [14336.0, 7392.0, 4032.0]
    """
    scales = _SCALES if precision in ("fp8", "fp8_block") else 0.0
    return hidden * (FORMATS[precision].inputs + scales)
