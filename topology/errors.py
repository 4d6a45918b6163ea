"""What can go wrong.

* ModelError
  x InputError           the user gave something that cannot be right: one line, exit code 2
    + CatalogueError     a shipped or user-written table is malformed or has no source
    + TopologyError      a machine cannot be built from what was read
    + IllegalPlanError   the plan cannot run, with the reason and the nearest that can
  x UncalibratedError    no parameters for this device, operation or size

A plan that is illegal or does not fit is *not* an error in a search: it is a `Rejected` value.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class ModelError(Exception):
    """Base class of every error this project raises on purpose."""


class InputError(ModelError, ValueError):
    """The user gave something that cannot be right; the message says what, got and wanted."""


class CatalogueError(InputError):
    """A table of numbers is malformed, or a number has no source."""


class TopologyError(InputError):
    """A machine cannot be built from what was read, or a route does not exist."""


class IllegalPlanError(InputError):
    """A plan cannot run; the message has the reason and the nearest plans that can."""


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
    near = get_close_matches(got.lower(), names, n=3, cutoff=0.5)
    if near:
        return InputError(f"unknown {what} {got[:60]!r}: did you mean {' or '.join(near)}?")
    return InputError(f"unknown {what} {got[:60]!r}: expected one of {', '.join(names)}")
