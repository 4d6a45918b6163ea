"""Every recommendation for catalogue models: none leads with a plan that its target refuses.

``python tests/recommendations.py`` asks for all models on 1 to 16 GPUs of eight kinds, and ends
with 1 where one does. ``--part 2/8`` is the second eighth of the models, ``--processes`` how many
run at once; ``tests/planner/test_engines.py`` draws some of them.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import everymodel

from planner.api import request_of
from planner.engines.tables import allowed, find_engine
from planner.models import names
from planner.recommendation import Recommendation, recommend_plans
from planner.runners.launch import launch_of
from planner.scenario.scenario import resolve
from planner.search.evaluate import Shared

GPUS: Final = (1, 2, 4, 8, 16)
HARDWARE: Final = (
    "h100-sxm", "a100-sxm-80gb", "b200", "h20", "l40s", "rtx-4090", "l4", "h200-sxm",
)  # fmt: skip


def recommended(model: str, gpus: int, hardware: str, shared: Shared) -> Recommendation:
    """Answer a request; `shared` is of the same model and number of GPUs."""
    scenario = resolve(request_of(model, gpus, {"hardware": hardware}), several=True)
    return recommend_plans(scenario, shared)


def wrong(found: Recommendation) -> Iterator[str]:
    """Say what is wrong with an answer: a lead that is refused, or is not the best that can run."""
    shown, lead = found.to_dict(), found.lead
    engines = found.runs
    barred = {refused.plan for refused in found.refusals}
    ranked = [plan.plan in barred for plan in found.plans]
    if ranked != sorted(ranked):
        yield "a plan that is refused stands before one that is not"
    if lead is None:
        if shown["recommended"] is not None or any(run.estimate for run in engines):
            yield "something runs it, and nothing is recommended"
        return
    best = engines[0].estimate
    if not (best and lead is found.plans[0] and str(lead.plan) == shown["recommended"]):
        yield "what is recommended is not the first plan"
    elif best.plan != lead.plan or abs(best.latency_s - lead.latency_s) > 1e-9 * lead.latency_s:
        yield f"{lead.plan} leads, and {best.plan} is what runs it best"
    yield from _refused(found)


def _refused(found: Recommendation) -> Iterator[str]:
    scenario, lead = found.scenario, found.lead
    assert lead is not None
    name = scenario.deployment.engine
    if name:
        reason = launch_of(scenario, find_engine(name), lead.plan).reason
    else:
        hardware = scenario.deployment.hardware
        reason = "; ".join(allowed().obstacles(lead.plan, hardware, precision=lead.precision))
    if reason:
        yield f"{lead.plan} leads, and {name or 'TensorRT'} {reason}"
    proven = [run.estimate for run in found.runs if run.estimate and not run.estimate.unproven]
    if lead.unproven and proven:
        yield f"{lead.plan} leads, which is unproven, before {proven[0].plan}, which is not"
    if found.runs[0].launch is None or not found.runs[0].launch.line:
        yield f"{lead.plan} leads, and there is nothing to type"


def of_a_model(model: str) -> tuple[str, int, list[str]]:
    """Ask for a model on all numbers and kinds of GPUs; its name, how many, and what is wrong."""
    said, count = [], 0
    for gpus in GPUS:
        shared = Shared()
        for hardware in HARDWARE:
            count += 1
            try:
                said += [
                    f"{model}, {gpus} x {hardware}: {text}"
                    for text in wrong(recommended(model, gpus, hardware, shared))
                ]
            except Exception as error:  # noqa: BLE001  # is told of, and the rest is asked for
                said.append(f"{model}, {gpus} x {hardware}: {type(error).__name__}: {error}")
    return model, count, said


def main(words: Sequence[str] | None = None) -> int:
    """Ask for all, and say what is wrong."""
    options = everymodel.parser(__doc__).parse_args(words)
    return everymodel.check_all(of_a_model, options, "recommendations")


if __name__ == "__main__":
    sys.exit(main())
