"""Fits find curves whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.collectives.curve import Curve
from costmodels.collectives.tables import library, tuning
from costmodels.profile import load_profile
from topology.base import InputError
from topology.catalogue import find_hardware
from validate.accuracy.collectives import CollectiveFigure, read_figures
from validate.fit.collectives import FitRecipe, builder, curve_of, fit_curve, recipes
from validate.fit.text import to_toml

TRUTH = Curve(
    launch=5e-6, step=1e-6, efficiency=0.8, copy_gather=0.5, copy_reduce=0.3, sharpness=1.2
)
RECIPE = FitRecipe(
    guess=Curve(launch=8e-6, step=2e-6, efficiency=0.5, copy_gather=0.2, copy_reduce=0.2),
    bounds={
        "launch": (1e-6, 1e-4),
        "step": (1e-7, 1e-4),
        "efficiency": (0.1, 0.95),
        "copy_gather": (0.01, 4.0),
        "copy_reduce": (0.01, 4.0),
        "sharpness": (0.5, 3.0),
    },
)


def rows(curve, noise=0.0):
    build = builder("ring_simple")
    return [
        CollectiveFigure(
            op=op,
            fabric=fabric,
            message_bytes=size,
            seconds=build(curve, op, fabric).time(size) * (1 + noise * (-1) ** index),
        )
        for op in ("all_reduce", "all_gather", "reduce_scatter")
        for fabric in (find_hardware("a100-sxm-80gb").fabric(n) for n in (2, 4, 8))
        for index, size in enumerate(2.0 ** np.arange(10, 31))
    ]


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_recovers_a_known_curve(noise):
    """Noise as a share of each time costs neither the launch nor the bandwidth."""
    fit, _ = fit_curve("ring_simple", rows(TRUTH, noise), RECIPE, hold=1e-4)

    assert fit.curve.launch == pytest.approx(TRUTH.launch, rel=0.02 + noise)
    assert fit.curve.step == pytest.approx(TRUTH.step, rel=0.02 + noise)
    assert fit.curve.efficiency == pytest.approx(TRUTH.efficiency, rel=0.02 + noise)
    assert fit.worst_error <= 0.02 + 2 * noise
    assert fit.ranks == (2, 8)
    assert (fit.smallest, fit.largest) == (2.0**10, 2.0**30)


def test_one_wild_measurement_does_not_bend_the_curve():
    measured = rows(TRUTH)
    measured[30] = replace(measured[30], seconds=10 * measured[30].seconds)

    fit, _ = fit_curve("ring_simple", measured, RECIPE, hold=1e-4)

    assert fit.curve.efficiency == pytest.approx(TRUTH.efficiency, rel=0.03)
    assert fit.median_error < 0.01


def test_a_family_is_fitted_curve_by_curve():
    """Rows are shared out by what NCCL would have used."""
    numbers = tuning().at((2, 29))
    known = library()
    measured = {}
    for row in rows(TRUTH):
        name = curve_of(row, numbers)
        model = builder(name)(known.get(row.fabric, name).curve, row.op, row.fabric)
        figure = replace(row, seconds=model.time(row.message_bytes))
        measured.setdefault(name, []).append(figure)

    assert set(measured) == {"ring_ll", "ring_ll128", "ring_simple"}
    for name, figures in measured.items():
        fit, _ = fit_curve(name, figures, recipes()[f"nvlink.{name}"], hold=0.01)
        assert fit.median_error < 0.02, name


HEAD = 'format = 1\nhardware = "a100-sxm-80gb"\ndate = "2026-11-27"\nsource = "a test"\n'


def test_what_is_written_is_read_back():
    fit, _ = fit_curve("ring_simple", rows(TRUTH), RECIPE)

    own = (("ampere.nvlink.ring_simple", replace(fit, source="a test")),)
    profile = load_profile(HEAD)
    profile = replace(profile, curves=replace(profile.curves, curves=own))
    ((place, read),) = load_profile(to_toml(profile)).curves.curves

    assert place == "ampere.nvlink.ring_simple"
    assert read.source == "a test"

    assert read.curve.launch == pytest.approx(fit.curve.launch, rel=1e-3)
    assert read.curve.sharpness == pytest.approx(fit.curve.sharpness, rel=1e-3)
    assert read.ops == ("all_gather", "all_reduce", "reduce_scatter")
    assert read.ranks == (2, 8)


def test_figures_need_their_columns_and_sources():
    head = "hardware,op,gpus,nodes,message_bytes,seconds,algorithm,launch,launcher,engine,source\n"
    row = "b200,all_gather,4,1,1024,1e-5,auto,graph,process,best,"
    known = {"b200": find_hardware("b200")}

    assert len(read_figures(head + row + "me\n", known)) == 1
    with pytest.raises(InputError, match="no source"):
        read_figures(head + row + "\n", known)
    with pytest.raises(InputError, match="missing columns"):
        read_figures("hardware,op\n", known)
