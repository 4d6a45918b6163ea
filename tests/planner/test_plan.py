"""Plans are read as they are written, and what is no plan is answered with one line."""

import math

import generators
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.request.plan import Plan
from planner.strategies import axes, parse_plan
from topology.base import InputError
from topology.catalogue import find_hardware


@given(plan=generators.any_plans())
def test_a_plan_that_is_pasted_back_is_the_same(plan):
    assert parse_plan(str(plan)) == plan


@given(plan=generators.any_plans())
def test_degrees_multiply_to_the_gpus(plan):
    assert plan.gpus == math.prod(degree for _, degree in plan.axes)
    assert all(plan.degree(name) == degree for name, degree in plan.axes)
    assert all(plan.degree(name) == 1 for name in set(axes()) - dict(plan.axes).keys())


@given(plan=generators.any_plans())
def test_strides_number_every_rank_once(plan):
    """The outermost axis has the longest stride: stride times degree is the stride outside it."""
    outside = plan.gpus
    for name, degree in plan.axes:
        assert plan.stride(name) * degree == outside
        outside = plan.stride(name)
    assert outside == 1


def test_a_group_on_two_hosts_shares_links_with_those_on_one():
    found = parse_plan("cfg2.ulysses4.ring3").fabrics(find_hardware("l20"))

    assert found["ring"].siblings is not None


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("CFG2.Ulysses4", "cfg2.ulysses4"),
        ("  tp8 ", "tp8"),
        ("tp8.ulysses1", "tp8"),
        ("tp1", "single"),
        ("single/vae1", "single"),
        ("cfg2.ulysses4/VAE8", "cfg2.ulysses4/vae8"),
        ("tp08", "tp8"),
        ("ep8", "adp8/ep8"),
        ("dp2.ep4", "dp2.adp4/ep4"),
        ("tp8/ep1", "tp8"),
        ("adp2.tp4/EP8", "adp2.tp4/ep8"),
    ],
)
def test_one_plan_has_several_spellings(text, same):
    assert str(parse_plan(text)) == same


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected axes and degrees"),
        (".", "expected axes and degrees"),
        ("tp", "expected axes and degrees"),
        ("8", "expected axes and degrees"),
        ("tp-8", "expected axes and degrees"),
        ("tp8.5", "expected axes and degrees"),
        ("tp8..cfg2", "expected axes and degrees"),
        ("tp8x", "expected axes and degrees"),
        ("tp\uff18", "expected axes and degrees"),  # a full-width 8
        ("single.tp8", "expected axes and degrees"),
        ("ulises4", "did you mean ulysses"),
        ("sp4", "unknown axis 'sp'"),
        ("tp0", "tp degree 0"),
        ("tp16385", "tp degree 16385"),
        ("tp2.cfg2.tp2", "axis tp is named twice"),
        ("tp8/", "after the slash"),
        ("tp8/vae", "after the slash"),
        ("tp8/vae0", "vae degree 0"),
        ("tp8/vae2/vae2", "axis vae is named twice"),
        ("ep8/ep8", "axis ep is named twice"),
        ("adp8.ep8", "axis adp is named twice"),
        ("tp8/ep", "after the slash"),
        ("tp8/tp8", "after the slash"),
    ],
)
def test_what_is_no_plan_is_named(text, said):
    with pytest.raises(InputError, match=said) as error:
        parse_plan(text)

    assert "\n" not in str(error.value)


@given(text=generators.nonsense | st.text(alphabet="tpcfgulysseringdv.0123456789/", max_size=20))
def test_any_text_is_a_plan_or_one_line(text):
    plan, said = generators.tried(parse_plan, text)

    assert len(said) < 300
    assert said or plan == parse_plan(str(plan))


def test_plans_are_values():
    assert Plan((("tp", 2),)) == parse_plan("tp2")
    assert len({Plan(), parse_plan("single"), parse_plan("tp1")}) == 1
