"""Shared settings: small models are importable, and property tests do not watch the clock.

Products here are small: threads of a linear algebra library would only wait for each other.
"""

import gc
import os
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # read when numpy is loaded, here and in children
os.environ.pop("COLUMNS", None)  # of the terminal that tests are started in
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each child compiles all that it imports
sys.dont_write_bytecode = False  # and each worker every test, which takes as long as collecting
sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile(
    "default", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_collection_finish():
    """Leave what was loaded out of the garbage collector, a fifth of the suite's time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000, 20, 100)


@pytest.fixture
def port():
    """Give a port of this host that no other process is given while the test runs."""
    from planner.tensorrt.runner.connections import held_port

    with held_port() as held:
        yield held


def pytest_addoption(parser):
    parser.addoption(
        "--renew-golden",
        action="store_true",
        help="rewrite tests/golden; the change says why, case by case",
    )


@pytest.fixture
def renew_golden(request):
    return request.config.getoption("--renew-golden")


@pytest.fixture(scope="session")
def searched():
    """Give the fastest plans that demands of all tests have found."""
    from planner.fleet import fleet  # slow to load

    return fleet._FastestPlans()  # noqa: SLF001


@pytest.fixture(scope="module")
def searched_once(searched):
    """Let demands that ask for the same share what was found for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.fleet.fleet._FastestPlans", lambda: searched)
        yield


@pytest.fixture(scope="session")
def known_answers():
    """Give what was recommended in all tests, by what was asked; the latest few.

    Those for as many GPUs of the same hardware share what they found for a model.
    """
    from planner.recommendation import recommend_plans  # slow to load
    from planner.search.evaluate import Shared

    shared = lru_cache(maxsize=8)(lambda *_: Shared())

    @lru_cache(maxsize=64)
    def answer(scenario, simulated):
        on = scenario.deployment
        alike = shared(scenario.model, on.gpus, on.hardware, on.profile, on.subset)
        return recommend_plans(scenario, alike, simulated)

    return answer


@pytest.fixture(scope="module")
def asked_once(known_answers):
    """Let those who ask for the same recommendation share it, whatever they make of it."""
    from planner import api, recommendation

    search = recommendation.recommend_plans

    def answer(scenario, shared=None, simulated=None):
        try:
            return known_answers(scenario, simulated)
        except TypeError:  # lengths are arrays
            return search(scenario, shared, simulated)

    with pytest.MonkeyPatch.context() as patch:
        for module in (api, recommendation):
            patch.setattr(module, "recommend_plans", answer)
        yield
