"""Matrix products, attention and memory traffic on one GPU."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from topology.base import GIB, MIB
from validate.bench.cases import Measurement
from validate.bench.timing import PreparedWork

COLD_BYTES: Final = 200 * MIB
"""Bytes that buffers of all sets together have at least: a few times the largest cache."""
MOST_SETS: Final = 64
MAX_SET_BYTES: Final = 16 * GIB

Call = Callable[..., object]
_aten = torch.ops.aten


def sets_of(bytes_each: float) -> int:
    """Count the sets of buffers that no cache keeps, but that fit.

    >>> sets_of(100 * MIB), sets_of(1), sets_of(GIB)
    (3, 64, 2)
    """
    cold_sets = max(2, int(COLD_BYTES // max(bytes_each, 1)) + 1)
    return max(1, min(MOST_SETS, cold_sets, int(MAX_SET_BYTES // max(bytes_each, 1))))


def numbers(*shape: int, device: torch.device) -> Tensor:
    """Random numbers in 16 bits: zeros would draw less power."""
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def prepare(call: Call, sets: int, make: Callable[[], Sequence[Tensor]]) -> PreparedWork:
    """Prepare a call on each of so many sets of tensors in turn."""
    tensors = [make() for _ in range(sets)]
    return PreparedWork(work=lambda index: call(*tensors[index % sets]), sets=sets)


def matmul(case: Measurement, device: torch.device) -> PreparedWork:
    """``[m, k] x [n, k]^T``, as a linear layer multiplies."""
    m, n, k = (case.number(name) for name in ("m", "n", "k"))
    if case.text("precision") == "fp8":
        return _eight_bit(m, n, k, device)

    def make() -> list[Tensor]:
        out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        return [numbers(m, k, device=device), numbers(n, k, device=device), out]

    sets = sets_of(2 * (m * k + n * k + m * n))
    return prepare(lambda left, right, out: torch.mm(left, right.t(), out=out), sets, make)


def _eight_bit(m: int, n: int, k: int, device: torch.device) -> PreparedWork:
    scale = torch.ones((), device=device)

    def make() -> list[Tensor]:
        return [numbers(rows, k, device=device).to(torch.float8_e4m3fn) for rows in (m, n)]

    def multiply(left: Tensor, right: Tensor) -> object:
        return torch._scaled_mm(  # noqa: SLF001  # there is no public one
            left, right.t(), scale, scale, out_dtype=torch.bfloat16
        )

    return prepare(multiply, sets_of(m * k + n * k + 2 * m * n), make)


def attention(case: Measurement, device: torch.device) -> PreparedWork:
    """Fused attention on ``[batch, rows, heads, size]`` tensors, seen as heads first."""
    batch, size = case.number("batch"), case.number("head_dim")
    queries, keys = case.number("queries"), case.number("keys")
    heads, kv_heads = case.number("heads"), case.number("kv_heads")
    bytes_each = 2 * batch * size * (2 * queries * heads + 2 * keys * kv_heads)
    sets = min(8, sets_of(bytes_each))

    def make() -> list[Tensor]:
        shapes = ((queries, heads), (keys, kv_heads), (keys, kv_heads))
        return [
            numbers(batch, rows, count, size, device=device).transpose(1, 2)
            for rows, count in shapes
        ]

    causal, grouped_heads = bool(case.number("causal")), kv_heads < heads
    return prepare(attender(case.text("kernel"), causal=causal, few=grouped_heads), sets, make)


def attender(kernel: str, *, causal: bool, few: bool) -> Call:
    """Return the call of `kernel`; `few` where keys have fewer heads than queries."""
    default = partial(functional.scaled_dot_product_attention, is_causal=causal, enable_gqa=few)
    match kernel:
        case "flash":
            return _with_backend(SDPBackend.FLASH_ATTENTION, default)
        case "cudnn_lse":
            return partial(_cudnn, causal=causal)
        case "flash_lse":
            return partial(_flash, causal=causal)
        case _:
            return default


def _cudnn(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> object:
    """Call cuDNN's attention with its log-sum-exp, as a ring needs it, to be timed."""
    with_lse = True
    return _aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
        q, k, v, None, with_lse, 0.0, causal
    )


def _flash(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> object:
    return _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)  # noqa: SLF001


def _with_backend(backend: SDPBackend, attend: Call) -> Call:
    def call(q: Tensor, k: Tensor, v: Tensor) -> object:
        with sdpa_kernel(backend):
            return attend(q, k, v)

    return call


def sdpa_backend(case: Measurement, device: torch.device) -> str:
    """Name the implementation that PyTorch takes for a case: ``cudnn``, ``fa2`` ..."""
    kernel = case.text("kernel")
    if kernel != "default":
        return "cudnn" if kernel.startswith("cudnn") else "fa2"
    batch, size, heads = case.number("batch"), case.number("head_dim"), case.number("heads")
    shapes = (
        ("queries", heads),
        ("keys", case.number("kv_heads")),
        ("keys", case.number("kv_heads")),
    )
    q, k, v = (
        torch.empty(
            batch, case.number(name), count, size, device=device, dtype=torch.bfloat16
        ).transpose(1, 2)
        for name, count in shapes
    )
    backend = torch._fused_sdp_choice(  # noqa: SLF001  # there is no public one
        q, k, v, is_causal=bool(case.number("causal")), enable_gqa=case.number("kv_heads") < heads
    )
    names = {0: "math", 1: "fa2", 2: "efficient", 3: "cudnn"}
    return names.get(int(backend), f"backend {backend}")


def pointwise(case: Measurement, device: torch.device) -> PreparedWork:
    """Plain memory traffic of `bytes` in all: ``copy``, ``add``, ``fill`` or ``sum``."""
    how, total_bytes = case.text("how"), case.number("bytes")
    streams = {"copy": 2, "add": 3, "fill": 1, "sum": 1}[how]
    elements = max(1, total_bytes // streams // 2)
    calls: Mapping[str, Call] = {
        "copy": lambda a, b: b.copy_(a),
        "add": lambda a, b, c: torch.add(a, b, out=c),
        "fill": lambda a: a.fill_(1.0),
        "sum": lambda a: a.sum(),
    }
    return prepare(
        calls[how],
        sets_of(total_bytes),
        lambda: [numbers(elements, device=device) for _ in range(streams)],
    )


PREPARE: Final[Mapping[str, Callable[[Measurement, torch.device], PreparedWork]]] = {
    "matmul": matmul,
    "attention": attention,
    "pointwise": pointwise,
}
