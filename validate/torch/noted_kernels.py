"""Note every kernel that PyTorch would launch for a piece of code, without running it in numbers.

Attention and fused norms are noted as one kernel, as CUDA has them; products give zeros on a CPU.
"""

import linecache
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, Final

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

VIEWS: Final = re.compile(
    r"view|_unsafe_view|view_as_complex|view_as_real|permute|transpose|t|unsqueeze|squeeze|expand"
    r"|slice|select|split|split_with_sizes|chunk|detach|alias|as_strided|unbind|reshape|unfold"
    r"|_reshape_alias|lift_fresh|narrow|empty|empty_strided|empty_like|new_empty|diagonal"
    r"|unflatten|real|imag|_local_scalar_dense|is_nonzero"
)
"""Operations that launch nothing."""
PRODUCTS: Final = frozenset(("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm"))
ATTENTION: Final = "attention"

Described = tuple[tuple[int, ...], tuple[int, ...], int, str]
Noted = tuple[str, list[Described], list[Described], list[tuple[str, str, str]]]


class _Notes(TorchDispatchMode):  # type: ignore[misc]  # untyped
    """Note what passes by: operation, operands, and the code that asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Noted] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401  # PyTorch's own signature
        del types
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        out = _zero_product(func, args, kwargs) if name in PRODUCTS else func(*args, **kwargs)
        if not VIEWS.fullmatch(name):
            self.add(name, (args, kwargs), out)
        return out

    def add(self, name: str, inputs: object, outputs: object) -> None:
        """Note a kernel with the frames of diffusers and PyTorch's modules, innermost first."""
        self.rows.append((name, _operands_of(inputs), _operands_of(outputs), _frames()))


def noted_kernels(run: Callable[[], object]) -> list[Noted]:
    """Run code and list its kernels."""
    notes = _Notes()
    with _as_on_gpus(notes), notes:
        run()
    return notes.rows


@contextmanager
def _as_on_gpus(notes: _Notes) -> Iterator[None]:
    """Let attention and norms be single kernels, and no type be changed by the device."""
    originals = functional.scaled_dot_product_attention, functional.rms_norm, torch.autocast

    def attention(query: Any, key: Any, value: Any, *extra_args: Any, **options: Any) -> Any:  # noqa: ANN401
        mask = options.get("attn_mask", extra_args[0] if extra_args else None)
        shape = (*query.shape[:-1], value.shape[-1])
        out = torch.empty_strided(shape, query.stride(), dtype=query.dtype, device=query.device)
        notes.add(ATTENTION, [query, key, value, mask], out)
        return out

    def norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:  # noqa: ANN401
        if weight is not None and weight.dtype != x.dtype:
            return originals[1](x, shape, weight, eps)
        out = torch.empty_like(x)
        notes.add("rms_norm", [x, weight], out)
        return out

    functional.scaled_dot_product_attention = attention
    functional.rms_norm = norm
    torch.autocast = lambda *_, **__: nullcontext()
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.rms_norm, torch.autocast = originals


def _zero_product(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401  # an operation of PyTorch
    """Give zeros of the shape of a product."""
    device = next(
        operand.device for operand in tree_flatten(args)[0] if isinstance(operand, torch.Tensor)
    )

    def bare(operand: object) -> object:
        if not isinstance(operand, torch.Tensor):
            return operand
        return torch.empty_strided(
            operand.shape, operand.stride(), dtype=operand.dtype, device="meta"
        )

    out = func(*tree_map(bare, args), **tree_map(bare, kwargs))
    return torch.zeros(out.shape, dtype=out.dtype, device=device)


def _operands_of(values: object) -> list[Described]:
    return [
        (tuple(tensor.shape), tensor.stride(), tensor.dtype.itemsize, str(tensor.dtype))
        for tensor in tree_flatten(values)[0]
        if isinstance(tensor, torch.Tensor)
    ]


def _frames() -> list[tuple[str, str, str]]:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # the code that asks
    rows = []
    while frame is not None:
        name, code = frame.f_code.co_filename, frame.f_code.co_name
        if ("/diffusers/" in name or "/torch/nn/" in name) and "_call_impl" not in code:
            owner = frame.f_locals.get("self")
            line = linecache.getline(name, frame.f_lineno).strip()
            rows.append((type(owner).__name__ if owner is not None else "", code, line))
        frame = frame.f_back
    return rows
