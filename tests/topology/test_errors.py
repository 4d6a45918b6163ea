"""Names that are not known: which ones are said to be near."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models import names
from planner.models.catalogue import ALIASES
from topology.base import nearest_names, unknown
from topology.catalogue import all_hardware

HARDWARE = tuple(all_hardware())
MODELS = (*names(), *ALIASES)
PRECISIONS = ("bf16", "fp16", "fp8", "nvfp4", "int8")


@pytest.mark.parametrize(
    ("got", "known", "first"),
    [
        ("a100", HARDWARE, {"a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie-80gb"}),
        ("H100", HARDWARE, {"h100-sxm", "h100-nvl", "h100-pcie"}),
        ("4090", HARDWARE, {"rtx-4090"}),
        ("a6000", HARDWARE, {"rtx-a6000"}),
        ("wan", MODELS, {"wan2.1-14b", "wan2.2-a14b"}),
        ("llama-3.1", MODELS, {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"}),
        ("fp4", PRECISIONS, {"nvfp4"}),
    ],
)
def test_names_that_go_on_from_it_come_first(got, known, first):
    found = nearest_names(got, known)

    assert first <= set(found)
    assert all(got.lower() in name for name in found)


@pytest.mark.parametrize(
    ("got", "known", "first"),
    [
        ("h1000", HARDWARE, "h100-sxm"),
        ("flux.1-div", MODELS, "flux.1-dev"),
        ("tensort", ("tensorrt", "xdit"), "tensorrt"),
        ("vlm", ("best", "trtllm", "vllm", "sglang"), "vllm"),
    ],
)
def test_others_are_alike(got, known, first):
    assert nearest_names(got, known)[0] == first


@pytest.mark.parametrize("got", ["int4", "fp32", ""])
def test_another_number_is_no_slip_among_a_few_names(got):
    said = str(unknown("precision", got, PRECISIONS))

    assert said == f"unknown precision {got!r}: expected one of bf16, fp16, fp8, nvfp4, int8"


@given(st.text(max_size=12), st.sampled_from([HARDWARE, MODELS, PRECISIONS]))
def test_near_names_are_a_few_of_the_known(got, known):
    found = nearest_names(got, known)

    assert len(found) <= 6
    assert len(set(found)) == len(found)
    assert set(found) <= set(known)
