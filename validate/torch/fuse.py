"""Neighbouring operations as single compiled functions, each compiled once for a shape."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field, replace
from typing import cast

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from topology.base.values import dataclass

Function = Callable[..., Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuser:
    """A compiler with a memory, and a budget of seconds a case.

    backend : of `torch.compile`. made : by what was compiled and the shapes and strides given.
    spent : seconds each took, in this case. failures : what then runs as it is.
    products : matrix products are compiled with the element-wise work around them. The host then
        starts a few functions a layer; kernels, and what they take, stay the same.
    """

    backend: str = "inductor"
    products: bool = False
    budget_s: float = 120.0
    made: dict[Hashable, Function] = field(default_factory=dict)
    spent: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def taking(self, *, products: bool) -> "Fuser":
        """Return the same compiler, with its memory, for products too or for element-wise work."""
        return replace(self, products=products)

    def begin(self) -> None:
        """Forget what an earlier case took, and what failed there."""
        self.spent.clear()
        self.failures.clear()

    def compiled(
        self, key: Hashable, function: Function, examples: Sequence[torch.Tensor]
    ) -> Function:
        """Compile `function` for tensors like `examples`, or give back what was compiled before."""
        cache_key = (key, tuple((tuple(x.shape), x.stride(), x.dtype) for x in examples))
        if cache_key not in self.made:
            self.made[cache_key] = self._compile(function, examples)
        return self.made[cache_key]

    def _compile(self, function: Function, examples: Sequence[torch.Tensor]) -> Function:
        if sum(self.spent) > self.budget_s:
            self.failures.append(f"over the budget of {self.budget_s:.0f} s for compilation")
            return function
        start = time.perf_counter()
        try:
            compiled = self._compile_graph(function, examples)
            compiled(*examples)
        except Exception as error:  # noqa: BLE001  # a compiler may fail in any way
            self.failures.append(" ".join(f"{type(error).__name__}: {error}".split())[:200])
            compiled = function
        self.spent.append(time.perf_counter() - start)
        return compiled

    def _compile_graph(self, function: Function, examples: Sequence[torch.Tensor]) -> Function:
        """Call inductor itself: guards of `torch.compile` take 60 us a call, and shapes stay."""
        graph = make_fx(function, tracing_mode="fake")(*examples)
        if self.backend == "inductor":
            from torch._inductor import compile as inductor  # noqa: PLC0415  # slow to load

            return cast(Function, inductor(graph, list(examples)))
        return cast(
            Function, torch.compile(graph, backend=self.backend, fullgraph=True, dynamic=False)
        )
