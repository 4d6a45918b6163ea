"""What would change a plan's time, and what to do where a rank or a link is not as it should be."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from planner.request.plan import Plan
from planner.request.request import FASTEST
from planner.scenario.scenario import Scenario, resolve
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import seated
from planner.search.judging import judge
from planner.simulation.disturbances import USUAL_ORDER, Disturbances, ranks_named
from planner.simulation.instead import Instead, instead
from planner.simulation.sequences import evened
from planner.simulation.simulation import Simulation, simulated_stages_s
from topology.base import InputError, format_seconds
from topology.base.table import Table
from topology.base.values import dataclass
from topology.catalogue import Fabric
from topology.machine.alterations import NETWORK


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A change, and the seconds of a request with it."""

    change: str
    latency_s: float


def what_if(scenario: Scenario, simulation: Simulation, disturbed: Disturbances) -> list[WhatIf]:
    """Run it again with one thing changed at a time; what gains most is first.

    Of what may be done instead, what gains.
    """
    plan = simulation.estimate.plan
    disturbed_runs = [*_run_changes(_changes(scenario, plan, disturbed))]
    alternatives = _run_changes(instead(scenario, plan, disturbed))
    gaining = [
        alternative for alternative in alternatives if alternative.latency_s < simulation.latency_s
    ]
    return sorted([*disturbed_runs, *gaining], key=lambda run: run.latency_s)


def _run_changes(changes: Iterable[Instead]) -> Iterator[WhatIf]:
    """Run what fits, on a GPU of another kind too, and is not too large to be run."""
    for words, scenario, plan, disturbed in changes:
        estimate = judge(scenario, plan)
        if isinstance(estimate, PlanEstimate):
            with suppress(InputError):
                stages_s = simulated_stages_s(scenario, estimate, disturbed)
                yield WhatIf(change=words, latency_s=sum(stages_s.values()))


def what_if_table(simulation: Simulation, changes: Sequence[WhatIf]) -> Table:
    """Put changes beside the plan as it ran."""
    usual = simulation.latency_s
    rows = [
        [run.change, format_seconds(run.latency_s), f"{100 * (run.latency_s / usual - 1):+.1f} %"]
        for run in changes
    ]
    return Table(head=("what if", "time", "change"), rows=rows, indent=2)


def _changes(scenario: Scenario, plan: Plan, disturbed: Disturbances) -> Iterator[Instead]:
    deployment = seated(scenario, plan)
    fabrics = [links for axis, links in deployment.fabrics(plan).items() if axis != "dp"]
    for words, disturbance in _undisturbed(disturbed, plan):
        yield words, scenario, plan, disturbance
    if even_scenario := evened(scenario, plan):
        yield "even sequences", even_scenario, plan, disturbed
    if deployment.graph_mixing and deployment.runtime.launch == "graph" and fabrics:
        yield "NCCL_GRAPH_MIXING_SUPPORT=0", scenario.unmixed, plan, disturbed
    times_of = dict(scenario.request.links)
    restored = (
        (f"{name} as usual", name, 1.0) for name, factor in times_of.items() if factor != 1.0
    )
    scaled = (
        (words, name, factor * times_of.get(name, 1.0))
        for words, name, factor in _link_changes(fabrics, times_of)
    )
    for words, name, factor in (*restored, *scaled):
        if factor <= FASTEST:
            request = replace(scenario.request, links=tuple({**times_of, name: factor}.items()))
            yield words, resolve(request), plan, disturbed


def _undisturbed(disturbed: Disturbances, plan: Plan) -> Iterator[tuple[str, Disturbances]]:
    """Take away what disturbs ranks and links, one thing at a time."""
    if not disturbed.even and plan.gpus > plan.degree("dp"):
        yield "all GPUs equally fast", replace(disturbed, even=True)
    if disturbed.jitter:
        yield "no jitter", replace(disturbed, jitter=0.0, runs=1)
    if disturbed.slow:
        yield f"{ranks_named(disturbed.slow)} as fast as others", replace(disturbed, slow={})
    if disturbed.paused:
        yield f"no pause of {ranks_named(disturbed.paused)}", replace(disturbed, paused={})
    if disturbed.mixed:
        yield f"{ranks_named(disturbed.mixed)} on the GPU of others", replace(disturbed, mixed={})
    if disturbed.order != USUAL_ORDER:
        yield f"tokens in {USUAL_ORDER} order", replace(disturbed, order=USUAL_ORDER)
    for name in disturbed.traffic:
        other_traffic = {other: part for other, part in disturbed.traffic.items() if other != name}
        yield f"no traffic on {name}", replace(disturbed, traffic=other_traffic)


def _link_changes(
    fabrics: Sequence[Fabric], given: Mapping[str, float]
) -> Iterator[tuple[str, str, float]]:
    """Name links that a plan's messages pass, and times the bandwidth that they have now.

    given : what is said of links already; of NICs the first that is not down is named.
    """
    inside = {fabric.link for fabric in fabrics if fabric.local > 1}
    for kind, words in (("nvlink", "NVLink"), ("pcie", "PCIe")):
        if any(kind == ("pcie" if link == "pcie" else "nvlink") for link in inside):
            yield f"{words} twice as fast", kind, 2.0
            yield f"{words} half as fast", kind, 0.5
    networks = [fabric.network for fabric in fabrics if fabric.network is not None]
    if networks:
        yield "the network twice as fast", NETWORK, 2.0
    if any(network.nics > 1 for network in networks):
        ports = (f"NIC{number}-{NETWORK}" for number in count())
        yield "one NIC fewer a host", next(port for port in ports if given.get(port, 1.0)), 0.0
