"""Weights and inputs on a rank: the reference's own numbers, or numbers drawn on the device.

Weights lie as PyTorch has them, ``[experts,] columns, rows``.
"""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import field
from math import sqrt

import numpy as np
import torch

from costmodels.program import (
    CausalConvolution,
    Depthwise,
    HeadProduct,
    Loop,
    Matmul,
    Recurrence,
    Tensor,
    Weight,
)
from topology.base.values import dataclass
from validate.reference.run import shape_of
from validate.reference.weights import Source, own_features
from validate.torch import layout
from validate.torch.products import quantise
from validate.torch.setting import Setting

WEIGHED_OPS = (Matmul, HeadProduct, Depthwise, CausalConvolution, Recurrence)

Given = Callable[[Tensor, int], torch.Tensor]
"""From an input's description and the number of a forward to its values on this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights that a rank has used, each made when it is first asked for.

    distinct : layers that have weights of their own; later ones use them again where memory is
    short. Zero for all.
    """

    make: Callable[[Weight, int], torch.Tensor]
    distinct: int = 0
    made: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def of(self, weight: Weight, layer: int) -> torch.Tensor:
        """Return one rank's share of a weight of a layer."""
        number = layer if weight.layered else 0
        if self.distinct:
            number %= self.distinct
        key = (weight.name, number)
        if key not in self.made:
            self.made[key] = self.make(weight, number)
        return self.made[key]

    def prepare(self, loops: Iterable[Loop]) -> None:
        """Make everything that loops multiply by."""
        for loop in loops:
            self._prepare(loop, range(1))

    def _prepare(self, loop: Loop, layers: range) -> None:
        if loop.layers:
            layers = range(loop.first, loop.first + int(np.asarray(loop.count)))
        for item in loop.body:
            if isinstance(item, Loop):
                self._prepare(item, layers)
            elif isinstance(item, WEIGHED_OPS):
                for layer in layers:
                    self.of(item.weight, layer)


def from_source(source: Source, setting: Setting) -> Weights:
    """Weights of the reference, number for number."""

    def make(weight: Weight, layer: int) -> torch.Tensor:
        share = np.swapaxes(source.weight(weight, layer, setting.index), -1, -2)
        tensor = setting.table(np.ascontiguousarray(share), setting.dtype)
        return quantise(tensor, weight) if setting.is_quantised(weight) else tensor

    return Weights(make=make)


def drawn(setting: Setting, distinct: int = 0) -> Weights:
    """Weights drawn on the device: every rank draws the whole one and keeps its share.

    So ranks agree, and a split model is the unsplit one, at full size too.
    """

    def make(weight: Weight, layer: int) -> torch.Tensor:
        rows = sum(part.units * part.size for part in weight.rows)
        columns = sum(part.units * part.size for part in weight.columns)
        full = _draw(f"{weight.name}@{layer}", (weight.experts, columns, rows), setting)
        full *= 1 / sqrt(rows)
        share, degree, (group, rank) = full, weight.degree, weight.place(setting.index)
        if weight.groups > 1:
            full = share = full[group * weight.local_experts :][: weight.local_experts]
        for side, parts, dim in (("rows", weight.rows, 2), ("columns", weight.columns, 1)):
            if weight.split == side and degree > 1:
                runs = layout.from_rows(own_features(parts, degree, rank))
                share = layout.join([full], runs, dim).contiguous()
        if share.untyped_storage().nbytes() > share.nbytes:
            share = share.clone()
        share = share if weight.experts > 1 else share[0]
        return quantise(share, weight) if setting.is_quantised(weight) else share

    return Weights(make=make, distinct=distinct)


def _draw(name: str, shape: tuple[int, ...], setting: Setting) -> torch.Tensor:
    generator = torch.Generator(setting.device).manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator, device=setting.device, dtype=setting.dtype)


def inputs_from_source(source: Source, setting: Setting, batch: int) -> Given:
    """Give the inputs of the reference; replicas take their own samples of the batch."""

    def given(tensor: Tensor, forward: int) -> torch.Tensor:
        shape, start = _samples(tensor, setting, batch)
        full = source.array(f"{tensor.name}#{forward}", (batch, *shape[1:]))
        return setting.table(full[start : start + shape[0]], setting.dtype)

    return _cached_inputs(given)


def inputs_drawn(setting: Setting, batch: int) -> Given:
    """Draw inputs on the device, the same in every forward and on every rank.

    Replicas take their own samples of the `batch`.
    """

    def given(tensor: Tensor, _: int) -> torch.Tensor:
        shape, start = _samples(tensor, setting, batch)
        full = _draw(tensor.name, (max(shape[0], batch), *shape[1:]), setting)
        return full[start : start + shape[0]].clone()

    cached = _cached_inputs(given)
    return lambda tensor, _: cached(tensor, 0)


def _samples(tensor: Tensor, setting: Setting, batch: int) -> tuple[tuple[int, ...], int]:
    """Shape of an input, and the first of the batch's samples that a replica has."""
    shape = shape_of(tensor)
    return shape, setting.replica * shape[0] if shape[0] < batch else 0


def _cached_inputs(make: Given) -> Given:
    """Make each input once a forward, and keep it."""
    cache: dict[tuple[str, int], torch.Tensor] = {}

    def given(tensor: Tensor, forward: int) -> torch.Tensor:
        key = (tensor.name, forward)
        if key not in cache:
            cache[key] = make(tensor, forward)
        return cache[key]

    return given


def fitting_layers(layers: int, total: float, room: float) -> int:
    """Layers that can have weights of their own in `room` of `total` bytes; zero where all fit.

    >>> fitting_layers(3, 30.0, 25.0), fitting_layers(1, 10.0, 25.0)
    (2, 0)
    """
    return 0 if total <= room else max(1, int(layers * room / total))
