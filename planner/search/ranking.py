"""Judge every plan of a request, and rank those that run; the others are kept beside."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.deployment import Deployment
from planner.scenario.scenario import Scenario
from planner.search.clients import Point, Serving, wanted_of
from planner.search.estimate import Outcome, PlanEstimate, Rejected
from planner.search.evaluate import Shared, price
from planner.search.judging import MANY_GPUS, Runs, any_plan, estimates, outcomes_on
from planner.search.plan_memory import least_bytes, usable_bytes
from planner.search.plans import objections
from topology.base import InputError, counted
from topology.base.values import dataclass

TIE: Final = 0.03
"""Fewer GPUs win when more gain less than this share of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Every plan of a request, judged.

    plans : that run, best first. by_gpus : the same in no order, by number of GPUs; of fewer
    GPUs than were asked for too. baseline : one GPU, priced whether or not it fits.
    frontier : of a language model that is served, the plans and concurrencies that no other beats
    in both the time of a token and tokens/s a GPU.
    """

    request: Request
    plans: tuple[PlanEstimate, ...]
    by_gpus: Mapping[int, Sequence[PlanEstimate]]
    rejected: tuple[Rejected, ...]
    baseline: PlanEstimate | None
    frontier: tuple[Point, ...] = ()

    @property
    def scaling(self) -> tuple[PlanEstimate, ...]:
        """The best plan at every number of GPUs."""
        return tuple(rank(row, self.request)[0] for row in self.by_gpus.values() if row)

    def asks(self, gpus: int) -> bool:
        """Whether plans of so many GPUs are an answer."""
        return _is_requested(gpus, self.request)

    def judged(
        self,
        by_gpus: Mapping[int, Sequence[PlanEstimate]],
        rejected: Iterable[Rejected],
        frontier: tuple[Point, ...],
    ) -> "Ranking":
        """Rank the same plans again, of which more is known."""
        return replace(
            self,
            by_gpus=by_gpus,
            plans=_ranked(by_gpus, self.request),
            rejected=tuple(rejected),
            frontier=frontier,
        )

    def only(self, keep: Callable[[Plan], bool]) -> "Ranking":
        """Rank some of the plans alone."""
        by_gpus = {
            gpus: [estimate for estimate in row if keep(estimate.plan)]
            for gpus, row in self.by_gpus.items()
        }
        return replace(self, by_gpus=by_gpus, plans=_ranked(by_gpus, self.request))


def search(scenario: Scenario, shared: Shared | None = None, runs: Runs = any_plan) -> Ranking:
    """Judge all plans of a request, and rank those that are legal and fit.

    runs : plans that can be run, which none that cannot replaces. Of other numbers of GPUs than
        were asked for the rest is left out where no answer needs it.
    """
    request, shared = scenario.request, shared or Shared()
    judged: dict[Plan, Outcome] = {}
    outcomes: dict[int, list[Outcome]] = {}
    for gpus in gpu_counts(scenario.deployment):
        judges_all = _is_requested(gpus, request) or _are_replicas(gpus, request)
        gpu_scenario = scenario.on(gpus)
        runs_here = runs if judges_all else _with_room(gpu_scenario, runs)
        outcomes[gpus] = list(
            outcomes_on(gpu_scenario, judged, shared, runs_here, others=judges_all)
        )
    by_gpus = {gpus: estimates(row) for gpus, row in outcomes.items()}
    illegal = any(objections(scenario.model, scenario.workload, Plan(), 1))
    return Ranking(
        request=request,
        plans=_ranked(by_gpus, request),
        by_gpus=by_gpus,
        rejected=_distinct_rejections(
            row for gpus, row in outcomes.items() if _is_requested(gpus, request)
        ),
        baseline=None if illegal else price(scenario, Plan(), shared),
    )


def _with_room(scenario: Scenario, runs: Runs) -> Runs:
    """Leave out plans that cannot fit whatever they do, where nobody asks for the reason."""
    usable = usable_bytes(scenario)
    return lambda plan: runs(plan) and least_bytes(scenario, plan.degree("dp")) <= usable


def _are_replicas(gpus: int, request: Request) -> bool:
    """Whether plans of so many GPUs are replicas of plans that are an answer."""
    return request.batch == 1 and request.gpus % gpus == 0


def _is_requested(gpus: int, request: Request) -> bool:
    """Whether plans of so many GPUs are an answer."""
    return request.at_most_gpus or gpus == request.gpus


def _ranked(
    by_gpus: Mapping[int, Sequence[PlanEstimate]], request: Request
) -> tuple[PlanEstimate, ...]:
    rows = (row for gpus, row in by_gpus.items() if _is_requested(gpus, request))
    return tuple(rank((estimate for row in rows for estimate in row), request))


def rank(estimates: Iterable[PlanEstimate], request: Request) -> list[PlanEstimate]:
    """Order plans by the objective; equal ones by fewer GPUs, then by latency, then by name.

    Those that nobody has told to be right stand behind all others.
    """
    ordered = sorted(
        estimates,
        key=lambda estimate: (
            estimate.unproven, goal(estimate, request), estimate.gpus, estimate.latency_s,
            str(estimate.plan),
        ),
    )  # fmt: skip
    if not request.at_most_gpus or not ordered:
        return ordered
    best = goal(ordered[0], request)
    tie_limit = best + TIE * abs(best)
    as_proven = (plan for plan in ordered if plan.unproven == ordered[0].unproven)
    tied = [plan for plan in as_proven if goal(plan, request) <= tie_limit]
    winner = min(tied, key=lambda plan: (plan.gpus, goal(plan, request)))
    return [winner, *[plan for plan in ordered if plan is not winner]]


def goal(estimate: PlanEstimate, request: Request) -> float:
    """Give what a request wants least of: seconds, bytes, GPU-seconds, or fewer results."""
    serving = estimate.serving
    match request.objective:
        case "latency":
            return seconds_of(estimate, request)
        case "throughput" if request.paced:
            return seconds_of(estimate, request)
        case "throughput":
            return -(estimate.throughput_per_s if serving is None else serving.tokens_per_s)
        case "memory":
            return estimate.memory_bytes
        case "cost" if serving is not None:
            return 1 / serving.tokens_per_s_per_gpu
        case "cost":
            return estimate.gpu_seconds


def seconds_of(estimate: PlanEstimate, request: Request) -> float:
    """Give the seconds of a result: the mean under the load that is asked for, or of one alone."""
    serving = estimate.serving
    return serving.request.mean if serving and request.loaded else estimate.latency_s


def _distinct_rejections(rows: Iterable[Iterable[Outcome]]) -> tuple[Rejected, ...]:
    """Keep one of the rows that say the same; a degree may be barred at several numbers of GPUs."""
    rejected = (outcome for row in rows for outcome in row if isinstance(outcome, Rejected))
    return tuple({(row.plan, row.reason): row for row in rejected}.values())


def gpu_counts(deployment: Deployment) -> list[int]:
    """List the GPUs that were asked for, and the smaller numbers that sit evenly on their hosts."""
    counts = counts_up_to(deployment.gpus, many=MANY_GPUS)
    return [
        count for count in counts if count == deployment.gpus or _sits_evenly(deployment, count)
    ]


def counts_up_to(gpus: int, many: int) -> list[int]:
    """List powers of two up to `gpus`, and divisors where these are not many.

    >>> counts_up_to(12, many=64), counts_up_to(96, many=64)
    ([1, 2, 3, 4, 6, 8, 12], [1, 2, 4, 8, 16, 32, 64, 96])
    """
    powers = {2**power for power in range(gpus.bit_length()) if 2**power <= gpus}
    divisors = range(1, gpus + 1) if gpus <= many else ()
    return sorted(powers | {gpus} | {count for count in divisors if gpus % count == 0})


def _sits_evenly(deployment: Deployment, count: int) -> bool:
    nodes = deployment.nodes
    try:
        smaller = deployment.on(count)
        if smaller.subset is None:
            host_gpus = deployment.gpus // (nodes or 1)
            smaller.hardware.island(count, smaller.nodes)
            return not nodes or count <= host_gpus or count % host_gpus == 0
    except InputError:
        return False
    return True


def hosts_in_words(deployment: Deployment, count: int) -> str:
    """Say the hosts of some of the GPUs of a deployment that do not fill theirs; empty elsewhere.

    >>> from planner.scenario.scenario import resolve
    >>> goal_distance = resolve(Request(model="flux.1-dev", gpus=16, nodes=16)).deployment
    >>> full = resolve(Request(model="flux.1-dev", gpus=16)).deployment
    >>> hosts_in_words(goal_distance, 8), hosts_in_words(full, 8)
    (' on 8 hosts', '')
    """
    gpus, hardware = deployment.gpus, deployment.hardware
    one_host = deployment.subset is not None or count == 1
    if one_host or gpus == deployment.hosts * hardware.gpus:
        return ""
    if hardware.island(gpus, deployment.nodes) == gpus:
        return ""
    return f" on {counted(deployment.on(count).hosts, 'host')}"


def near(rejected: Sequence[Rejected], request: Request) -> list[tuple[Rejected, Serving]]:
    """List the plans that run but miss what is wanted, with what they do, the nearest first."""
    near_misses = [(row, row.nearest) for row in rejected if row.nearest is not None]
    return sorted(
        near_misses, key=lambda pair: (goal_distance(pair[1], request), str(pair[0].plan))
    )


def goal_distance(served: Serving, request: Request) -> tuple[float, float]:
    """Say how far from what is wanted something is served: more is further."""
    excess = served.beyond(wanted_of(request))
    return (-served.requests_per_s if served.overloaded else -inf), excess
