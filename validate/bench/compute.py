"""Matrix products, attention and memory traffic on one GPU."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from topology.base import GIB, MIB
from validate.bench.cases import Case
from validate.bench.timing import Prepared

COLD: Final = 200 * MIB
"""Bytes that buffers of all sets together have at least: a few times the largest cache."""
MOST_SETS: Final = 64
ROOM: Final = 16 * GIB

_aten = torch.ops.aten


def sets_of(bytes_each: float) -> int:
    """Count the sets of buffers that no cache keeps, but that fit.

    >>> sets_of(100 * MIB), sets_of(1), sets_of(GIB)
    (3, 64, 2)
    """
    wanted = max(2, int(COLD // max(bytes_each, 1)) + 1)
    return max(1, min(MOST_SETS, wanted, int(ROOM // max(bytes_each, 1))))


def numbers(*shape: int, device: torch.device) -> Tensor:
    """Random numbers in 16 bits: zeros would draw less power."""
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def matmul(case: Case, device: torch.device) -> Prepared:
    """``[m, k] x [n, k]^T``, as a linear layer multiplies."""
    m, n, k = (case.number(name) for name in ("m", "n", "k"))
    if case.text("precision") == "fp8":
        return _eight_bit(m, n, k, device)
    sets = sets_of(2 * (m * k + n * k + m * n))
    left = [numbers(m, k, device=device) for _ in range(sets)]
    right = [numbers(n, k, device=device) for _ in range(sets)]
    out = [torch.empty(m, n, device=device, dtype=torch.bfloat16) for _ in range(sets)]

    def work(index: int) -> object:
        i = index % sets
        return torch.mm(left[i], right[i].t(), out=out[i])

    return Prepared(work=work, sets=sets)


def _eight_bit(m: int, n: int, k: int, device: torch.device) -> Prepared:
    sets = sets_of(m * k + n * k + 2 * m * n)
    left = [numbers(m, k, device=device).to(torch.float8_e4m3fn) for _ in range(sets)]
    right = [numbers(n, k, device=device).to(torch.float8_e4m3fn) for _ in range(sets)]
    scale = torch.ones((), device=device)

    def work(index: int) -> object:
        i = index % sets
        return torch._scaled_mm(  # noqa: SLF001  # there is no public one
            left[i], right[i].t(), scale, scale, out_dtype=torch.bfloat16
        )

    return Prepared(work=work, sets=sets)


Attend = Callable[[Tensor, Tensor, Tensor], object]


def attention(case: Case, device: torch.device) -> Prepared:
    """Fused attention on ``[batch, rows, heads, size]`` tensors, seen as heads first."""
    batch, size = case.number("batch"), case.number("head_dim")
    queries, keys = case.number("queries"), case.number("keys")
    heads, kv_heads = case.number("heads"), case.number("kv_heads")
    bytes_each = 2 * batch * size * (2 * queries * heads + 2 * keys * kv_heads)
    sets = min(8, sets_of(bytes_each))

    def tensor(rows: int, count: int) -> Tensor:
        return numbers(batch, rows, count, size, device=device).transpose(1, 2)

    q = [tensor(queries, heads) for _ in range(sets)]
    k = [tensor(keys, kv_heads) for _ in range(sets)]
    v = [tensor(keys, kv_heads) for _ in range(sets)]
    attend = attender(case.text("kernel"), causal=bool(case.number("causal")), few=kv_heads < heads)

    def work(index: int) -> object:
        i = index % sets
        return attend(q[i], k[i], v[i])

    return Prepared(work=work, sets=sets)


def attender(kernel: str, *, causal: bool, few: bool) -> Attend:
    """Return the call of `kernel`; `few` where keys have fewer heads than queries."""
    default = partial(functional.scaled_dot_product_attention, is_causal=causal, enable_gqa=few)
    match kernel:
        case "flash":
            return _with(SDPBackend.FLASH_ATTENTION, default)
        case "cudnn_lse":
            return partial(_cudnn, causal=causal)
        case "flash_lse":
            return partial(_flash, causal=causal)
        case _:
            return default


def _cudnn(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> object:
    """Attention with its log-sum-exp, as a ring needs it."""
    wanted = True
    return _aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
        q, k, v, None, wanted, 0.0, causal
    )


def _flash(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> object:
    return _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)  # noqa: SLF001


def _with(backend: SDPBackend, attend: Attend) -> Attend:
    def call(q: Tensor, k: Tensor, v: Tensor) -> object:
        with sdpa_kernel(backend):
            return attend(q, k, v)

    return call


def chosen(case: Case, device: torch.device) -> str:
    """Name the implementation that PyTorch takes for a case: ``cudnn``, ``fa2`` ..."""
    kernel = case.text("kernel")
    if kernel != "default":
        return "cudnn" if kernel.startswith("cudnn") else "fa2"
    batch, size, heads = case.number("batch"), case.number("head_dim"), case.number("heads")
    rows = ("queries", heads), ("keys", case.number("kv_heads")), ("keys", case.number("kv_heads"))
    q, k, v = (
        torch.empty(
            batch, case.number(name), count, size, device=device, dtype=torch.bfloat16
        ).transpose(1, 2)
        for name, count in rows
    )
    backend = torch._fused_sdp_choice(  # noqa: SLF001  # there is no public one
        q, k, v, is_causal=bool(case.number("causal")), enable_gqa=case.number("kv_heads") < heads
    )
    names = {0: "math", 1: "fa2", 2: "efficient", 3: "cudnn"}
    return names.get(int(backend), f"backend {backend}")


def pointwise(case: Case, device: torch.device) -> Prepared:
    """Plain memory traffic of `bytes` in all: ``copy``, ``add``, ``fill`` or ``sum``."""
    how, moved = case.text("how"), case.number("bytes")
    streams = {"copy": 2, "add": 3, "fill": 1, "sum": 1}[how]
    each = max(1, moved // streams // 2)
    sets = sets_of(moved)
    tensors = [[numbers(each, device=device) for _ in range(streams)] for _ in range(sets)]
    calls: Mapping[str, Callable[..., object]] = {
        "copy": lambda a, b: b.copy_(a),
        "add": lambda a, b, c: torch.add(a, b, out=c),
        "fill": lambda a: a.fill_(1.0),
        "sum": lambda a: a.sum(),
    }
    call = calls[how]

    def work(index: int) -> object:
        return call(*tensors[index % sets])

    return Prepared(work=work, sets=sets)


PREPARE: Final[Mapping[str, Callable[[Case, torch.device], Prepared]]] = {
    "matmul": matmul,
    "attention": attention,
    "pointwise": pointwise,
}
