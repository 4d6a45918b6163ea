"""Numbers as TensorRT stores them: 16-bit and 8-bit floats, 4-bit floats with scales."""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bits = NDArray[np.generic]

BLOCK: Final = 16
PIECE: Final = 2**20
"""Numbers that are rounded together, so that large weights take little memory beside their own."""
FP8_TOP: Final = 448.0
FP4_TOP: Final = 6.0
INT8_TOP: Final = 127.0
FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def bits(values: Floats, dtype: str) -> Bits:
    """Round to a type, and give the bits that stand for it.

    >>> [hex(int(bits(np.float32([1.0]), "bf16")[0])), hex(int(bits(np.float32([1.0]), "fp8")[0]))]
    ['0x3f80', '0x38']
    """
    if dtype in ("bf16", "fp8"):
        return _bf16(values) if dtype == "bf16" else _fp8(values)
    if dtype == "int8":
        return np.clip(np.rint(values), -INT8_TOP, INT8_TOP).astype(np.int8)
    return np.ascontiguousarray(values, storage(dtype))


def floats(stored: Bits, dtype: str) -> Floats:
    """Give the numbers that bits stand for."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype == "fp8":
        return fp8_values()[stored.astype(np.int64)]
    return stored.astype(np.float32)


def storage(dtype: str) -> "np.dtype[np.generic]":
    """Numpy's type of the same size."""
    names = {"bf16": "uint16", "fp16": "float16", "fp8": "uint8", "int8": "int8"}
    names |= {"int32": "int32", "bool": "bool"}
    return np.dtype(names.get(dtype, "float32"))


def _bf16(values: Floats) -> Bits:
    contiguous = np.ascontiguousarray(values, np.float32)
    flat, out = contiguous.reshape(-1).view(np.uint32), np.empty(contiguous.size, np.uint16)
    for start in range(0, flat.size, PIECE):
        raw = flat[start : start + PIECE]
        out[start : start + PIECE] = (raw + 0x7FFF + (raw >> 16 & 1)) >> 16
    return out.reshape(contiguous.shape)


@cache
def fp8_values() -> Floats:
    """All 256 numbers of FP8 (E4M3); the two that are none are zero."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = (1 + fraction / 8) * 2.0 ** (exponent - 7)
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, normal)
    value[code & 127 == 127] = 0
    return np.asarray(np.where(code > 127, -value, value), np.float32)


def _fp8(values: Floats) -> Bits:
    table = fp8_values()[:127]
    clipped = np.minimum(np.abs(values), FP8_TOP)
    code = np.searchsorted((table[1:] + table[:-1]) / 2, clipped, side="right")
    return (code + np.where(values < 0, 128, 0)).astype(np.uint8)


def fp4_codes(values: Floats) -> NDArray[np.uint8]:
    """Nearest FP4 (E2M1) number of each value, as a code of 4 bits."""
    table = np.array(FP4, np.float32)
    code = np.searchsorted((table[1:] + table[:-1]) / 2, np.minimum(np.abs(values), FP4_TOP))
    return (code + np.where(values < 0, 8, 0)).astype(np.uint8)


def fp4_values(codes: NDArray[np.uint8]) -> Floats:
    """Numbers that FP4 codes stand for."""
    return np.array([*FP4, *(-value for value in FP4)], np.float32)[codes]


def packed(codes: NDArray[np.uint8]) -> Bits:
    """Put two neighbours into one byte, the first in its lower half."""
    pairs = codes.reshape(*codes.shape[:-1], -1, 2)
    return np.ascontiguousarray(pairs[..., 0] | pairs[..., 1] << 4)


def encoded(weight: Floats, encoding: str, dtype: str) -> dict[str, Bits]:
    """Turn a weight ``[experts, rows, columns]`` into its parts: values, and scales if it has any.

    Returns ``values``; with FP8 and INT8 ``scale``, one number; with NVFP4 ``values`` as
    ``[experts, columns, rows / 2]``, ``scales`` a block, and ``scale`` of the scales.
    """
    if encoding == "plain":
        return {"values": bits(weight, dtype)}
    top = max(float(np.abs(weight).max(initial=0)), 2.0**-100)
    if encoding != "nvfp4":
        scale = top / (FP8_TOP if encoding == "fp8" else INT8_TOP)
        return {
            "values": bits(weight / np.float32(scale), encoding),
            "scale": np.asarray(scale, np.float32),
        }
    by_column = weight.transpose(0, 2, 1)
    blocks = by_column.reshape(*by_column.shape[:2], -1, BLOCK)
    outer_scale = np.float32(top / (FP8_TOP * FP4_TOP))
    scales = _fp8(np.abs(blocks).max(axis=-1) / FP4_TOP / outer_scale)
    block_scales = np.maximum(floats(scales, "fp8") * outer_scale, np.float32(2.0**-100))
    codes = fp4_codes(blocks / block_scales[..., None]).reshape(by_column.shape)
    return {"values": packed(codes), "scales": scales, "scale": np.asarray(outer_scale, np.float32)}
