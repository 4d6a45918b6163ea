"""Weights and inputs on a rank: the reference's own numbers, or numbers drawn on the device.

Weights lie as PyTorch has them, ``[experts,] columns, rows``.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import torch

from costmodels.program import Depthwise, Loop, Matmul, Tensor, Weight
from validate.reference.run import shape_of
from validate.reference.weights import Source, own_features
from validate.torch import moves
from validate.torch.products import quantise
from validate.torch.setting import Setting

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
            elif isinstance(item, Matmul | Depthwise):
                for layer in layers:
                    self.of(item.weight, layer)


def from_source(source: Source, setting: Setting) -> Weights:
    """Weights of the reference, number for number."""

    def make(weight: Weight, layer: int) -> torch.Tensor:
        share = np.swapaxes(source.weight(weight, layer, setting.index), -1, -2)
        made = setting.table(np.ascontiguousarray(share), setting.dtype)
        return quantise(made, weight) if setting.is_quantised(weight) else made

    return Weights(make=make)


def drawn(setting: Setting, distinct: int = 0) -> Weights:
    """Weights drawn on the device: every rank draws the whole one and keeps its share.

    So ranks agree, and a split model is the unsplit one, at full size too.
    """

    def make(weight: Weight, layer: int) -> torch.Tensor:
        rows = sum(part.units * part.size for part in weight.rows)
        columns = sum(part.units * part.size for part in weight.columns)
        whole = _draw(f"{weight.name}@{layer}", (weight.experts, columns, rows), setting)
        whole *= 1 / sqrt(rows)
        share, degree, rank = whole, weight.degree, setting.index.get("tp", 0)
        if weight.split == "rows" and degree > 1:
            runs = moves.from_rows(own_features(weight.rows, degree, rank))
            share = moves.join([whole], runs, 2).contiguous()
        if weight.split == "columns" and degree > 1:
            runs = moves.from_rows(own_features(weight.columns, degree, rank))
            share = moves.join([whole], runs, 1).contiguous()
        if share.untyped_storage().nbytes() > share.nbytes:
            share = share.clone()
        share = share if weight.experts > 1 else share[0]
        return quantise(share, weight) if setting.is_quantised(weight) else share

    return Weights(make=make, distinct=distinct)


def _draw(name: str, shape: tuple[int, ...], setting: Setting) -> torch.Tensor:
    draw = torch.Generator(setting.device).manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=draw, device=setting.device, dtype=setting.dtype)


def inputs_from_source(source: Source, setting: Setting, batch: int) -> Given:
    """Give the inputs of the reference; replicas take their own samples of the batch."""
    made: dict[tuple[str, int], torch.Tensor] = {}

    def given(tensor: Tensor, forward: int) -> torch.Tensor:
        key = (tensor.name, forward)
        if key not in made:
            shape = shape_of(tensor)
            full = source.array(f"{tensor.name}#{forward}", (batch, *shape[1:]))
            first = setting.index.get("dp", 0) * shape[0] if shape[0] < batch else 0
            made[key] = setting.table(full[first : first + shape[0]], setting.dtype)
        return made[key]

    return given


def inputs_drawn(setting: Setting, batch: int) -> Given:
    """Draw inputs on the device, the same in every forward and on every rank.

    Replicas take their own samples of the `batch`.
    """
    made: dict[str, torch.Tensor] = {}

    def given(tensor: Tensor, forward: int) -> torch.Tensor:
        del forward
        if tensor.name not in made:
            rows, *rest = shape_of(tensor)
            whole = _draw(tensor.name, (max(rows, batch), *rest), setting)
            first = setting.index.get("dp", 0) * rows if rows < batch else 0
            made[tensor.name] = whole[first : first + rows].clone()
        return made[tensor.name]

    return given


def fitting(bytes_by_layer: Mapping[int, float], room: float) -> int:
    """Layers that can have weights of their own in `room` bytes; zero where all fit.

    >>> fitting({0: 10.0, 1: 10.0, 2: 10.0}, 25.0), fitting({0: 10.0}, 25.0)
    (2, 0)
    """
    total = sum(bytes_by_layer.values())
    if total <= room:
        return 0
    return max(1, int(len(bytes_by_layer) * room / total))
