"""Files that `planner capacity` reads: demands and prices, in TOML."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast, get_args

from planner.fleet.demand import FLEET_FIELDS, HOUR, HOURS, Demand, Prices, Spare
from planner.request.lengths import read_requests, text_at
from planner.request.quantities import read_rate, read_time
from planner.request.request import UNMODELLED, Request
from planner.scenario.keywords import request_of
from planner.search.clients import wanted_of
from topology.base import (
    InputError,
    content,
    counted,
    csv_of,
    decoded_text,
    number_in,
    shown,
    toml_of,
    unknown,
)
from topology.catalogue import find_hardware

MOST: Final = 2**20
"""Bytes of a file."""
USUAL_PERCENTILE: Final = 95.0
FEWEST_REQUESTS: Final = 2
"""Requests of a trace that have a rate."""
LONGEST_NAME: Final = 60
LONGEST_CURRENCY: Final = 16
MOST_MONEY: Final = 10**6
MOST_RATE: Final = 10**9
"""Requests a second."""
MOST_HOURS: Final = 24 * 366
FASTEST_GROWTH: Final = 10
"""Share of the rate a month."""
DEMANDS: Final = "[[demand]] with model, rate and slo"
PRICES: Final = "[gpu_hour] with a price for one or more kinds of GPU"
PRICE_TABLES: Final = ("gpu_hour", "node_hour")
_FLEET_OPTIONS: Final = ("percentile", "hours", *FLEET_FIELDS)
_SIZE_OPTIONS: Final = (
    "height", "width", "frames", "steps", "input_tokens", "output_tokens", "text_tokens", "batch",
    "precision", "kv_precision", "runtime", "engine", "offload", "profile", "slo_ttft", "slo_tpot",
    "ttft_percentile", "tpot_percentile", "chunk", "prefix_hit", "spread", "burst",
    "arrivals", "lengths", "speculative", "draft", "acceptance",
)  # fmt: skip
OPTIONS: Final = (*_FLEET_OPTIONS, *_SIZE_OPTIONS)
"""What may be said of a demand beside its model, rate and time."""
_DEMAND_KEYS: Final = ("name", "model", "rate", "slo", *OPTIONS)


def text_of(source: str, what: str, wanted: str) -> str:
    """Read the file of an option, which is to hold what is wanted of it."""
    try:
        return decoded_text(content(source, MOST), source)
    except InputError as error:
        reason = str(error).removeprefix(f"{source}: ")
        hint = "" if "wanted" in reason else f"; wanted {wanted}, in TOML"
        raise InputError(f"--{what} {source[:60]}: {reason}{hint}") from None


def prices_of(source: str, hardware: Sequence[str]) -> Prices | None:
    """Read what GPUs cost an hour: a file of prices, or a number for the only kind there is.

    >>> prices_of("1.9", ["h100-sxm"]).gpu_hour
    {'h100-sxm': 1.9}
    """
    if not source:
        return None
    try:
        price = number_in(source)
    except ValueError:
        return read_prices(text_of(source, "price", PRICES), Path(source).name)
    if len(hardware) != 1:
        complaint = f"one number for {counted(len(hardware), 'kind')} of GPU"
        raise InputError(f"price: got {complaint}, wanted one kind, or a file with {PRICES}")
    kind = find_hardware(hardware[0]).name
    return Prices(currency="", gpu_hour={kind: _positive_below("price", price, MOST_MONEY)})


def read_share(percentile: object) -> float:
    """Read the percentage of requests that are to be done in time."""
    return _positive_below("percentile", percentile, 100) / 100


def _positive_below(field: str, value: object, most: int) -> float:
    """Read a number above nothing and below the most there may be."""
    number = cast("float", value) if type(value) in (int, float) else 0.0
    if not 0 < number < most:
        raise InputError(f"{field}: got {shown(value)}, wanted more than 0 and less than {most:,}")
    return float(number)


def demand_of(name: str, model: str, rate: str, slo: str, options: Mapping[str, object]) -> Demand:
    """Build a demand from what is written of it.

    rate : empty beside `arrivals` or `hours`. slo : may be empty where tokens of a language model
    are wanted within a time. options : sizes, a `percentile` and what is said of a fleet.
    """
    sizes = {key: value for key, value in options.items() if key not in _FLEET_OPTIONS}
    request = request_of(model, 1, sizes)
    hours = read_hours(options["hours"]) if "hours" in options else ()
    if bool(rate) + bool(request.arrivals) + bool(hours) != 1:
        other_sources = " and ".join(name for name in ("arrivals", "hours") if options.get(name))
        complaint = f"one beside {other_sources}" if rate else other_sources or "none"
        raise InputError(
            f"rate: got {complaint}, wanted a rate such as 0.5/min, or arrivals, or hours"
        )
    if not slo and not wanted_of(request):
        raise InputError("slo: got none, wanted a time such as 60s, or slo_ttft or slo_tpot")
    busiest = max(hours) if hours else read_rate(rate) if rate else _trace_rate(request)
    return Demand(
        name=name,
        request=request,
        rate_per_s=_positive_below("rate", busiest, MOST_RATE),
        slo_s=read_time("slo", slo) if slo else math.inf,
        share=read_share(options.get("percentile", USUAL_PERCENTILE)),
        spare=_spare_of(options.get("spare", "")),
        headroom=_share_from_zero("headroom", options.get("headroom", 0), 1),
        hours_per_s=hours,
        growth_per_month=_share_from_zero(
            "growth_per_month", options.get("growth_per_month", 0), FASTEST_GROWTH
        ),
    )


def _spare_of(value: object) -> Spare:
    for choice in get_args(Spare):
        if isinstance(value, str) and value == choice:
            return cast("Spare", choice)
    raise InputError(f"spare: got {shown(value)}, wanted 'replica' or 'node', that may fail")


def _share_from_zero(field: str, value: object, most: int) -> float:
    """Read a share that may be nothing."""
    return (
        0.0 if type(value) in (int, float) and value == 0 else _positive_below(field, value, most)
    )


def read_hours(source: object) -> tuple[float, ...]:
    """Read the requests of each hour of a day, or of several, as requests a second of 24 hours.

    source : numbers, or the path of a CSV file with a column `requests` and a line for each hour.
    Of several days the busiest counts, hour by hour.

    >>> read_hours([3600] * 23 + [7200] + [1800] * 24)[22:]
    (1.0, 2.0)
    """
    values = _request_column(str(source)) if isinstance(source, str | Path) else source
    if not isinstance(values, Sequence) or not values or len(values) % HOURS:
        complaint = counted(len(values), "hour") if isinstance(values, Sequence) else shown(values)
        raise InputError(f"hours: got {complaint}, wanted requests of 24 hours, or a CSV file")
    counts = [_hour_requests(value, number) for number, value in enumerate(values, 1)]
    too_few = max(counts) < 1 / MOST_RATE
    if too_few or len(counts) > MOST_HOURS:
        complaint = "no requests" if too_few else counted(len(counts), "hour")
        raise InputError(
            f"hours: got {complaint}, wanted some requests in at most {MOST_HOURS:,} hours"
        )
    return tuple(max(counts[hour::HOURS]) / HOUR for hour in range(HOURS))


def _request_column(path: str) -> list[str]:
    """Read the column of requests of a CSV file."""
    columns, rows = csv_of(text_at("hours", path, MOST, "a CSV file"))
    if "requests" not in columns:
        raise InputError(f"hours: {path[:60]}: got no column requests, wanted one")
    return [row["requests"] for row in rows]


def _hour_requests(value: object, number: int) -> float:
    try:
        count = number_in(value) if isinstance(value, str) else value
    except ValueError:
        count = None
    if type(count) not in (int, float) or not 0 <= cast("float", count) < MOST_RATE * HOUR:
        raise InputError(f"hours: got {shown(value)} in hour {number}, wanted requests, from 0")
    return float(cast("float", count))


def _trace_rate(request: Request) -> float:
    """Count the requests a second of a trace, by the gaps between them."""
    _, trace = read_requests(request)
    if len(trace) < FEWEST_REQUESTS or not trace[-1][0]:
        raise InputError(
            f"arrivals: got {counted(len(trace), 'request')} over no time, wanted more"
        )
    return (len(trace) - 1) / trace[-1][0]


def read_demands(text: str, name: str, profile: str = "") -> list[Demand]:
    r"""Read demands from TOML `text`; the caller does the file I/O.

    profile : a calibration profile, for each demand that names none.

    >>> text = 'percentile = 90\n[[demand]]\nmodel = "flux"\nrate = "1/s"\nslo = "5s"\n'
    >>> [(demand.name, demand.share) for demand in read_demands(text, "demand.toml")]
    [('flux', 0.9)]
    """
    document = _toml_document(text, name, DEMANDS)
    rows = document.get("demand")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{name}: got no [[demand]], wanted one or more")
    for key in document:
        if key not in ("demand", "percentile"):
            raise InputError(f"{name}: got {shown(key)}, wanted [[demand]] and percentile")
    defaults = {"percentile": document.get("percentile", USUAL_PERCENTILE), "profile": profile}
    demands = [_demand_of_row(row, number, defaults, name) for number, row in enumerate(rows, 1)]
    _check_names([demand.name for demand in demands], name)
    return demands


def _check_names(names: Sequence[str], file: str) -> None:
    """Refuse demands that nobody could tell apart."""
    for number, name in enumerate(names, 1):
        first_number = names.index(name) + 1
        if first_number < number:
            raise InputError(
                f"{file}, demand {number}: name: got {shown(name)}, which is that of demand "
                f"{first_number}, wanted another"
            )


def _demand_of_row(
    row: Mapping[str, object], number: int, defaults: Mapping[str, object], name: str
) -> Demand:
    location = f"{name}, demand {number}"
    for key in row:
        if key in UNMODELLED:
            raise InputError(f"{location}: {key}: {UNMODELLED[key]}")
        if key not in _DEMAND_KEYS:
            raise InputError(f"{location}: {unknown('key', key, _DEMAND_KEYS)}")
    for key in ("model", "rate", "slo"):
        if not isinstance(row.get(key, None if key == "model" else ""), str):
            raise InputError(f"{location}: {key}: got {shown(row.get(key))}, wanted a text")
    model = str(row["model"])
    options = {key: value for key, value in {**defaults, **row}.items() if key in OPTIONS}
    name = _one_line(row["name"], f"{location}: name", LONGEST_NAME) if "name" in row else model
    try:
        rate, slo = str(row.get("rate", "")), str(row.get("slo", ""))
        return demand_of(name, model, rate, slo, options)
    except InputError as error:
        raise InputError(f"{location}: {error}") from None


def _one_line(value: object, field: str, longest: int) -> str:
    """Read the name of a demand or a currency: a text of one line."""
    line = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(line) <= longest or not line.isprintable():
        raise InputError(
            f"{field}: got {shown(value)}, wanted a text of one line, 1 to {longest} characters"
        )
    return line


def read_prices(text: str, name: str) -> Prices:
    r"""Read what GPUs cost an hour from TOML `text`; the caller does the file I/O.

    >>> read_prices('currency = "EUR"\n[gpu_hour]\nh100-sxm = 2.5\n', "prices.toml").gpu_hour
    {'h100-sxm': 2.5}
    """
    document = _toml_document(text, name, PRICES)
    for key in document:
        if key not in (keys := ("currency", "source", *PRICE_TABLES)):
            raise InputError(f"{name}: {unknown('key', key, keys)}")
    gpus, nodes = (_prices_per_hour(document.get(key, {}), key, name) for key in PRICE_TABLES)
    if not gpus and not nodes:
        raise InputError(f"{name}: got no [gpu_hour], wanted a price for one or more kinds of GPU")
    for kind in gpus.keys() & nodes.keys():
        raise InputError(f"{name}: {kind}: got a price of a GPU and one of a node, wanted one")
    source = document.get("source", "")
    if not isinstance(source, str):
        raise InputError(f"{name}: source: got {shown(source)}, wanted a text")
    currency = document.get("currency")
    return Prices(
        currency=""
        if currency is None
        else _one_line(currency, f"{name}: currency", LONGEST_CURRENCY),
        gpu_hour=gpus,
        node_hour=nodes,
        source=source.strip(),
    )


def _prices_per_hour(table: object, table_name: str, name: str) -> dict[str, float]:
    """Read the prices of a table by kind of hardware."""
    if not isinstance(table, dict):
        raise InputError(f"{name}: {table_name}: got {shown(table)}, wanted prices by kind of GPU")
    prices: dict[str, float] = {}
    for key, value in table.items():
        price = _positive_below(f"{name}: {key}", value, MOST_MONEY)
        try:
            kind = find_hardware(key).name
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        if kind in prices:
            raise InputError(f"{name}: {key}: got two prices for {kind}, wanted one")
        prices[kind] = price
    return prices


def _toml_document(text: str, name: str, expected: str) -> dict[str, object]:
    try:
        return toml_of(text)
    except InputError as error:
        raise InputError(f"{name}: no TOML: {error}; wanted {expected}") from None
