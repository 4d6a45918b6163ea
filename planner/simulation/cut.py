"""Links that are down, and the first message of a plan that has no way left without them."""

from collections.abc import Iterator
from dataclasses import replace

from costmodels.program import Communication
from planner.lowering import lower
from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.scenario import Scenario, resolve
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import seated
from planner.search.judging import judge
from planner.simulation.links import Group, Wiring
from planner.strategies import parse_plan
from topology.base import CutError, InputError
from topology.machine.alterations import NETWORK


def resolved(request: Request, plan: str | Plan | None) -> Scenario:
    """Look up a request, whose plan is run.

    Replicas on hosts of their own do without a network, and are run as if it were there.

    Raises `InputError` as `resolve` does; where links that are down cut the machine, with the
    message that they stop.
    """
    try:
        return resolve(request)
    except CutError as cut:
        parsed = parse_plan(str(plan or "single"))
        uncut_scenario = resolve(replace(request, links=()))
        if not isinstance(judge(uncut_scenario, parsed), PlanEstimate):
            raise
        for op, ranks in _stopped_messages(uncut_scenario, parsed, cut):
            rank_list = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
            raise InputError(
                f"{cut}: {op.kind} of {op.writes[0].name} along {op.axis} stops, which ranks "
                f"{rank_list} wait for"
            ) from None
        if cut.gpus:
            raise
        host_links = (link for link in request.links if link[1] or not link[0].endswith(NETWORK))
        return resolved(replace(request, links=tuple(host_links)), plan)


def _stopped_messages(
    scenario: Scenario, plan: Plan, cut: CutError
) -> Iterator[tuple[Communication, Group]]:
    """Find messages of groups whose GPUs nothing joins any more."""
    wiring = Wiring(seated(scenario, plan), plan)
    place = wiring.survey.machine.place
    for stage in lower(scenario.model, scenario.workload, plan).stages:
        for op in stage.walk():
            if not isinstance(op, Communication):
                continue
            for group in wiring.groups(op.axis):
                seats = [place(wiring.seats[rank]) for rank in group]
                hosts, gpu_names = {copy for copy, _ in seats}, {gpu.name for _, gpu in seats}
                if cut.gpus <= gpu_names if cut.gpus else len(hosts) > 1:
                    yield op, group
