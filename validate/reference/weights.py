"""Made-up weights and inputs, the same wherever they are asked for by name."""

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodels.program import Part, Weight
from topology.base.values import dataclass

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Source:
    """Random numbers by name; `seed` makes another model of the same shape.

    made : what was asked for before, as every rank asks again at every forward of every step.
    """

    seed: int = 0
    made: dict[Hashable, Array] = field(default_factory=dict, compare=False, repr=False)

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers that depend on the seed, name and shape alone."""
        if (name, shape) not in self.made:
            digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
            drawn = np.random.default_rng(int.from_bytes(digest)).standard_normal(shape)
            self.made[name, shape] = drawn
        return self.made[name, shape]

    def weight(self, weight: Weight, layer: int, index: Mapping[str, int]) -> Array:
        """Return one rank's share of a weight, ``[experts,] rows, columns``."""
        place = weight.place(index)
        key = weight, layer, place  # a weight takes a while to hash
        share = self.made.get(key)
        if share is None:
            share = self.made[key] = self._share(weight, layer, *place)
        return share

    def _share(self, weight: Weight, layer: int, group: int, rank: int) -> Array:
        rows = sum(part.units * part.size for part in weight.rows)
        columns = sum(part.units * part.size for part in weight.columns)
        name = f"{weight.name}@{layer}" if weight.layered else weight.name
        full = self.array(name, (weight.experts, rows, columns)) / np.sqrt(rows)
        full = full[group * weight.local_experts : (group + 1) * weight.local_experts]
        if weight.split == "rows":
            full = take_padded(full, own_features(weight.rows, weight.degree, rank), 1)
        if weight.split == "columns":
            full = take_padded(full, own_features(weight.columns, weight.degree, rank), 2)
        return np.asarray(full if weight.experts > 1 else full[0])


def take_padded(full: Array, places: NDArray[np.int64], axis: int) -> Array:
    """Take places along an axis; -1 is padding, and zero.

    >>> take_padded(np.array([5.0, 6.0]), np.array([1, -1]), 0)
    array([6., 0.])
    """
    shape = [-1 if number == axis else 1 for number in range(full.ndim)]
    is_present = (places >= 0).reshape(shape)
    return np.where(is_present, full.take(np.maximum(places, 0), axis), 0.0)


def own_samples(whole: Array, degree: int, place: int) -> Array:
    """Take the samples that one of `degree` replicas has; all where there is one for all.

    >>> own_samples(np.arange(4.0), 2, 1), own_samples(np.arange(1.0), 2, 1)
    (array([2., 3.]), array([0.]))
    """
    if degree == 1 or len(whole) == 1:
        return whole
    share = len(whole) // degree
    return whole[place * share : (place + 1) * share]


@lru_cache(maxsize=1024)
def own_features(parts: tuple[Part, ...], degree: int, rank: int) -> NDArray[np.int64]:
    """Features of one of `degree` ranks, part by part; a unit is repeated where there are fewer.

    Where units do not divide, the last ranks end with padding, which stands at -1.

    >>> own_features((Part(4, 1), Part(1, 2)), 2, 1)
    array([2, 3, 4, 5])
    >>> own_features((Part(5),), 2, 1)
    array([ 3,  4, -1])
    """
    feature_groups, start = [], 0
    for part in parts:
        share = part.local(degree)
        if part.units >= degree:
            own_indices = np.arange(rank * share, (rank + 1) * share)
        else:
            own_indices = np.arange(share) + rank * part.units // degree * part.size
        feature_groups.append(
            np.where(own_indices < part.units * part.size, start + own_indices, -1)
        )
        start += part.units * part.size
    return np.concatenate(feature_groups)
