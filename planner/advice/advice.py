"""Why the first plan wins, what would change the order, and when fewer GPUs do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import hypot, inf, log2
from operator import itemgetter
from typing import Final

from planner.advice.notes import SAME_PERCENT, length_notes, throughput_note, variable_notes
from planner.advice.remedies import Alternative, short_of, would_fit
from planner.models import unsupported
from planner.placement.placement import visible_devices
from planner.request.request import Objective, Request
from planner.runners.refusal import Refusal, refusal
from planner.runners.runners import closest, missed, runners
from planner.scenario.deployment import machine_of
from planner.scenario.scenario import Scenario
from planner.search.clients import Serving
from planner.search.estimate import PAIR_HALF_WIDTH, UNCERTAINTY, PlanEstimate, Splits, worded
from planner.search.evaluate import price
from planner.search.judging import judge
from planner.search.ranking import TIE, Ranking, hosts_in_words
from planner.strategies import parse_plan
from topology.base import counted, format_bytes, format_number, format_seconds
from topology.base.values import dataclass

REPLICA_GAIN: Final = 1.3
"""Copies of the model are worth a line when they serve this many times as many requests."""

MESSAGE_SHARE: Final = 0.1
"""Share of a step in messages above which they hold a plan up."""

MOST_FACTOR: Final = 4.0
"""A link would have to be this many times off before its order is not worth a line."""

SMALL_FACTOR: Final = 1.1
"""A factor below this is said in per cent."""

WORK: Final = "GPU-seconds (GPUs x s)"
"""Name and unit of what a result costs."""

LITTLE_GAIN: Final = 1.25
"""A doubling of the GPUs that gains less than this is not worth its price to everybody."""

WORTHWHILE_GAIN: Final = 1.1
"""Another plan is worth a line when it writes this many times as many tokens a second."""


def advice(
    scenario: Scenario,
    runnable: Ranking,
    refused: Sequence[Refusal],
    lead: PlanEstimate | None,
    instead: Sequence[Alternative] = (),
) -> Iterator[str]:
    """Yield sentences about a ranking, the most useful first.

    runnable : of the plans that what was chosen can run; `refused` are others that fit.
    lead : the one to run. instead : other requests that run.
    """
    if lead is None:
        yield from _why_nothing(scenario, runnable, refused, instead)
        return
    objective, served = scenario.request.objective, lead.serving is not None
    peers = [plan for plan in runnable.plans if plan.gpus == lead.gpus]
    yield from _seating_note(scenario, lead)
    yield from _altered_links_note(scenario, lead)
    rivals = [plan for plan in peers if plan is not lead]
    under_load = served and (scenario.request.loaded or objective != "latency")
    if served:
        yield from compared(lead, rivals, scenario.request)
    exchange_pair = None if served else _exchange_pair(scenario, peers)
    if rivals and objective == "latency" and not under_load:
        yield _why_first(lead, rivals[0], exchange_pair)
        yield from _sensitivity_note(lead, rivals)
    elif rivals and not under_load:
        yield _objective_gain(lead, rivals[0], objective)
    yield from (f"{lead.plan}: {note}" for note in lead.notes)
    if not under_load:
        yield from _fewer_gpus(scenario, lead, runnable)
    yield from length_notes(scenario)
    if not served:
        yield from _peers_note(scenario, peers)
        yield from _exchange_note(exchange_pair, lead, rivals)
        yield from _replicas_note(lead, peers, objective)
        yield from throughput_note(scenario.model.kind, scenario.request.batch, lead.gpus)
    yield from _decode_note(scenario, lead)
    yield from variable_notes(scenario, lead)


def _why_nothing(
    scenario: Scenario,
    ranking: Ranking,
    refused: Sequence[Refusal],
    instead: Sequence[Alternative],
) -> Iterator[str]:
    """Yield why there is nothing to run, layers, memory or engines, and what would help."""
    missing_layers = list(unsupported(scenario.model))
    if missing_layers:
        yield from missing_layers
        return
    missed_times = missed(ranking.rejected, scenario.request)
    if missed_times:
        yield missed_times
        return
    gpus = counted(scenario.request.gpus, "GPU")
    remedy = would_fit(scenario, short_of(ranking), known=instead)
    if not instead and remedy.startswith("would"):
        remedy += ", were there something to run it"
    if refused:
        yield f"nothing that is known runs these plans; {remedy}"
        return
    yield f"no plan of {gpus} can run; {remedy}"
    short_plans = [row for row in ranking.rejected if row.short is not None]
    if short_plans:
        yield closest(short_plans)


def difference(first: PlanEstimate, second: PlanEstimate) -> tuple[float, float]:
    """Return the seconds that the second plan is slower, and half the interval around them.

    Parts that the two share cancel, and so do their errors; what is left beside is measured.
    """
    longest = max(first.latency_s, second.latency_s)
    half_width = hypot(
        second.half_width_of(_part_differences(first, second)), PAIR_HALF_WIDTH * longest
    )
    return second.latency_s - first.latency_s, half_width


def _part_differences(first: PlanEstimate, second: PlanEstimate) -> dict[str, float]:
    """Give how much slower each part of the second plan is."""
    names = first.breakdown_s.keys() | second.breakdown_s.keys()
    return {n: second.breakdown_s.get(n, 0.0) - first.breakdown_s.get(n, 0.0) for n in names}


def too_close(first: PlanEstimate, second: PlanEstimate) -> bool:
    """Whether the difference of two plans lies within what is known of it."""
    seconds, half = difference(first, second)
    return abs(seconds) <= half


def _why_first(first: PlanEstimate, second: PlanEstimate, turned: "Turned | None") -> str:
    gain = second.latency_s / first.latency_s - 1
    if too_close(first, second):
        caveat = f"{_uncertainty(first, second)}; measure both"
        if turned is not None and turned.between(first, second):
            caveat = f"but {turned.why}; measure both, or {turned.remedy}"
        return (
            f"{first.plan} and {second.plan} are too close to call: {100 * gain:.1f} % apart, "
            f"{caveat}"
        )
    differences = _part_differences(first, second)
    name = max(differences, key=lambda part: differences[part])
    first_time, second_time = (
        format_seconds(p.breakdown_s.get(name, 0.0)) for p in (first, second)
    )
    reason = f"less time in {worded(name)} ({first_time} against {second_time})"
    return f"{first.plan} is {100 * gain:.1f} % faster than {second.plan}: {reason}"


def _uncertainty(first: PlanEstimate, second: PlanEstimate) -> str:
    """Say what blurs the difference of two plans most, and by how much."""
    differences = _part_differences(first, second)
    half_widths = {
        name: second.half_width_of({name: seconds}) for name, seconds in differences.items()
    }
    name = max(half_widths, key=lambda part: half_widths[part])
    if half_widths[name] <= PAIR_HALF_WIDTH * max(first.latency_s, second.latency_s):
        return f"and the model is good to {100 * PAIR_HALF_WIDTH:.1f} %"
    basis = second.known[name]
    basis_text = f"{basis.name.lower()}, ± {100 * UNCERTAINTY[basis]:.0f} %"
    return f"less than the model can tell of {worded(name)} ({basis_text})"


def _objective_gain(first: PlanEstimate, second: PlanEstimate, objective: Objective) -> str:
    """Say why the first plan wins by another objective than latency."""
    if objective == "throughput":
        gain = _gain(first.throughput_per_s / second.throughput_per_s, "as many", "more")
        return f"{first.plan} serves {gain} requests a second {_than(gain)} {second.plan}"
    if objective == "memory":
        memory_texts = [format_bytes(plan.memory_bytes) for plan in (first, second)]
        return f"{first.plan} needs {memory_texts[0]} a GPU, {second.plan} {memory_texts[1]}"
    costs = [f"{plan.gpu_seconds:.3g}" for plan in (first, second)]
    return f"{first.plan} takes {costs[0]} {WORK} per result, {second.plan} {costs[1]}"


def _gain(factor: float, equal: str, more: str) -> str:
    """Say a factor above one: small ones as a share.

    >>> _gain(1.6, "as fast", "faster"), _gain(1.05, "as fast", "faster")
    ('1.60 times as fast', '5 % faster')
    """
    if factor >= SMALL_FACTOR:
        return f"{factor:.2f} times {equal}"
    return f"{100 * (factor - 1):.2g} % {more}"


def _than(gain: str) -> str:
    return "as" if "times" in gain else "than"


def _sensitivity_note(first: PlanEstimate, rivals: list[PlanEstimate]) -> Iterator[str]:
    """Say at what factor on communication or attention another plan would come first.

    That none does is said of an order that there is: not of two plans too close to call.
    """
    flips = []
    for name, word in (("communication_exposed", "communication"), ("attention", "attention")):
        for rival in rivals:
            factor = _break_even(first, rival, name)
            if factor is not None and factor != 1 and 1 / MOST_FACTOR < factor < MOST_FACTOR:
                flips.append((abs(factor - 1), factor, word, rival))
    if not flips:
        if not too_close(first, rivals[0]):
            yield (
                "the order holds if communication or attention are off by up to "
                f"{MOST_FACTOR:g} times"
            )
        return
    _, factor, word, rival = min(flips, key=lambda flip: flip[0])
    size, direction = max(factor, 1 / factor), "slower" if factor > 1 else "faster"
    size_text = f"{size:.2g} times" if size >= SMALL_FACTOR else f"{100 * (size - 1):.2g} %"
    yield f"{rival.plan} would come first if {word} were {size_text} {direction} than modelled"


def _break_even(first: PlanEstimate, rival: PlanEstimate, name: str) -> float | None:
    """Give the factor on a part at which two plans take the same time; None for none."""
    part = rival.breakdown_s.get(name, 0.0) - first.breakdown_s.get(name, 0.0)
    factor = -(rival.latency_s - first.latency_s - part) / part if part else 0.0
    return factor if factor > 0 else None


def _seating_note(scenario: Scenario, first: PlanEstimate) -> Iterator[str]:
    """Say which GPUs of a machine the plan uses, and in which order."""
    placement, subset = first.placement, scenario.deployment.subset
    if placement is None or subset is None:
        return
    from planner.placement.seating import pairs_of  # noqa: PLC0415  # only machines need it

    count = len(subset.machine.gpus)
    if placement.devices == tuple(range(count)):
        return
    groups = ", ".join(pairs_of(first.plan, placement.devices))
    gpu_numbers = ",".join(map(str, placement.devices))
    instruction = (
        f"use GPUs {gpu_numbers} of {count}" if len(placement.devices) < count else "order the GPUs"
    )
    caveat = "" if placement.exact else ", the best of the orders that were tried"
    yield (
        f"{instruction}: "
        f"{visible_devices(placement.devices)}{f' ({groups})' if groups else ''}{caveat}"
    )


def _altered_links_note(scenario: Scenario, first: PlanEstimate) -> Iterator[str]:
    """Say what links that are not as usual cost a plan, and which of their GPUs it leaves out."""
    request, subset, placement = scenario.request, scenario.deployment.subset, first.placement
    if not request.links or subset is None:
        return
    usual_machine = machine_of(
        replace(request, links=tuple((name, 1.0) for name, _ in request.links))
    )
    assert usual_machine is not None
    usual_subset = usual_machine.on(scenario.deployment.gpus, request.nodes)
    usual_scenario = replace(scenario, deployment=replace(scenario.deployment, subset=usual_subset))
    usual_s = price(usual_scenario.on(first.gpus), first.plan).latency_s
    percent = 100 * (first.latency_s / usual_s - 1)
    altered_ends = {end for name, times in request.links if times < 1 for end in name.split("-")}
    used_gpus = range(first.gpus) if placement is None else placement.devices
    spared_gpus = [
        g.name
        for n, g in enumerate(subset.machine.gpus)
        if n not in used_gpus and g.name in altered_ends
    ]
    spared_text = (
        f"; {', '.join(spared_gpus)} {'are' if len(spared_gpus) > 1 else 'is'} left out"
        if spared_gpus
        else ""
    )
    alone = " for a request by itself" if first.serving is not None else ""
    if abs(percent) < SAME_PERCENT:
        yield f"the altered links cost {first.plan} nothing{spared_text}"
        return
    yield (
        f"with the altered links {first.plan} takes {format_seconds(first.latency_s)}{alone}, with "
        f"usual ones {format_seconds(usual_s)}: {abs(percent):.1f} % "
        f"{'more' if percent > 0 else 'less'}{spared_text}"
    )


def _peers_note(scenario: Scenario, plans: Sequence[PlanEstimate]) -> Iterator[str]:
    """Say what peer access over PCIe decides, which differs between servers of the same cards."""
    hardware = scenario.deployment.hardware
    if hardware.link == "pcie" and scenario.deployment.subset is None:
        yield from (_peers_assumed if hardware.peer_to_peer else _no_peers_assumed)(scenario, plans)


def _peers_assumed(scenario: Scenario, plans: Sequence[PlanEstimate]) -> Iterator[str]:
    """Say of GPUs taken with peer access that without it the first plan is not the fastest."""
    first, silent_plans = plans[0], [plan for plan in plans if not plan.exposed_s]
    for silent_plan in silent_plans[:1] if first.exposed_s else []:
        seconds = _peer_latency_s(scenario, first, on=False)
        if seconds > silent_plan.latency_s:
            yield (
                "peer access between GPUs assumed, which some servers of these cards have not "
                f"(nvidia-smi topo -p2p r): there {first.plan} takes {format_seconds(seconds)}, "
                f"and {silent_plan.plan} {format_seconds(silent_plan.latency_s)} as here"
            )


def _no_peers_assumed(scenario: Scenario, plans: Sequence[PlanEstimate]) -> Iterator[str]:
    """Say of GPUs taken without peer access that with it a plan would beat all of these."""
    talking_plans = [plan for plan in plans if plan.exposed_s and not plan.unproven]
    timed_plans = [(_peer_latency_s(scenario, plan, on=True), plan) for plan in talking_plans]
    best = (1 - TIE) * min(plan.latency_s for plan in plans)
    for seconds, plan in sorted(timed_plans, key=lambda pair: pair[0])[:1]:
        if seconds < best:
            yield (
                f"{scenario.deployment.hardware.without_peers}; with it {plan.plan} takes "
                f"{format_seconds(seconds)}, not {format_seconds(plan.latency_s)}"
            )


def _peer_latency_s(scenario: Scenario, plan: PlanEstimate, *, on: bool) -> float:
    """Price a plan on GPUs that have peer access over PCIe, or have none."""
    deployment = scenario.deployment
    hardware = replace(deployment.hardware, peer_to_peer=on, no_peers="")
    changed_scenario = replace(scenario, deployment=replace(deployment, hardware=hardware))
    return price(changed_scenario, plan.plan).latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """Two plans whose order depends on how fast GPUs of a node exchange over PCIe.

    exchanging, other : the plans. gpus : that exchange.
    """

    exchanging: PlanEstimate
    other: PlanEstimate
    gpus: int

    def between(self, first: PlanEstimate, second: PlanEstimate) -> bool:
        """Whether it is about these two plans."""
        return {first.plan, second.plan} == {self.exchanging.plan, self.other.plan}

    @property
    def why(self) -> str:
        """Say what differs."""
        return (
            f"how fast {self.gpus} GPUs exchange over PCIe differs up to five times between "
            f"servers of one kind"
        )

    @property
    def remedy(self) -> str:
        """Say what tells the two apart."""
        return (
            "measure alltoall_perf and give its bus bandwidth in a [[measured]] table of --topology"
        )


def _exchange_pair(scenario: Scenario, plans: Sequence[PlanEstimate]) -> Turned | None:
    """Find plans that servers with twice or half the pace of exchanges over PCIe turn round."""
    exchanges = [(plan, _exchanged_over_pcie(scenario, plan)) for plan in plans]
    exchanging = next(((plan, gpus) for plan, gpus in exchanges if gpus), None)
    other = next((plan for plan, gpus in exchanges if not gpus), None)
    if exchanging is None or other is None:
        return None
    first, gpus = exchanging
    exposed_s = first.exposed_s
    order_turns = first.latency_s - exposed_s / 2 < other.latency_s < first.latency_s + exposed_s
    return Turned(exchanging=first, other=other, gpus=gpus) if order_turns else None


def _exchange_note(
    turned: Turned | None, lead: PlanEstimate, rivals: Sequence[PlanEstimate]
) -> Iterator[str]:
    """Say which plans may change places on other servers, where `_why_first` has not said so."""
    if turned is None:
        return
    if not any(turned.between(lead, rival) and too_close(lead, rival) for rival in rivals[:1]):
        yield (
            f"{turned.exchanging.plan} and {turned.other.plan} may change places: {turned.why}; "
            f"{turned.remedy}"
        )


def _exchanged_over_pcie(scenario: Scenario, plan: PlanEstimate) -> int:
    """Count the GPUs of a node that exchange over PCIe where nobody measured how fast; 0 for none.

    Two GPUs share no part of a host's tree.
    """
    placement = plan.placement
    fabrics = placement.fabrics if placement else scenario.deployment.fabrics(plan.plan)
    group = fabrics.get("ulysses") if plan.plan.degree("ulysses") > 1 else None
    unmeasured_pcie = group is not None and group.link == "pcie" and not group.paces
    return group.local if group is not None and unmeasured_pcie and group.local > 2 else 0


def _replicas_note(
    lead: PlanEstimate, peers: list[PlanEstimate], objective: Objective
) -> Iterator[str]:
    """Say when copies of the model serve more requests a second than the plan."""
    copies = [plan for plan in peers if plan.plan.degree("dp") > 1]
    if not copies or objective != "latency":
        return
    best = max(copies, key=lambda plan: plan.throughput_per_s)
    gain = best.throughput_per_s / lead.throughput_per_s
    if gain >= REPLICA_GAIN:
        yield (
            f"for throughput use {best.plan.degree('dp')} replicas: {best.plan} serves "
            f"{gain:.2f} times as many requests a second, each in "
            f"{format_seconds(best.latency_s)}"
        )


def _fewer_gpus(scenario: Scenario, lead: PlanEstimate, runnable: Ranking) -> Iterator[str]:
    """Say when fewer GPUs are as fast, or much cheaper."""
    smaller = [best for best in runnable.scaling if best.gpus < lead.gpus]
    if not smaller or scenario.request.objective in ("memory", "cost"):
        return
    largest_smaller = max(smaller, key=lambda best: best.gpus)
    host_words = {best.gpus: hosts_in_words(scenario.deployment, best.gpus) for best in smaller}
    if scenario.request.objective == "throughput":
        gain = _gain(lead.throughput_per_s / largest_smaller.throughput_per_s, "as many", "more")
        comparison = f"{_than(gain)} {largest_smaller.gpus}{host_words[largest_smaller.gpus]}"
        yield f"{lead.gpus} GPUs serve {gain} requests a second {comparison}"
        return
    fast_enough = [best for best in smaller if best.latency_s <= lead.latency_s * (1 + TIE)]
    yield (
        _as_fast_note(lead, fast_enough, host_words)
        if fast_enough
        else _last_gpus_gain(lead, largest_smaller, host_words[largest_smaller.gpus])
    )


def _as_fast_note(
    first: PlanEstimate, fast_enough: list[PlanEstimate], where: Mapping[int, str]
) -> str:
    """Name the fewest GPUs that are about as fast as any, and `where` so many are."""
    fastest = min(fast_enough, key=lambda best: best.latency_s)
    nearly_fastest = [
        best for best in fast_enough if best.latency_s <= fastest.latency_s * (1 + TIE)
    ]
    fewest = min(nearly_fastest, key=lambda best: best.gpus)
    slowdown = first.latency_s / fewest.latency_s
    verdict = (
        f"take {slowdown:.2f} times as long"
        if slowdown > 1 + TIE
        else f"gain less than {100 * TIE:.0f} %"
    )
    return (
        f"use {counted(fewest.gpus, 'GPU')}{where[fewest.gpus]}: {fewest.plan} takes "
        f"{format_seconds(fewest.latency_s)}, and {first.gpus} {verdict}"
    )


def _last_gpus_gain(first: PlanEstimate, smaller: PlanEstimate, host_words: str) -> str:
    """Say what the last GPUs gain, and what they cost."""
    factor = smaller.latency_s / first.latency_s
    gain = _gain(factor, "as fast", "faster")
    full_cost, smaller_cost = first.gpu_seconds, smaller.gpu_seconds
    share = 100 * (full_cost / smaller_cost - 1)
    change = f"{abs(share):.0f} % {'more' if share > 0 else 'fewer'}"
    change = change if abs(share) >= SAME_PERCENT else "no more"
    rival = f"{smaller.gpus}{host_words} ({smaller.plan}, {format_seconds(smaller.latency_s)})"
    if factor < LITTLE_GAIN ** log2(first.gpus / smaller.gpus):
        return (
            f"{first.gpus} GPUs gain little over {rival}: {gain}, at {full_cost:.3g} "
            f"{WORK} per result against {smaller_cost:.3g} ({change})"
        )
    return f"{first.gpus} GPUs are {gain} {_than(gain)} {rival} and take {change} {WORK} per result"


def _decode_note(scenario: Scenario, first: PlanEstimate) -> Iterator[str]:
    """Offer a parallel VAE decode, where engines have one and it would show."""
    vae = scenario.model.vae
    share = first.stages_s.get("vae_decode", 0.0) / first.latency_s
    if vae is None or not vae.parallel or first.gpus == 1 or first.plan.vae > 1 or share < TIE:
        return
    split_decode = price(scenario, replace(first.plan, vae=first.gpus))
    if split_decode.latency_s < first.latency_s and not refusal(scenario, split_decode.plan):
        yield (
            f"the VAE decode on one GPU is {100 * share:.0f} % of the time; split over all "
            f"({split_decode.plan}) the whole takes {format_seconds(split_decode.latency_s)}"
        )


def compared(lead: PlanEstimate, rivals: Sequence[PlanEstimate], request: Request) -> Iterator[str]:
    """Say what the plan to run does under load, beside the next, and what would write more."""
    lead_serving = lead.serving
    if lead_serving is None:
        return
    yield f"{lead.plan} {_serving_words(lead_serving)}"
    served_rivals = [(rival, rival.serving) for rival in rivals if rival.serving is not None]
    if served_rivals and (request.loaded or request.objective != "latency"):
        rival, rival_serving = served_rivals[0]
        yield f"next comes {rival.plan}, which {_serving_words(rival_serving)}"
        return
    busiest = max(served_rivals, key=lambda pair: pair[1].tokens_per_s, default=None)
    if (
        busiest is not None
        and busiest[1].tokens_per_s > WORTHWHILE_GAIN * lead_serving.tokens_per_s
    ):
        factor = busiest[1].tokens_per_s / lead_serving.tokens_per_s
        yield (
            f"for throughput use {busiest[0].plan}: {factor:.2f} times as many tokens/s, "
            f"{_latency(busiest[1])}"
        )


def in_pieces(scenario: Scenario, runnable: Ranking) -> Iterator[str]:
    """Say that PipeFusion would be faster, where messages hold plans up and something runs it.

    It makes another image than the model does, so that it is offered and never taken.

    scenario : as asked, whose engine may be open.
    """
    request, gpus, plans = scenario.request, scenario.deployment.gpus, runnable.plans
    uncut_axes = {"dp", "pp"}  # axes that make no step shorter
    split_plans = (
        p for p in plans if p.gpus == gpus > 1 and uncut_axes.isdisjoint(dict(p.plan.axes))
    )
    held_by_messages = any(
        plan.exposed_s > MESSAGE_SHARE * plan.latency_s for plan in islice(split_plans, 1)
    )
    if scenario.model.kind != "diffusion" or request.objective != "latency" or not held_by_messages:
        return
    half_pieces = [f"cfg2.pipefusion{gpus // 2}"] if gpus > 2 and gpus % 2 == 0 else []
    piece_plans = {text: parse_plan(text) for text in (f"pipefusion{gpus}", *half_pieces)}
    judgements = [
        (judge(runner, plan), runner.deployment, text)
        for runner in runners(scenario)
        for text, plan in piece_plans.items()
        if not refusal(runner, plan)
    ]
    timed_runs = [
        (run.latency_s, runner, text)
        for run, runner, text in judgements
        if isinstance(run, PlanEstimate)
    ]
    seconds, runner, text = min(
        timed_runs, key=itemgetter(0), default=(inf, scenario.deployment, "")
    )
    if seconds < (1 - TIE) * min(plan.latency_s for plan in (*plans, *runnable.scaling)):
        yield (
            f"if an image near the model's own will do, PipeFusion takes {format_seconds(seconds)} "
            f"with {runner.title}: --plan {text} --engine {runner.name}"
        )


def disaggregation(splits: Splits | None, lead: PlanEstimate | None) -> Iterator[str]:
    """Say what workers for prompts and others that decode do, beside one plan; where asked for."""
    if splits is None:
        return
    best = splits.best
    if best is None or best.serving is None:
        yield f"no two pools of workers: {splits.reason}"
        return
    gain, comparison = splits.gain(lead), ""
    if gain is not None and lead is not None:
        percent = f"{100 * abs(gain - 1):.0f}"
        gain_text = f"{percent} % {'more' if gain > 1 else 'fewer'} tokens/s than"
        comparison = f", {'as many tokens/s as' if percent == '0' else gain_text} {lead.plan}"
        comparison += _pools_doubt(gain, best, lead)
    yield f"{best.name} {_serving_words(best.serving)}{comparison}"


def _pools_doubt(gain: float, best: PlanEstimate, lead: PlanEstimate) -> str:
    """Say of two pools that they may write no more than a plan, and what their first token costs.

    The tokens/s of both are about as well known as those of the plan.
    """
    lead_serving, pool_serving = lead.serving, best.serving
    if (
        lead_serving is None
        or pool_serving is None
        or abs(gain - 1) > (half_width := lead_serving.half_width("tokens_per_s"))
    ):
        return ""
    ttft_texts = (format_seconds(served.ttft.mean) for served in (pool_serving, lead_serving))
    return (
        f": too close to call, tokens/s are known to ± {100 * half_width:.0f} %; TTFT is "
        f"{' against '.join(ttft_texts)}"
    )


def _serving_words(serving: Serving) -> str:
    return (
        f"writes {format_number(serving.tokens_per_s_per_gpu)} tokens/s a GPU, {_latency(serving)}"
    )


def _latency(serving: Serving) -> str:
    request_count = max(1, round(serving.concurrency))
    return (
        f"TTFT {format_seconds(serving.ttft.mean)} and TPOT {format_seconds(serving.tpot.mean)} "
        f"with {counted(request_count, 'request')} at once"
    )
