"""Whatever is done to a file, it is used, or refused in one line.

`FUZZ=1000 pytest tests/fuzz` takes a thousand times as many examples; `python -m fuzz` in `tests`
tries as many as there is time for, and says what took too long or too much.
"""

import os

import pytest
from fuzz.__main__ import tried
from fuzz.damage import damaged
from fuzz.targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW = 6
pytestmark = pytest.mark.usefixtures("searched_once")


@pytest.mark.parametrize("name", TARGETS)
def test_a_text_as_it_is_is_used(name, tmp_path):
    target = TARGETS[name]

    assert target.use(target.copy(tmp_path, target.text))


@pytest.mark.parametrize("name", TARGETS)
@settings(
    max_examples=FEW * int(os.environ.get("FUZZ", "1")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(random=st.randoms(use_true_random=False))
def test_a_damaged_text_is_used_or_refused_in_one_line(name, random, tmp_path):
    target = TARGETS[name]
    path = target.copy(tmp_path, damaged(target.text, random))

    assert tried(target, path) == ""
