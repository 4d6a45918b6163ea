"""Every quantity in the code is a plain number in SI units; these names say which.

Text such as ``"3.35 TB/s"`` or ``"64KiB"`` is read once, at the edge.
"""

import math
import re
from typing import Final, NewType

from topology.base.errors import InputError

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", float)
BytesPerSecond = NewType("BytesPerSecond", float)
FlopPerSecond = NewType("FlopPerSecond", float)

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

_PREFIXES: Final = {
    "p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
SLOWEST_LINK: Final = 1e6  # B/s
FASTEST_LINK: Final = 1e15  # B/s

_NUMBER: Final = r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)"


def number_in(text: str) -> float:
    """Read a number in plain digits; `float` takes the digits of all scripts, and ``1_0``.

    >>> number_in(" 2.5 "), number_in("-1e3")
    (2.5, -1000.0)
    >>> number_in("1_0")
    Traceback (most recent call last):
    ValueError: could not convert string to float: '1_0'
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"could not convert string to float: {text[:40]!r}")
    return float(text)


def parse(text: str, unit: str) -> float:
    """Read a quantity written in `unit`, allowing an SI or binary prefix.

    text : a number, an optional prefix and `unit`, with or without a space.
    unit : what the number is of: ``"B"``, ``"B/s"``, ``"FLOP/s"``, ``"s"``, ``"Hz"``, ``"1"`` ...

    Raises InputError if `text` is anything else.

    >>> parse("3.35 TB/s", "B/s")
    3350000000000.0
    >>> parse("80GiB", "B") == 80 * 2**30
    True
    >>> parse("132", "1")
    132.0
    >>> parse("400 Gbit/s", "B/s")
    Traceback (most recent call last):
    topology.base.errors.InputError: '400 Gbit/s' is not a quantity in B/s
    """
    suffix = "" if unit == "1" else re.escape(unit)
    match = re.fullmatch(rf"{_NUMBER}\s*([a-zA-Z]{{0,2}}?){suffix}", text.strip())
    if match is None or match[2] not in _PREFIXES or (unit == "1" and match[2]):
        raise InputError(f"{text!r} is not a quantity in {unit}")
    value = float(match[1]) * _PREFIXES[match[2]]
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not a finite quantity in {unit}")
    return value


def parse_rate(text: str) -> BytesPerSecond:
    """Read a bandwidth in bytes, or in bits as people say it of networks.

    >>> parse_rate("400 Gbit/s") == parse_rate("400Gb/s") == parse_rate("50 GB/s") == 50e9
    True

    Raises InputError if it is no bandwidth, or one that no link has.
    """
    trimmed = text.strip()[:40]
    match = re.fullmatch(rf"{_NUMBER}\s*([TGM])(?:bit/s|bps|b/s)", trimmed)
    value = parse(f"{match[1]} {match[2]}B/s", "B/s") / 8 if match else parse(trimmed, "B/s")
    if not SLOWEST_LINK <= value <= FASTEST_LINK:
        raise InputError(f"{trimmed!r}: wanted a bandwidth from 1 MB/s to 1000 TB/s")
    return BytesPerSecond(value)


def parse_bytes(text: str) -> Bytes:
    """Read a message or memory size; a bare number counts bytes, ``K M G`` without B are binary.

    nccl-tests reads ``-b 8M`` as 8 * 2**20 bytes, and so do we; ``8MB`` stays decimal.

    >>> parse_bytes("8M") == parse_bytes("8MiB") == 8388608
    True
    >>> parse_bytes("8MB")
    8000000.0
    >>> parse_bytes("512")
    512.0
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([KMGT]?)", text.strip())
    if match is None:
        return Bytes(parse(text, "B"))
    prefix = f"{match[2]}i" if match[2] else ""
    return Bytes(parse(f"{match[1]} {prefix}B", "B"))


def format_bytes(value: float) -> str:
    """Write a size with a binary prefix, three digits.

    >>> format_bytes(80 * 2**30), format_bytes(1536), format_bytes(12)
    ('80 GiB', '1.5 KiB', '12 B')
    """
    for name, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value) >= size:
            return f"{_digits(value / size)} {name}"
    return f"{_digits(value)} B"


def format_number(value: float, half: float = 0.0) -> str:
    """Write a number for people, three digits and all before the point; and half its interval.

    >>> format_number(1024.0), format_number(12.34), format_number(0.0312), format_number(99.96)
    ('1,024', '12.3', '0.0312', '100')
    >>> format_number(1024.0, 81.9)
    '1,024 ± 82'
    """
    number = f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
    return f"{number} ± {_half(half)}" if half else number


def _half(half: float) -> str:
    """Write half an interval, two digits and all before the point."""
    return f"{half:.2g}" if half < 99.5 else f"{half:,.0f}"


def format_seconds(value: float) -> str:
    """Write a time with the unit a person would choose, three digits.

    >>> format_seconds(37.8), format_seconds(0.00123), format_seconds(2.5e-6)
    ('37.8 s', '1.23 ms', '2.5 us')
    """
    for name, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size:
            return f"{_digits(value / size)} {name}"
    return f"{_digits(value * 1e9)} ns"


def format_interval(value: float, half: float) -> str:
    """Write a time and half the interval around it, both in the unit of the time.

    >>> format_interval(3.721, 0.298), format_interval(0.05, 0.0123)
    ('3.72 s ± 0.3', '50 ms ± 12')
    >>> format_interval(1200.0, 99.7)
    '1,200 s ± 100'
    """
    size = next(size for size in (1.0, 1e-3, 1e-6, 0.0) if value >= size) or 1e-9
    return f"{format_seconds(value)} ± {_half(half / size)}"


def counted(number: int, what: str) -> str:
    """Write a number of things.

    >>> counted(1, "GPU"), counted(2000, "node")
    ('1 GPU', '2,000 nodes')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
