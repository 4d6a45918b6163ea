"""Doctests of modules that need PyTorch are left out where it is not installed.

Of several processes every other one collects from the other end, so that each compiles half of the
tests and reads the rest.
"""

from collections.abc import Generator
from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    collect_ignore_glob = ["validate/torch/*.py", "validate/bench/*.py"]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect folders from the other end in every other process."""
    report = yield
    worker = getattr(collector.config, "workerinput", {"workerid": "gw0"})["workerid"]
    if isinstance(collector, pytest.Directory) and int(worker[2:]) % 2:
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give all processes the files in the same order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path)
