"""Files that `planner capacity` reads: demands and prices, in TOML."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from planner.fleet.fleet import Demand, Prices
from planner.request.lengths import read_requests
from planner.request.quantities import read_rate, read_time
from planner.request.request import UNMODELLED, Request
from planner.scenario.keywords import request_of
from planner.search.clients import wanted_of
from topology.base import (
    InputError,
    content,
    counted,
    decoded,
    number_in,
    shown,
    toml_of,
    unknown,
)
from topology.catalogue import find_hardware

MOST: Final = 2**20
"""Bytes of a file."""
SHARE: Final = 95.0
FEWEST: Final = 2
"""Requests of a trace that have a rate."""
LONGEST_NAME: Final = 60
LONGEST_CURRENCY: Final = 16
MOST_MONEY: Final = 10**6
MOST_RATE: Final = 10**9
"""Requests a second."""
DEMANDS: Final = "[[demand]] with model, rate and slo"
PRICES: Final = "[gpu_hour] with a price for one or more kinds of GPU"
_OWN: Final = ("name", "model", "rate", "slo", "percentile")
_SIZES: Final = (
    "height", "width", "frames", "steps", "input_tokens", "output_tokens", "text_tokens", "batch",
    "precision", "kv_precision", "runtime", "engine", "offload", "profile", "slo_ttft", "slo_tpot",
    "ttft_percentile", "tpot_percentile", "chunk", "prefix_hit", "spread", "burst",
    "arrivals", "lengths", "speculative", "draft", "acceptance",
)  # fmt: skip


def text_of(source: str, what: str, wanted: str) -> str:
    """Read the file of an option, which is to hold what is wanted of it."""
    try:
        return decoded(content(source, MOST), source)
    except InputError as error:
        why = str(error).removeprefix(f"{source}: ")
        more = "" if "wanted" in why else f"; wanted {wanted}, in TOML"
        raise InputError(f"--{what} {source[:60]}: {why}{more}") from None


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
        got = f"one number for {counted(len(hardware), 'kind')} of GPU"
        raise InputError(f"price: got {got}, wanted one kind, or a file with {PRICES}")
    kind = find_hardware(hardware[0]).name
    return Prices(currency="", gpu_hour={kind: _below("price", price, MOST_MONEY)})


def read_share(percentile: object) -> float:
    """Read the percentage of requests that are to be done in time."""
    return _below("percentile", percentile, 100) / 100


def _below(what: str, value: object, most: int) -> float:
    """Read a number above nothing and below the most there may be."""
    number = cast("float", value) if type(value) in (int, float) else 0.0
    if not 0 < number < most:
        raise InputError(f"{what}: got {shown(value)}, wanted more than 0 and less than {most:,}")
    return float(number)


def demand_of(name: str, model: str, rate: str, slo: str, options: Mapping[str, object]) -> Demand:
    """Build a demand from what is written of it; `options` are sizes and a `percentile`.

    slo : may be empty where tokens of a language model are wanted within a time.
    """
    sizes = {key: value for key, value in options.items() if key != "percentile"}
    request = request_of(model, 1, sizes)
    if bool(rate) == bool(request.arrivals):
        got = "one beside arrivals" if rate else "none"
        raise InputError(f"rate: got {got}, wanted a rate such as 0.5/min, or arrivals")
    if not slo and not wanted_of(request):
        raise InputError("slo: got none, wanted a time such as 60s, or slo_ttft or slo_tpot")
    return Demand(
        name=name,
        request=request,
        rate_per_s=_below("rate", read_rate(rate) if rate else _rate_of(request), MOST_RATE),
        slo_s=read_time("slo", slo) if slo else math.inf,
        share=read_share(options.get("percentile", SHARE)),
    )


def _rate_of(request: Request) -> float:
    """Count the requests a second of a trace, by the gaps between them."""
    _, trace = read_requests(request)
    if len(trace) < FEWEST or not trace[-1][0]:
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
    document = _document(text, name, DEMANDS)
    rows = document.get("demand")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{name}: got no [[demand]], wanted one or more")
    for key in document:
        if key not in ("demand", "percentile"):
            raise InputError(f"{name}: got {shown(key)}, wanted [[demand]] and percentile")
    usual = {"percentile": document.get("percentile", SHARE), "profile": profile}
    demands = [_demand(row, number, usual, name) for number, row in enumerate(rows, 1)]
    _check_names([demand.name for demand in demands], name)
    return demands


def _check_names(names: Sequence[str], file: str) -> None:
    """Refuse demands that nobody could tell apart."""
    for number, name in enumerate(names, 1):
        first = names.index(name) + 1
        if first < number:
            raise InputError(
                f"{file}, demand {number}: name: got {shown(name)}, which is that of demand "
                f"{first}, wanted another"
            )


def _demand(
    row: Mapping[str, object], number: int, usual: Mapping[str, object], name: str
) -> Demand:
    where = f"{name}, demand {number}"
    for key in row:
        if key in UNMODELLED:
            raise InputError(f"{where}: {key}: {UNMODELLED[key]}")
        if key not in (*_OWN, *_SIZES):
            raise InputError(f"{where}: {unknown('key', key, (*_OWN, *_SIZES))}")
    for key in ("model", "rate", "slo"):
        if not isinstance(row.get(key, None if key == "model" else ""), str):
            raise InputError(f"{where}: {key}: got {shown(row.get(key))}, wanted a text")
    model = str(row["model"])
    options = {
        key: value for key, value in {**usual, **row}.items() if key in (*_SIZES, "percentile")
    }
    name = _line(row["name"], f"{where}: name", LONGEST_NAME) if "name" in row else model
    try:
        rate, slo = str(row.get("rate", "")), str(row.get("slo", ""))
        return demand_of(name, model, rate, slo, options)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _line(value: object, what: str, longest: int) -> str:
    """Read a text that stands in a line beside others."""
    line = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(line) <= longest or not line.isprintable():
        raise InputError(
            f"{what}: got {shown(value)}, wanted a text of one line, 1 to {longest} characters"
        )
    return line


def read_prices(text: str, name: str) -> Prices:
    r"""Read what GPUs cost an hour from TOML `text`; the caller does the file I/O.

    >>> read_prices('currency = "EUR"\n[gpu_hour]\nh100-sxm = 2.5\n', "prices.toml").gpu_hour
    {'h100-sxm': 2.5}
    """
    document = _document(text, name, PRICES)
    table = document.get("gpu_hour")
    if not isinstance(table, dict) or not table:
        raise InputError(f"{name}: got no [gpu_hour], wanted a price for one or more kinds of GPU")
    for key in document:
        if key not in (keys := ("currency", "source", "gpu_hour")):
            raise InputError(f"{name}: {unknown('key', key, keys)}")
    source = document.get("source", "")
    if not isinstance(source, str):
        raise InputError(f"{name}: source: got {shown(source)}, wanted a text")
    money = document.get("currency")
    return Prices(
        currency="" if money is None else _line(money, f"{name}: currency", LONGEST_CURRENCY),
        gpu_hour=_gpu_hour(cast("dict[str, object]", table), name),
        source=source.strip(),
    )


def _gpu_hour(table: Mapping[str, object], name: str) -> dict[str, float]:
    prices: dict[str, float] = {}
    for key, value in table.items():
        price = _below(f"{name}: {key}", value, MOST_MONEY)
        try:
            kind = find_hardware(key).name
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        if kind in prices:
            raise InputError(f"{name}: {key}: got two prices for {kind}, wanted one")
        prices[kind] = price
    return prices


def _document(text: str, name: str, wanted: str) -> dict[str, object]:
    try:
        return toml_of(text)
    except InputError as error:
        raise InputError(f"{name}: no TOML: {error}; wanted {wanted}") from None
