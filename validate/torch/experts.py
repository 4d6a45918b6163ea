"""Experts on PyTorch: tokens are sorted by expert once, and stay so through both products."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch

from costmodels.program import Pointwise
from validate.reference.run import Here
from validate.torch import functions
from validate.torch.expert_layer import ExpertLayer
from validate.torch.fuse import Function
from validate.torch.rank_state import RankState, Step
from validate.torch.steps import fetcher


def step_of(layer: ExpertLayer, state: RankState) -> Step:
    """Make the step of a layer of experts."""
    values, weight_of, out = state.values, state.weights.of, layer.combine.outputs[0].name
    fetch = fetcher(layer.reads, state)
    activate, weigh = _activation(layer.activation, state), _lazily_compiled("weigh", _weigh, state)
    first = layer.up.weight.place(state.setting.index)[0] * layer.up.weight.local_experts

    def step(position: Here) -> None:
        x, route, gates = fetch(position)
        up, down = (
            _matrices(weight_of(op.weight, position.layer)) for op in (layer.up, layer.down)
        )
        order, ends = sorted_rows(route, first, len(up))
        sources = order // route.shape[-1]
        (active,) = activate(
            grouped_product(x.flatten(0, -2).index_select(0, sources), up, ends)[None]
        )
        expert_outputs = grouped_product(active[0], down, ends)
        places = torch.empty_like(order).index_copy_(0, order, _range_like(order))
        (sums,) = weigh(expert_outputs, places, gates.flatten(0, -2), ends[-1:])
        values[out] = torch.unflatten(sums, 0, x.shape[:2])

    return step


def sorted_rows(route: torch.Tensor, first: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort the choices of all rows by expert; those of experts elsewhere come last.

    route : ``[batch, rows, active]``, numbers of experts, of which `experts` from `first` are here

    Returns the places of the choices in that order, and where each expert's end.
    """
    local_expert = route.flatten() - first
    local_expert = torch.where(local_expert < 0, experts, local_expert)
    sorted_experts, order = torch.sort(local_expert, stable=True)
    numbers = torch.arange(experts, device=route.device, dtype=sorted_experts.dtype)
    return order, torch.searchsorted(sorted_experts, numbers, right=True)


def grouped_product(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply groups of rows, which end at `ends`, each by its own weight ``[experts, n, k]``.

    Rows behind the last group are of nobody, and what stands there is undefined.
    """
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        return torch._grouped_mm(  # noqa: SLF001  # public under changing names
            rows, weight.transpose(-2, -1), offs=ends.to(torch.int32)
        )
    out = rows.new_empty((len(rows), weight.shape[1]))
    start = 0
    for expert, end in enumerate(ends.tolist()):
        torch.mm(rows[start:end], weight[expert].T, out=out[start:end])
        start = end
    return out


def _weigh(
    expert_outputs: torch.Tensor, places: torch.Tensor, gates: torch.Tensor, end: torch.Tensor
) -> tuple[torch.Tensor]:
    """Add up what the experts of each row gave, weighed; of experts elsewhere nothing."""
    elsewhere = (places >= end).unflatten(0, gates.shape)[..., None]
    row_outputs = expert_outputs.index_select(0, places).unflatten(0, gates.shape)
    return (row_outputs.mul_(gates[..., None]).masked_fill_(elsewhere, 0.0).sum(dim=1),)


def _range_like(like: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(like), device=like.device, dtype=like.dtype)


def _matrices(weight: torch.Tensor) -> torch.Tensor:
    """View the weight of a single expert as one of several."""
    return weight if weight.ndim == 3 else weight[None]


def _activation(op: Pointwise, state: RankState) -> Function:
    """Look up the activation of experts, ready to be called."""
    bound = functions.bind(op, replace(state.setting, traced=state.fuser is not None))
    return _lazily_compiled(op, lambda x: bound.run([x]), state)


def _lazily_compiled(key: Hashable, function: Function, state: RankState) -> Function:
    """Compile a function when it is first called, where anything is compiled."""
    fuser = state.fuser
    if fuser is None:
        return function
    compiled: list[Function] = []

    def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        if not compiled:
            compiled.append(fuser.compiled(key, function, inputs))
        return compiled[0](*inputs)

    return run
