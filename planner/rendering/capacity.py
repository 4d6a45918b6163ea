"""A capacity plan as people read it: a table, a document, a page with curves."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from planner.fleet.answers import (
    GROWTH,
    Answer,
    Capacity,
    Fleet,
    Scaled,
    Together,
    by_rate,
    curve,
    words,
)
from planner.fleet.demand import HOURS, Demand, Prices
from planner.plan_charts import host, memory, timelines
from planner.plan_table import bases
from planner.rendering.plot import plot
from planner.request.quantities import PERIODS
from planner.search.clients import wanted_of
from topology.base import (
    counted,
    format_bytes,
    format_interval,
    format_number,
    format_seconds,
    one_line,
)
from topology.base.chart import Axis, Series, curves
from topology.base.table import Drawing, Part, Said, Table, Title, Typed
from topology.catalogue import find_hardware
from topology.machine import machine_of

COST: Final = ("an hour", "per 1000")
ASSUMPTIONS: Final = (
    "requests come at random, and in the order in which they come each takes the next free place "
    "of a replica; each replica serves one demand"
)
UNPACKED_REASON: Final = "more ways to fill a node than are looked through"
MANY_VALUE: Final = 10**9  # above which nobody counts digits
UNPRICED_NOTE: Final = (
    "kinds of GPUs are compared by their number, not their price: --price FILE tells it, such as "
    "examples/prices.toml"
)
BAR: Final = 24
YEAR: Final = 365.25
LATEST_DAYS: Final = 100 * 365
"""Days from now that a month is named for."""
UNITS: Final = ("s", "min", "h", "day")
AXIS: Final = "the axis of rates is logarithmic, the label in between is the rate asked for"
RATE_TOLERANCE: Final = 2.0**-30  # rounding of rates


def headlines(capacity: Capacity) -> Iterator[str]:
    """Say what the best fleets take in all."""
    if not capacity.met:
        unmet_names = [answer.demand.name for answer in capacity.answers if not answer.fleets]
        yield f"not met: {', '.join(unmet_names)}"
        return
    cost_text = _hourly_text(capacity.cost_per_hour, capacity.prices)
    yield f"{counted(capacity.gpus, 'GPU')} in all{cost_text}"


def asked(demand: Demand) -> str:
    """Say what is asked for."""
    name, model = demand.name, demand.request.model_name
    rate = _rate_text(demand.rate_per_s, unit_of(demand.rate_per_s), digits=6)
    slo_text = f"{percentage(demand.share)} within {format_seconds(demand.slo_s)}"
    slo_texts = [slo_text] if math.isfinite(demand.slo_s) else []
    target_words = [*slo_texts, *wanted_of(demand.request).words()]
    subject = name if name == model else f"{name}: {model}"
    return ", ".join([subject, rate, *target_words, *_reserve_words(demand)])


def _reserve_words(demand: Demand) -> Iterator[str]:
    """Say what a fleet is to have beside what the rate needs."""
    if demand.spare:
        yield f"a {demand.spare} to spare"
    if demand.headroom:
        yield f"{percentage(demand.headroom)} headroom"


def fleets(answer: Answer, capacity: Capacity) -> Table:
    """Make a row of each fleet, the best one first."""
    any_priced = any(fleet.cost_per_hour is not None for fleet in answer.fleets)
    in_time = f"{percentage(answer.demand.share)} in"
    head = [
        "hardware", "plan", "at once", "replicas", "GPUs", "nodes", "service", in_time, "busy",
        "at most", "basis", *(COST if any_priced else ()),
    ]  # fmt: skip
    rows = [_fleet_row(fleet, capacity, priced=any_priced) for fleet in answer.fleets]
    return Table(head=head, rows=rows, align="<<>", indent=2)


def _fleet_row(fleet: Fleet, capacity: Capacity, *, priced: bool) -> list[str]:
    service, half_width = fleet.estimate.latency_s, fleet.estimate.half_width_s
    cells = [
        fleet.estimate.hardware, str(fleet.estimate.plan), str(fleet.batch), f"{fleet.replicas:,}",
        f"{fleet.gpus:,}", f"{fleet.nodes:,}", format_interval(service, half_width),
        format_seconds(fleet.response_s), _load_percent(fleet.utilisation),
        _rate_text(fleet.most_rate_per_s, unit_of(fleet.demand.rate_per_s)),
        fleet.estimate.basis.name.lower(),
    ]  # fmt: skip
    if priced:
        cells += [
            _money_text(fleet.cost_per_hour, capacity.prices),
            _money_text(fleet.cost_per_thousand, capacity.prices),
        ]
    return cells


def _money_text(value: float | None, prices: Prices | None) -> str:
    currency = prices.currency if prices else ""
    return "-" if value is None else f"{_number_text(value, 4)} {currency}".rstrip()


def _hourly_text(cost: float | None, prices: Prices | None) -> str:
    return "" if cost is None else f", {_money_text(cost, prices)} an hour"


def _number_text(value: float, digits: int = 3) -> str:
    """Write a number in so many digits, or all before the point where there are more.

    >>> _number_text(4.1666), _number_text(123.4), _number_text(1234567.0), _number_text(1234.5, 4)
    ('4.17', '123', '1,234,567', '1,234')
    """
    as_integer = 10 ** (digits - 1) <= abs(value) < MANY_VALUE
    return f"{value:,.0f}" if as_integer else f"{value:,.{digits}g}"


def percentage(share: float) -> str:
    """Write a share in as many digits as tell it from all.

    >>> percentage(0.95), percentage(0.999999999)
    ('95 %', '99.9999999 %')
    """
    roundings = (f"{100 * share:.{digits}g}" for digits in (6, 9, 12, 15, 16, 17))
    return f"{next(text for text in roundings if share >= 1 or float(text) < 100)} %"


def _load_percent(part: float) -> str:
    """Write how much of all places is taken, which is never all of them.

    >>> _load_percent(0.62), _load_percent(0.998), _load_percent(0.001)
    ('62 %', '> 99 %', '< 1 %')
    """
    if part > 0.995:
        return "> 99 %"
    return "< 1 %" if part < 0.005 else f"{100 * part:.0f} %"


def growth(answer: Answer, capacity: Capacity) -> Table:
    """Make a row of each fleet with the GPUs, and the money, that other rates take."""
    demand = answer.demand
    unit = unit_of(demand.rate_per_s)
    head = [
        "rate",
        *(f"x{times:g}: {_rate_text(times * demand.rate_per_s, unit)}" for times in GROWTH),
    ]
    rows = [
        [fleet.name, *(_gpus_and_cost(scaled, capacity) for scaled in fleet.growth.values())]
        for fleet in answer.fleets
    ]
    if demand.growth_per_month:
        months = [demand.months_to(times) for times in GROWTH]
        rows.append(
            [
                "month",
                *(
                    "-" if month_count is None else _month_text(month_count)
                    for month_count in months
                ),
            ]
        )
    return Table(head=head, rows=rows, align="<>", indent=2)


def _gpus_and_cost(scaled: Scaled | None, capacity: Capacity) -> str:
    if scaled is None:
        return "-"
    cost = scaled.cost_per_hour
    cost_text = "" if cost is None else f", {_money_text(cost, capacity.prices)}"
    return f"{counted(scaled.gpus, 'GPU')}{cost_text}"


def _month_text(months: float) -> str:
    """Write the month that is so many from now."""
    days = round(months * YEAR / 12)
    return "-" if days > LATEST_DAYS else f"{datetime.now(UTC).date() + timedelta(days):%Y-%m}"


def day(answer: Answer, capacity: Capacity) -> Drawing:
    """Draw the load of each hour of the day against what the best fleet takes in time."""
    best, unit = answer.fleets[0], unit_of(answer.demand.rate_per_s)
    most_rate = best.most_rate_per_s
    hours = [
        (
            _rate_text(scaled.rate_per_s, unit),
            _load_percent(scaled.rate_per_s / most_rate),
            _gpus_and_cost(scaled, capacity),
            scaled.rate_per_s,
        )
        for scaled in best.hours
    ]
    rows = [
        [f"{hour:02}", rate, load_text, gpus_text, "█" * round(BAR * per_s / most_rate)]
        for hour, (rate, load_text, gpus_text, per_s) in enumerate(hours)
    ]
    load_points = [
        (float(hour), per_s, f"{hour:02}:00, {rate}, {load_text}; {gpus_text} would do")
        for hour, (rate, load_text, gpus_text, per_s) in enumerate([*hours, hours[0]])
    ]
    most_text = f"{_rate_text(most_rate, unit)}, all that {best.name} takes in time"
    axes = (
        Axis(title="hour of the day", write="{:g}".format, unit=HOURS / 4),
        Axis(title="rate", write=lambda rate: _rate_text(rate, unit), unit=1 / PERIODS[unit]),
    )
    series = [
        Series(name="asked", points=load_points, shape="steps"),
        Series(
            name=most_text, points=[(hour, most_rate, "at most") for hour in (0.0, float(HOURS))]
        ),
    ]
    head = ["hour", "rate", "load", "would do", ""]
    return Drawing(
        title=f"Load by the hour; a full bar is {most_text}",
        lines=Table(head=head, rows=rows, align=">>>><", indent=2).text().splitlines(),
        svg=curves("Load over the day", series, axes, None),
    )


def _why_not_fewer(fleet: Fleet) -> Iterator[str]:
    """Say why a smaller fleet fails."""
    smaller, demand = fleet.smaller, fleet.demand
    unit = unit_of(demand.rate_per_s)
    if not smaller.replicas:
        yield from [f"fewer GPUs will not do: {smaller.reason}"] if smaller.reason else []
        return
    rate = _rate_text(demand.planned_per_s, unit)
    replicas = f"{counted(smaller.replicas, 'replica')} of {smaller.plan}"
    failure = f"{replicas} on {counted(smaller.gpus, 'GPU')} will not do"
    if math.isfinite(smaller.response_s):
        response_text = format_seconds(smaller.response_s)
        yield f"{failure}: at {rate} {percentage(demand.share)} take up to {response_text}"
    elif demand.request.arrivals:
        yield f"{failure}: it does not keep up with the trace"
    else:
        in_time = "" if fleet.serving is None else " in time"
        yield f"{failure}: at most {_rate_text(smaller.most_rate_per_s, unit)} of {rate}{in_time}"


def _node_loss_words(fleet: Fleet) -> Iterator[str]:
    """Say what clients see when a node is lost, and what to do for them to see less of it."""
    loss, unit = fleet.node_lost, unit_of(fleet.demand.rate_per_s)
    if loss is None:
        return
    loss_text = (
        f"a node that is lost takes {loss.replicas_lost} of {counted(fleet.replicas, 'replica')}"
    )
    if not loss.replicas_left:
        yield f"{loss_text}, and nobody is served: {_stand_by_words(loss.spare_replicas_needed)}"
        return
    times = [
        f"{name} {format_seconds(value)}" for name, value in loss.response_percentiles_s.items()
    ]
    if loss.serving is not None:
        first, later = loss.serving.ttft.p99, loss.serving.tpot.p99
        times.append(f"p99 of TTFT {format_seconds(first)}, of TPOT {format_seconds(later)}")
    effect_text = f"a request then takes {', '.join(times)}" if times else "requests then pile up"
    if loss.in_time:
        yield f"{loss_text}: {effect_text}, in time"
        return
    remedies = [_stand_by_words(loss.spare_replicas_needed)]
    if loss.most_rate_per_s:
        remedies.append(f"let in at most {_rate_text(loss.most_rate_per_s, unit)}")
    yield f"{loss_text}: {effect_text}, too late: {' or '.join(remedies)}"


def _stand_by_words(replicas: int) -> str:
    setting = 'spare = "node" in a file for --demand'
    return f"let {counted(replicas, 'replica')} stand by on another node ({setting})"


def _client_words(fleet: Fleet, prices: Prices | None) -> Iterator[str]:
    """Say what clients of a language model see."""
    serving = fleet.serving
    if serving is not None:
        yield (
            f"then TTFT {format_seconds(serving.ttft.mean)} (p99 "
            f"{format_seconds(serving.ttft.p99)}), TPOT {format_seconds(serving.tpot.mean)} and "
            f"{format_number(serving.tokens_per_s * fleet.needed)} tokens/s"
        )
    if fleet.cost_per_million_tokens is not None:
        yield f"{_money_text(fleet.cost_per_million_tokens, prices)} per million tokens written"


def _answer_notes(answer: Answer, prices: Prices | None) -> Iterator[str]:
    if answer.fleets:
        best = answer.fleets[0]
        yield f"set up {words(best)}"
        yield from _client_words(best, prices)
        times = (f"{name} {format_seconds(value)}" for name, value in best.percentiles_s.items())
        bound_by = best.estimate.bound_by
        yield f"a request takes {', '.join(times)}, waiting included; bound by {bound_by}"
        yield f"known: {bases(best.estimate)}"
        yield from _why_not_fewer(best)
        yield from _node_loss_words(best)
        yield (
            f"the GPUs draw at most {_number_text(best.power_w / 1000)} kW, "
            f"{_number_text(best.energy_per_thousand_kwh)} kWh a thousand requests; of memory "
            f"{format_bytes(best.memory_free_bytes)} are free on the fullest"
        )
    unit = unit_of(answer.demand.rate_per_s)
    for rate, name in answer.break_even:
        yield f"above {_rate_text(rate, unit)} {name} is the best"
    unpriced = [fleet.estimate.hardware for fleet in answer.fleets if fleet.cost_per_hour is None]
    if prices is not None and unpriced:
        yield f"no price for {', '.join(unpriced)}: the fewest GPUs come first"
    yield from filter(None, map(_risk_note, answer.fleets))
    yield from filter(None, map(_peer_assumption, answer.fleets))
    for name, reason in answer.without:
        yield f"{name}: {reason}"


def _risk_note(fleet: Fleet) -> str:
    """Say that requests could be late, if each takes as long as its interval allows."""
    half_width, limit = fleet.estimate.half_width_s, fleet.demand.slo_s
    if fleet.response_s + half_width <= limit:
        return ""
    response = format_interval(fleet.response_s, half_width)
    name = fleet.estimate.hardware
    return f"{name} could miss {format_seconds(limit)}: {response} of a request"


def _peer_assumption(fleet: Fleet) -> str:
    """Say that GPUs of a replica that talk are taken without peer access."""
    estimate = fleet.estimate
    if not estimate.exposed_s:
        return ""
    assumption = find_hardware(estimate.hardware).without_peers
    return f"{estimate.hardware}: {assumption}" if assumption else ""


def parts(capacity: Capacity) -> Iterator[Part]:
    """Say everything that ``planner capacity`` does."""
    yield from (Title(text=line, level=1) for line in headlines(capacity))
    for answer in capacity.answers:
        yield Title(text=asked(answer.demand))
        if answer.fleets:
            yield fleets(answer, capacity)
        yield Said(lines=[*_answer_notes(answer, capacity.prices)], indent=2)
        yield from _launch_parts(answer)
        if answer.fleets:
            yield from ("", growth(answer, capacity))
            if answer.demand.hours_per_s:
                yield day(answer, capacity)
            name = answer.fleets[0].estimate.hardware
            title = f"GPUs of {name} by rate; {AXIS}"
            yield Drawing(title=title, lines=_rate_plot(answer))
            yield from _charts(answer)
            yield host(machine_of(find_hardware(name)))
    if (shared_nodes := capacity.shared) is not None:
        yield Title(text=_shared_headline(shared_nodes, capacity))
        yield together(shared_nodes)
    elif len(capacity.answers) > 1 and capacity.met:
        yield from ("", f"all demands on the same nodes: {UNPACKED_REASON}")
    source = capacity.prices.source if capacity.prices else ""
    prices = f"; prices: {one_line(source)}" if source else ""
    yield from ("", f"taken as given: {ASSUMPTIONS}{prices}")
    if capacity.prices is None and any(len(answer.fleets) > 1 for answer in capacity.answers):
        yield UNPRICED_NOTE


def _shared_headline(shared: Together, capacity: Capacity) -> str:
    """Say what demands take on nodes that they share, and what each takes on its own."""
    prices = capacity.prices
    together_text = f"{counted(shared.gpus, 'GPU')}{_hourly_text(shared.cost_per_hour, prices)}"
    apart_text = (
        f"{counted(shared.gpus_apart, 'GPU')}{_hourly_text(shared.cost_per_hour_apart, prices)}"
    )
    return f"all demands on the same whole nodes: {together_text}; each on its own: {apart_text}"


def together(shared: Together) -> Table:
    """Make a row of the nodes that hold the same replicas."""
    rows = [
        [
            f"{node.count:,}",
            node.hardware,
            ", ".join(f"{n} x {name}" for name, n in node.holds.items()),
        ]
        for node in shared.nodes
    ]
    return Table(head=["nodes", "hardware", "replicas on each"], rows=rows, align="><<", indent=2)


def _launch_parts(answer: Answer) -> Iterator[Part]:
    """Say what to type for each replica of the best fleet."""
    launch = answer.fleets[0].launch if answer.fleets else None
    if launch is not None:
        yield Said(lines=[f"each replica with {launch.engine}:"], indent=2)
        yield Typed(line=launch.line, indent=4)
    if launch is not None and answer.fleets[0].exported:
        request = answer.demand.request
        advice = f", and no known engine runs {request.model_name} as asked"
        if request.engine or request.runtime:
            advice = ": leave --engine and --runtime out to count engines"
        yield Said(lines=[f"{answer.fleets[0].exported}{advice}"], indent=2)


def _rate_plot(answer: Answer) -> list[str]:
    points, requested_rate = curve(answer.fleets[0]), answer.demand.rate_per_s
    unit = unit_of(requested_rate)
    rate_ends = (_rate_text(points[0][0], unit), _rate_text(points[-1][0], unit))
    rate_label = (requested_rate, _rate_text(requested_rate, unit))
    return plot({"GPUs": points}, rate_ends, between=rate_label, width=48, height=12).splitlines()


def unit_of(per_second: float) -> str:
    """Choose the time that a rate is of: the shortest that has a whole number of requests.

    >>> [unit_of(rate) for rate in (5.0, 0.5, 1.5, 20 / 3600, 1.2345, 1e-9)]
    ['s', 'min', 'min', 'h', 's', 'day']
    """
    counts = [(unit, per_second * PERIODS[unit]) for unit in UNITS]
    countable = [(unit, count) for unit, count in counts if count > 1 - RATE_TOLERANCE]
    whole_units = [
        unit for unit, count in countable if abs(count - round(count)) < RATE_TOLERANCE * count
    ]
    return next(iter([*whole_units, *(unit for unit, _ in countable)]), "day")


def _rate_text(per_second: float, unit: str, digits: int = 3) -> str:
    return f"{_number_text(per_second * PERIODS[unit], digits)}/{unit}"


def _charts(answer: Answer) -> list[Part]:
    """Draw the GPUs of each fleet by rate, its latency against its cost, and its memory."""
    unit = unit_of(answer.demand.rate_per_s)
    plans = [fleet.estimate for fleet in answer.fleets]
    drawings = [
        by_rate(answer, lambda rate: _rate_text(rate, unit)),
        _cost_chart(answer),
        timelines(plans),
        memory(plans),
    ]
    return [Drawing(svg=svg) for svg in drawings if svg]


def _cost_chart(answer: Answer) -> str:
    """Draw what each fleet costs, or how many GPUs it has, against how soon requests are done."""
    all_priced = all(fleet.cost_per_hour is not None for fleet in answer.fleets)
    cost_axis = Axis(title="cost an hour" if all_priced else "GPUs", write=_number_text)
    in_time = f"within which {percentage(answer.demand.share)} are done"
    series = []
    for fleet in answer.fleets:
        cost = fleet.cost_per_hour if all_priced and fleet.cost_per_hour is not None else fleet.gpus
        point_text = f"{format_seconds(fleet.response_s)}, {_number_text(cost)} {cost_axis.title}"
        series.append(Series(name=fleet.name, points=[(fleet.response_s, cost, point_text)]))
    axes = (Axis(title=in_time, write=format_seconds), cost_axis)
    return curves("Cost of a fleet against its latency", series, axes, None)
