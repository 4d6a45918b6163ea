"""How to split a generative model over GPUs, how fast it will be, and whether it fits.

>>> import planner
>>> plan = planner.estimate("flux.1-dev", gpus=2, plan="ulysses2")
>>> plan.to_dict()["plan"]
'ulysses2'
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.api import (
        attention,
        capacity,
        collective,
        dispatch,
        estimate,
        experts,
        matmul,
        read_model,
        read_topology,
        recommend,
        simulate,
        sweep,
    )
    from topology.base import InputError

__all__ = [
    "InputError", "attention", "capacity", "collective", "dispatch", "estimate", "experts",
    "matmul", "read_model", "read_topology", "recommend", "simulate", "sweep",
]  # fmt: skip


def __dir__() -> list[str]:
    """List the public names."""
    return __all__


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that commands start fast."""
    if name not in __all__:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module("planner.api"), name)
