"""Rates and times of requests as people write them."""

import re
from typing import Final

from topology.base import InputError, number_in, parse, shown

PERIODS: Final = {"s": 1, "sec": 1, "min": 60, "h": 3600, "hour": 3600, "day": 86400}
_RATE: Final = re.compile(r"([0-9.eE+-]+)\s*/\s*([a-z]+)")
_TIME: Final = re.compile(r"([0-9.eE+-]+)\s*(min|h)")


def read_rate(text: str) -> float:
    """Read requests a second, such as ``0.5/min``.

    >>> read_rate("30/min"), read_rate("2 / s")
    (0.5, 2.0)
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or match[2] not in PERIODS:
        wanted = f"requests over a time ({', '.join(PERIODS)}), such as 0.5/min"
        raise InputError(f"rate: got {shown(text)}, wanted {wanted}")
    return _positive("rate", match[1], text) / PERIODS[match[2]]


def read_share(text: str) -> float:
    """Read a share, such as ``0.1`` or ``10%``; raises `ValueError` where it is no number.

    >>> read_share("10%"), read_share("0.05")
    (0.1, 0.05)
    """
    words = text.strip()
    if words.endswith("%"):
        return number_in(words.removesuffix("%")) / 100
    return number_in(words)


def read_time(what: str, text: str) -> float:
    """Read seconds, such as ``60s``, ``1.5 min`` or ``500 ms``.

    >>> read_time("slo", "1.5 min"), read_time("slo", "500 ms"), read_time("slo", "60s")
    (90.0, 0.5, 60.0)
    """
    match = _TIME.fullmatch(text.strip())
    if match is not None:
        return _positive(what, match[1], text) * PERIODS[match[2]]
    try:
        seconds = parse(text, "s")
    except InputError:
        seconds = 0.0
    if seconds <= 0:
        raise InputError(f"{what}: got {shown(text)}, wanted a time such as 60s or 1.5 min")
    return seconds


def _positive(field: str, number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError(f"{field}: got {shown(text)}, wanted more than 0")
    return value
