"""What a profile may hold: names that mean something, and numbers that a machine can have."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import date
from typing import Final, TypeVar

from costmodels.collectives.curve import Curve
from costmodels.collectives.parameters import UNITS as CURVE_UNITS
from costmodels.kernels.parameters import (
    UNITS,
    AttentionParameters,
    MatmulParameters,
    PointwiseParameters,
)
from topology.base import InputError, one_line, shown, unknown

Read = TypeVar("Read")

MOST: Final[Mapping[str, int]] = {
    "1": 10**6, "s": 10**3, "B": 10**15, "B/s": 10**16, "FLOP/s": 10**19, "W": 10**5,
}  # fmt: skip
"""Beyond what any machine has, by unit."""
_EXPONENTS: Final[Mapping[str, int]] = {"power_exponent": 4, "sharpness": 16, "softness": 1}
_LEAST: Final = 10**-9
"""Of what a formula divides by."""
_DIVISORS: Final[Mapping[type, tuple[str, ...]]] = {
    MatmulParameters: (
        "flop_per_cycle", "efficiency", "ceiling", "tile_half", "load_bandwidth",
        "memory_efficiency", "reference_rate", "reference_power", "fp8", "int8", "nvfp4",
    ),
    AttentionParameters: ("key_block", "concurrency"),
    PointwiseParameters: ("memory_efficiency", "ramp"),
    Curve: ("efficiency", "sharpness", "rise_bytes", "share", "cross"),
}  # fmt: skip
_SHORT: Final = 10**-30  # s, of a ramp that is none
_GPUS: Final = 4096
_SPOKEN: Final = (str, int, float)


def check_keys(where: str, row: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a key that nothing reads, with the nearest ones.

    >>> check_keys("launch", ["gapp"], ["host", "gap"])
    Traceback (most recent call last):
    topology.base.errors.InputError: unknown key of launch 'gapp': did you mean gap?
    """
    names = sorted(known)
    for key in row:
        if key not in names:
            raise unknown(f"key of {where}", key, names)


def check_number(where: str, value: float, unit: str, most: int = 0) -> float:
    """Refuse a number that no machine has; what is not known, NaN, passes.

    Parameters
    ----------
    most : that may be, 0 for what is usual of a unit.

    >>> check_number("launch.gap", 1e300, "s")
    Traceback (most recent call last):
    topology.base.errors.InputError: launch.gap: got 1e+300, wanted at most 1000 s
    """
    limit = most or MOST[unit]
    if value > limit:
        wanted = f"at most {limit} {unit}".removesuffix(" 1")
        raise InputError(f"{where}: got {value:g}, wanted {wanted}")
    return value


def check_record(where: str, found: object) -> None:
    """Refuse a record of parameters with a number that no machine has."""
    units = CURVE_UNITS if isinstance(found, Curve) else UNITS
    for name, value in _numbers(found):
        field = name.partition("@")[0]
        check_number(f"{where}.{name}", value, units.get(field, "1"), _EXPONENTS.get(field, 0))
        least = _SHORT if field == "ramp" else _LEAST
        if field in _DIVISORS[type(found)] and value < least:
            wanted = "more than 0" if value <= 0 else f"at least {least:g}"
            raise InputError(f"{where}.{name}: got {value:g}, wanted {wanted}")


def check_errors(where: str, found: object, errors: Iterable[tuple[str, float]]) -> None:
    """Refuse standard errors of what the record `found` has not."""
    known = [name for name, _ in _numbers(found)]
    check_keys(f"{where}.fit.standard_errors", [name for name, _ in errors], known)


def _numbers(found: object) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record; those of a series have their place, as in ``cycles@1``."""
    for field in fields(found):  # type: ignore[arg-type]  # records are dataclasses
        value = getattr(found, field.name)
        if isinstance(value, float):
            yield field.name, value
        elif isinstance(value, tuple):
            yield from ((f"{field.name}@{place}", one) for place, one in enumerate(value))


def check_series(where: str, found: AttentionParameters) -> None:
    """Refuse series of an attention kernel that do not belong together."""
    sizes = {len(found.head_dims), len(found.cycles), len(found.tile_rows)}
    ordered = list(found.head_dims) == sorted(set(found.head_dims))
    positive = min((*found.head_dims, *found.cycles, *found.tile_rows), default=0.0) > 0
    if len(sizes) > 1 or not ordered or not positive or len(found.fp8_cycles) not in (0, *sizes):
        raise InputError(f"{where}: head_dims, cycles and tile_rows do not go together")


def whole(where: str, value: object, least: int = 0) -> int:
    """Read a count.

    >>> whole("rows", "12")
    12
    """
    text = str(value) if isinstance(value, str | int) else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise InputError(f"{where}: got {shown(value)}, wanted a whole number from {least}")
    return int(text)


def texts(where: str, table: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Read what is for people: words, on one line each; the number of GPUs is one."""
    for key, value in table.items():
        if not isinstance(value, _SPOKEN):
            raise InputError(f"{where}.{key}: got {shown(value)}, wanted a text")
    if where == "machine" and not 1 <= whole("machine.gpus", table.get("gpus", 1)) <= _GPUS:
        raise InputError(f"machine.gpus: got {table['gpus']}, wanted 1 to {_GPUS}")
    told = ((one_line(key), one_line(str(value))) for key, value in table.items())
    return tuple((key, text) for key, text in told if key != "source")


def is_date(text: str) -> bool:
    """Whether a text is a day that there is.

    >>> is_date("2026-11-27"), is_date("2026-99-99")
    (True, False)
    """
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def placed(where: str, read: Callable[[], Read]) -> Read:
    """Read a table, and say which one it was that cannot be read."""
    try:
        return read()
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: malformed: {error!s:.100}") from None
