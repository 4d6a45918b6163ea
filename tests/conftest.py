"""Shared settings: small models are importable, and property tests do not watch the clock."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_addoption(parser):
    parser.addoption(
        "--renew-golden",
        action="store_true",
        help="rewrite tests/golden; the change says why, case by case",
    )


@pytest.fixture
def renew_golden(request):
    return request.config.getoption("--renew-golden")
