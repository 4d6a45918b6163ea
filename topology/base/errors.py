"""What can go wrong.

* ModelError
  x InputError           the user gave something that cannot be right: one line, exit code 2
    + CatalogueError     a shipped or user-written table is malformed or has no source
    + TopologyError      a machine cannot be built from what was read
      - CutError         links are down that nothing goes around
    + IllegalPlanError   the plan cannot run, with the reason and the nearest that can
    + PrecisionError     the GPU has no tensor cores for it
  x UncalibratedError    no parameters for this device, operation or size

A plan that is illegal or does not fit is *not* an error in a search: it is a `Rejected` value.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_FEW_NAMES: Final = 6  # names, of which all are said rather than one with another number
_SHOWN_NAMES: Final = 10  # names of a list that is too long to read
_LISTED_LETTERS: Final = 600  # characters of names
_MOST_LETTERS: Final = 1500  # characters of a message
_LONG_WORD: Final = re.compile(r"(\S{100})\S{80,}(\S{40})")
"""What nobody reads to its end: a path of 200 characters still stands whole."""


class ModelError(Exception):
    """Base class of every error this project raises on purpose; its message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    r"""Make one line of what may echo anything: no control characters, and nothing endless.

    >>> one_line("a\tb \x1b[2J"), len(one_line("x" * 10**6))
    ('a b \\x1b[2J', 143)
    """
    short = _LONG_WORD.sub(r"\1...\2", "".join(map(printable_character, " ".join(text.split()))))
    return short if len(short) <= _MOST_LETTERS else f"{short[:_MOST_LETTERS]}..."


def shown(value: object) -> str:
    """Write any value for a message, cut to what tells it; some cannot be written.

    >>> shown("a" * 60), shown(10**5000)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 'an int that cannot be written')
    """
    try:
        return f"{value!r}"[:40]
    except Exception:  # noqa: BLE001  # whatever an object of somebody else's raises
        return f"an {type(value).__name__} that cannot be written"


def printable_character(character: str) -> str:
    """Write a character so that it does nothing to a terminal."""
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


class InputError(ModelError, ValueError):
    """The user gave something that cannot be right; the message says what, got and wanted."""


class CatalogueError(InputError):
    """A table of numbers is malformed, or a number has no source."""


class TopologyError(InputError):
    """A machine cannot be built from what was read, or a route does not exist."""


class CutError(TopologyError):
    """Links are down that GPUs, or hosts where there are no `gpus`, have no way around."""

    def __init__(self, message: str, gpus: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.gpus = gpus


class IllegalPlanError(InputError):
    """A plan cannot run; the message has the reason and the nearest plans that can."""


class PrecisionError(InputError):
    """The GPU has no tensor cores for the precision."""


class UncalibratedError(ModelError, LookupError):
    """No parameters for this device, operation or size."""


def unknown(what: str, got: str, known: Iterable[str]) -> InputError:
    """Build the error for a name that is not in a list, naming the nearest ones.

    >>> str(unknown("hardware", "h100", ["h100-sxm", "h100-pcie", "l4"]))
    "unknown hardware 'h100': did you mean h100-sxm or h100-pcie?"
    >>> str(unknown("runtime", "?", ["a", "b"]))
    "unknown runtime '?': expected one of a, b"
    """
    names = list(known)
    nearest = nearest_names(got, names)
    if nearest:
        return InputError(f"unknown {what} {got[:60]!r}: did you mean {' or '.join(nearest)}?")
    return InputError(f"unknown {what} {got[:60]!r}: expected one of {_name_list(names)}")


def _name_list(names: list[str]) -> str:
    """Write names, and how many there are where they are too many to read."""
    shown_count = len(names) if sum(map(len, names)) <= _LISTED_LETTERS else _SHOWN_NAMES
    more = f" ... ({len(names)} in all)" if shown_count < len(names) else ""
    return f"{', '.join(names[:shown_count])}{more}"


def nearest_names(got: str, known: Iterable[str]) -> list[str]:
    """List names near one that is not known: those it begins, those it is part of, or like it.

    >>> nearest_names("4090", ["rtx-4090", "rtx-5090", "l4"])
    ['rtx-4090']
    >>> nearest_names("int4", ["bf16", "fp8", "int8"])
    []
    """
    names, text = list(known), got.strip().lower()
    prefixed = [name for name in names if name.lower().startswith(text)]
    parts = prefixed or [name for name in names if text in name.lower()]
    if len(text) > 1 and parts:
        return get_close_matches(text, parts, n=6, cutoff=0.0)
    similar = get_close_matches(text, names, n=3, cutoff=0.5)
    return [name for name in similar if len(names) > _FEW_NAMES or _digits(name) == _digits(text)]


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))
