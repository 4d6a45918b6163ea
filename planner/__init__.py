"""How to split a generative model over GPUs, how fast it will be, and whether it fits.

>>> import planner
>>> plan = planner.estimate("flux.1-dev", gpus=2, plan="ulysses2")
>>> plan.to_dict()["plan"]
'ulysses2'
"""

from importlib import import_module

_HOME = {
    "InputError": "topology.base.errors",
    "attention": "planner.api",
    "collective": "planner.api",
    "estimate": "planner.api",
    "matmul": "planner.api",
    "read_model": "planner.models",
    "read_topology": "topology.readers.read",
    "recommend": "planner.api",
    "simulate": "planner.api",
}

__all__ = sorted(_HOME)  # noqa: PLE0605  # names are looked up when first used


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that commands start fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
