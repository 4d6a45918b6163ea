"""Doctests of modules that need PyTorch are left out where it is not installed."""

from importlib.util import find_spec

if find_spec("torch") is None:
    collect_ignore_glob = ["validate/torch/*.py", "validate/bench/*.py"]
