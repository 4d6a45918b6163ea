"""What would change a plan's time: the same plan run with faster links, fewer NICs, equal GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.request.plan import Plan
from planner.scenario.scenario import Scenario, resolve
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import seated
from planner.search.judging import judge
from planner.simulation.disturbances import Disturbances
from planner.simulation.simulation import Simulation, simulate
from topology.base import format_seconds
from topology.base.table import Table
from topology.base.values import dataclass
from topology.catalogue import Fabric
from topology.machine.alterations import NETWORK


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A change, and the seconds of a request with it."""

    words: str
    latency_s: float

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {"change": self.words, "latency_s": self.latency_s}


def what_if(scenario: Scenario, simulation: Simulation, disturbed: Disturbances) -> list[WhatIf]:
    """Run the plan again with one thing changed at a time; what gains most is first."""
    plan = simulation.estimate.plan
    found = [
        WhatIf(words=words, latency_s=simulate(changed, estimate, how).latency_s)
        for words, changed, how in _changes(scenario, plan, disturbed)
        if isinstance(estimate := judge(changed, plan), PlanEstimate)
    ]
    return sorted(found, key=lambda one: one.latency_s)


def what_if_table(simulation: Simulation, changes: Sequence[WhatIf]) -> Table:
    """Put changes beside the plan as it ran."""
    usual = simulation.latency_s
    rows = [
        [one.words, format_seconds(one.latency_s), f"{100 * (one.latency_s / usual - 1):+.1f} %"]
        for one in changes
    ]
    return Table(head=("what if", "time", "change"), rows=rows, indent=2)


def _changes(
    scenario: Scenario, plan: Plan, disturbed: Disturbances
) -> Iterator[tuple[str, Scenario, Disturbances]]:
    deployment = seated(scenario, plan)
    fabrics = list(deployment.fabrics(plan).values())
    if not disturbed.even and plan.gpus > plan.degree("dp"):
        yield "all GPUs equally fast", scenario, replace(disturbed, even=True)
    if disturbed.jitter:
        yield "no jitter", scenario, replace(disturbed, jitter=0.0, runs=1)
    if deployment.graph_mixing and deployment.runtime.launch == "graph" and fabrics:
        yield "NCCL_GRAPH_MIXING_SUPPORT=0", scenario.unmixed, disturbed
    for words, links in _links(fabrics):
        request = replace(scenario.request, links=(*scenario.request.links, *links.items()))
        yield words, resolve(request), disturbed


def _links(fabrics: Sequence[Fabric]) -> Iterator[tuple[str, dict[str, float]]]:
    """Name links that a plan's messages pass, with other bandwidths."""
    inside = {fabric.link for fabric in fabrics if fabric.local > 1}
    for kind, words in (("nvlink", "NVLink"), ("pcie", "PCIe")):
        if any(kind == ("pcie" if link == "pcie" else "nvlink") for link in inside):
            yield f"{words} twice as fast", {kind: 2.0}
            yield f"{words} half as fast", {kind: 0.5}
    if any(fabric.network is not None for fabric in fabrics):
        yield "the network twice as fast", {NETWORK: 2.0}
        yield "one NIC fewer a host", {f"NIC0-{NETWORK}": 0.0}
