"""PipeFusion: pieces of the latents follow one another through the stages of a pipeline."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.models import read_model
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.plans import notes, objections
from planner.strategies import parse_plan
from topology.base import format_seconds
from validate.reference.proof import prove
from validate.reference.run import run_plan
from validate.reference.small import shrink

pytestmark = pytest.mark.usefixtures("asked_once")


def _small(plan: str, **changed):
    scenario = resolve(Request(model="flux.1-dev"))
    model, workload = shrink(scenario.model, scenario.workload, parse_plan(plan))
    return model, replace(workload, **changed)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("flux.1-dev", "pp3/patch4"),
        ("sd3.5-large", "cfg2.pp2/patch2"),
        ("pixart-sigma", "cfg2.pp2/patch4"),
    ],
)
def test_stages_give_what_the_same_pieces_give_on_one_rank(name: str, plan: str) -> None:
    scenario = resolve(Request(model=name))
    assert prove(scenario.model, scenario.workload, parse_plan(plan)).error == 0


def test_a_piece_is_no_part_of_a_rank_that_a_reduce_scatter_would_cut() -> None:
    asked = {"gpus": 4, "plan": "pp4/patch8"}
    plain, scattered = (
        planner.estimate("flux.1-dev", **asked, scattered_inputs=way) for way in (False, True)
    )
    assert scattered.latency_s == plain.latency_s


def test_exact_steps_give_the_models_own_result_and_others_one_that_is_near() -> None:
    plan, single = parse_plan("pp2/patch4"), parse_plan("single")
    model, work = _small("pp2/patch4", steps=3)
    own = run_plan(model, work, single)[0]

    def apart(warmup: int) -> float:
        outs = run_plan(model, replace(work, warmup=warmup), plan)
        return max(float(np.linalg.norm(out - own) / np.linalg.norm(own)) for out in outs)

    assert apart(3) < 1e-12
    assert 1e-6 < apart(2) < apart(1) < 0.1


def test_a_piece_sees_itself_and_those_ahead_as_they_are_now() -> None:
    """Of two pieces the second is exact in the first layer: what is ahead of it is of this step."""
    model, work = _small("pp2/patch2", steps=1, warmup=0)
    one = replace(model, blocks=(replace(model.blocks[0], count=1),), order=())
    own = run_plan(one, work, parse_plan("single"))[0]
    out = run_plan(one, work, replace(parse_plan("single"), patch=2))[0]
    half = own.shape[1] // 2
    assert np.allclose(out[:, half:], own[:, half:], rtol=0, atol=1e-12)
    assert not np.allclose(out[:, :half], own[:, :half], rtol=0, atol=1e-6)


def test_stages_share_the_time_but_for_exact_steps() -> None:
    def seconds(plan: str, gpus: int, warmup: int) -> float:
        estimate = planner.estimate(
            "pixart-sigma", gpus=gpus, plan=plan, height=4096, width=4096, steps=20,
            hardware="l40", engine="xdit", precision="fp16", offload=True, warmup_steps=warmup,
        )  # fmt: skip
        return estimate.stages_s["denoise"]

    one, none, two = (
        seconds("single", 1, 1),
        seconds("pipefusion4", 4, 0),
        seconds("pipefusion4", 4, 2),
    )
    assert none == pytest.approx(one / 4, rel=0.15)
    assert two - none == pytest.approx(2 * (one - one / 4) / 20, rel=0.1)


def test_what_no_pieces_are_made_of_is_said() -> None:
    def said(name: str, plan: str) -> str:
        model, parsed = read_model(name), parse_plan(plan)
        workload = resolve(Request(model=name)).workload
        return "; ".join(objections(model, workload, parsed, parsed.gpus))

    assert said("flux.1-dev", "pipefusion2") == ""
    assert "a piece for each at least" in said("flux.1-dev", "pp4/patch2")
    assert "do not divide by patch5" in said("flux.1-dev", "pp2/patch5")
    assert "use cfg2 beside it" in said("qwen-image", "pp2/patch2")
    assert "cut over ranks" in said("flux.1-dev", "ulysses2.pp2/patch2")
    assert "denoises nothing" in said("llama-3.1-8b", "pp2/patch2")
    with pytest.raises(planner.InputError, match="after the slash expected vae, ep, patch or fsdp"):
        parse_plan("pp2/pieces2")


@pytest.mark.parametrize(
    ("hardware", "gpus", "plan"),
    [("l40s", 4, "pipefusion4"), ("rtx-pro-6000", 4, "pipefusion4"), ("h100-sxm", 8, "")],
)
def test_it_is_offered_where_messages_hold_up_all_that_keeps_the_image(
    hardware: str, gpus: int, plan: str
) -> None:
    answer = planner.recommend("flux.1-dev", hardware=hardware, gpus=gpus)
    said = [line for line in answer.advice if "PipeFusion" in line]

    assert len(said) == bool(plan)
    assert all(row.plan.patch == 1 for row in answer.plans)
    if plan:
        found = planner.estimate(
            "flux.1-dev", hardware=hardware, gpus=gpus, plan=plan, engine="xdit"
        )
        assert found.latency_s < answer.plans[0].latency_s
        assert f"{format_seconds(found.latency_s)} with xDiT: --plan {plan} --engine" in said[0]


@pytest.mark.parametrize(("steps", "said"), [(6, ["5 of 6 steps are exact"]), (5, []), (1, [])])
def test_steps_that_are_all_exact_are_no_other_result(steps: int, said: list[str]) -> None:
    scenario = resolve(Request(model="flux", gpus=4, steps=steps, warmup_steps=5))
    told = list(notes(scenario.model, scenario.workload, parse_plan("pipefusion4")))

    assert [one.partition(": ")[2].partition(";")[0] for one in told] == said
