"""Caches of features: which share of the steps each method skips, by its threshold.

A step that is skipped runs the first layers at most; the change that the other layers make is
that of the last step that ran them all. So the result is another one than the model's.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from planner.request.workload import Reuse
from topology.base import InputError, number_in, unknown
from topology.base.values import dataclass

SKIP: Final = "skip"
"""Stands for any method, of which the user knows the share of steps that it skips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What was found of a model: pairs of a threshold and the share of steps that it skips.

    usual : threshold where none is named.
    """

    kind: str
    source: str
    usual: float
    steps: tuple[tuple[float, ...], ...]

    def share(self, threshold: float) -> float:
        """Give the share at a threshold, between those that are known.

        Raises `InputError` outside of them.

        >>> known = Skipped(kind="derived", source="-", usual=0.1, steps=((0.1, 0.4), (0.2, 0.6)))
        >>> round(known.share(0.15), 3)
        0.5
        """
        thresholds, shares = zip(*self.steps, strict=True)
        if not thresholds[0] <= threshold <= thresholds[-1]:
            bounds = dict.fromkeys((thresholds[0], thresholds[-1]))
            wanted = " to ".join(f"{end:g}" for end in bounds)
            raise InputError(f"cache: got a threshold of {threshold:g}, wanted {wanted}")
        return float(np.interp(threshold, thresholds, shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureCache:
    """A method. layers : that a step runs which is skipped. models : what is known, by model."""

    title: str
    source: str
    layers: int
    models: Mapping[str, Skipped]


def reuse_of(caches: Mapping[str, FeatureCache], model: str, text: str) -> Reuse | None:
    """Find what a cache such as ``teacache=0.2`` skips; None where none is named.

    The threshold may be left out for the usual one; ``skip=0.4`` names the share itself.

    Raises `InputError` if there is no such method, or its share is not known for the model or the
    threshold.
    """
    name, _, value = text.partition("=")
    if not text:
        return None
    if name == SKIP:
        share, layers = _number(text, value), 0
        if not 0 <= share < 1:
            raise InputError(f"cache: got {text[:60]}, wanted a share, 0 or more and less than 1")
    elif name in caches:
        measured = caches[name].models.get(model)
        if measured is None:
            known_models = ", ".join(caches[name].models)
            raise InputError(
                f"cache: got {name}, of which the share of steps is known for {known_models}, "
                "not for "
                f"{model}: wanted {SKIP}=SHARE, as you measured it"
            )
        threshold = _number(text, value) if value else measured.usual
        text, share, layers = (
            f"{name}={threshold:g}",
            measured.share(threshold),
            caches[name].layers,
        )
    else:
        raise unknown("cache", name, (*caches, SKIP))
    return Reuse(name=text, share=share, layers=layers)


def _number(text: str, value: str) -> float:
    try:
        return number_in(value)
    except ValueError:
        raise InputError(
            f"cache: got {text[:60]}, wanted a name and a number, such as teacache=0.2"
        ) from None
