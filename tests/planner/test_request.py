"""A request is checked once, where it enters."""

import math

import generators
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.request.request import LARGEST, Request, whole_number
from topology.base import InputError

COUNTS = ("gpus", "batch", "height", "width", "frames", "steps", "input_tokens", "text_tokens")


@pytest.mark.parametrize("name", [*COUNTS, "nodes", "output_tokens"])
def test_counts_are_whole_and_within_reason(name):
    for value in (-1, 10**9, 2.5, math.nan, math.inf, "8", True, [8]):
        with pytest.raises(InputError, match=f"{name}: got .*, wanted a whole number from 1 to"):
            Request(model="flux", **{name: value})


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_of_zero_is_refused(name):
    with pytest.raises(InputError, match=f"{name}: got 0"):
        Request(model="flux", **{name: 0})


def test_zero_nodes_and_zero_output_mean_something():
    """As few hosts as hold the GPUs; a prefill alone."""
    assert Request(model="flux", nodes=0, output_tokens=0).nodes == 0


@pytest.mark.parametrize("name", COUNTS)
def test_the_largest_count_is_accepted(name):
    assert getattr(Request(model="flux", **{name: LARGEST[name]}), name) == LARGEST[name]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("precision", "fp32", "did you mean fp8 or fp16?"),
        ("objective", "speed", "expected one of latency, throughput, memory, cost"),
        ("text_tower", "never", "did you mean every_step"),
        ("precision", 3, "unknown precision '3'"),
        ("hardware", None, "hardware: got None, wanted a name"),
        ("runtime", 3, "runtime: got 3, wanted a name"),
        ("algorithm", [], "algorithm: got .*, wanted a name"),
        ("attention", None, "attention: got None, wanted a name"),
    ],
)
def test_names_are_words_that_are_known(name, value, said):
    with pytest.raises(InputError, match=said):
        Request(model="flux", **{name: value})


@pytest.mark.parametrize("name", ["at_most_gpus", "offload", "kv_repeat", "detect"])
@pytest.mark.parametrize("value", [None, 1, "yes", []])
def test_switches_are_on_or_off(name, value):
    with pytest.raises(InputError, match=f"{name}: got .*, wanted True or False"):
        Request(model="flux", **{name: value})


@pytest.mark.parametrize("value", [8, 8.0, np.int32(8), np.float64(8), np.array(8)])
def test_a_program_may_pass_any_kind_of_whole_number(value):
    number = whole_number("gpus", value)

    assert number == 8
    assert type(number) is int


@pytest.mark.parametrize("value", [None, "8", b"8", True, 8.5, math.nan, math.inf, [8], {}])
def test_what_is_no_whole_number_is_one_line(value):
    with pytest.raises(InputError, match=r"gpus: got .*, wanted a whole number") as error:
        whole_number("gpus", value)

    assert len(str(error.value)) < 120


@pytest.mark.parametrize("digits", [30, 400, 5000])
def test_a_number_too_long_for_a_float_or_for_text_is_one_line(digits):
    for value in (10**digits, -(10**digits)):
        with pytest.raises(InputError, match=r"gpus: got .*, wanted a whole number") as error:
            Request(model="flux", gpus=whole_number("gpus", value))
        assert len(str(error.value)) < 120


@given(value=st.one_of(st.integers(), st.floats(), generators.nonsense, st.none()))
def test_any_value_is_a_count_or_one_line(value):
    count, said = generators.tried(whole_number, "gpus", value)
    request, refused = generators.tried(Request, model="flux", gpus=count)

    assert "\n" not in said + refused
    assert said or count == value
    assert refused or 1 <= request.gpus <= LARGEST["gpus"]
