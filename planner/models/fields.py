"""A checked view of a JSON object that somebody else wrote.

Every accessor takes the names a key may go by, and bounds; the first name that is present and
not null counts. Whatever the value is, the answer is of the promised type and within the bounds,
or an `InputError` of one line.
"""

import json
from collections.abc import Mapping
from typing import Final, cast

from topology.base import InputError
from topology.base.values import dataclass

LAYERS: Final = 2000
REFINERS: Final = 128
HEADS: Final = 4096
HEAD_SIZE: Final = 4096
WIDTH: Final = 2**20
CHANNELS: Final = 2**16
EXPERTS: Final = 2**16
VOCABULARY: Final = 2**24
CONTEXT: Final = 2**32
_LONGEST_LIST: Final = 10 * LAYERS
_HUGE_BITS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The keys of one object; `where` starts every message."""

    where: str
    values: Mapping[str, object]

    def has(self, *names: str) -> bool:
        """Whether one of `names` is present and not null."""
        return self._find(names)[1] is not None

    def integer(
        self, *names: str, low: int = 1, high: int = WIDTH, default: int | None = None
    ) -> int:
        """Read a whole number from `low` to `high`; `default` None means that it must be there.

        >>> Fields(where="config.json", values={"n_layer": 48}).integer("num_layers", "n_layer")
        48
        >>> Fields(where="file", values={"num_layers": -3}).integer("num_layers", high=99)
        Traceback (most recent call last):
        topology.base.errors.InputError: file: num_layers: got -3, wanted a whole number 1 to 99
        """
        name, value = self._find(names)
        wanted = f"a whole number {low} to {high}"
        if value is None and default is not None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.refused(name, value, wanted)
        return value

    def divisor(
        self, *names: str, of: str, whole: int, high: int = HEADS, default: int | None = None
    ) -> int:
        """Read a whole number that divides another one, which is called `of`."""
        value = self.integer(*names, high=high, default=default)
        if whole % value:
            raise self.refused(names[0], value, f"a divisor of {of} {whole}")
        return value

    def number(
        self, *names: str, low: float = 0.0, high: float = 1000.0, default: float | None = None
    ) -> float:
        """Read a finite number from `low` to `high`."""
        name, value = self._find(names)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not low <= cast(float, value) <= high:
            raise self.refused(name, value, f"a number {low:g} to {high:g}")
        return float(cast(float, value))

    def boolean(self, *names: str, default: bool) -> bool:
        """Read a field of JSON that is true or false."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(name, value, "true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """Read a field of JSON that is a text."""
        name, value = self._find(names)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.refused(name, value, "a text")
        return value

    def integers(
        self, *names: str, low: int = 0, high: int = WIDTH, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Read a list of whole numbers."""
        name, value = self._find(names)
        if value is None and default is not None:
            return default
        wanted = f"a list of whole numbers {low} to {high}"
        entries = self._entries(name, value, wanted)
        if any(type(entry) is not int or not low <= entry <= high for entry in entries):
            raise self.refused(name, value, wanted)
        return cast(tuple[int, ...], entries)

    def texts(self, *names: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Read a list of texts."""
        name, value = self._find(names)
        if value is None and default is not None:
            return default
        entries = self._entries(name, value, "a list of texts")
        if any(not isinstance(entry, str) for entry in entries):
            raise self.refused(name, value, "a list of texts")
        return cast(tuple[str, ...], entries)

    def table(self, *names: str) -> "Fields | None":
        """Read a nested object, None where it is absent."""
        name, value = self._find(names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refused(name, value, "an object")
        return Fields(where=f"{self.where}: {_key(name)}", values=value)

    def refused(self, name: str, value: object, wanted: str) -> InputError:
        """Build the error for a value that cannot be right."""
        got = "nothing" if value is None else _value_text(value)
        return InputError(f"{self.where}: {_key(name)}: got {got}, wanted {wanted}")

    def _find(self, names: tuple[str, ...]) -> tuple[str, object]:
        present = (name for name in names if self.values.get(name) is not None)
        name = next(present, names[0])
        return name, self.values.get(name)

    def _entries(self, name: str, value: object, wanted: str) -> tuple[object, ...]:
        if not isinstance(value, list | tuple) or len(value) > _LONGEST_LIST:
            raise self.refused(name, value, wanted)
        return tuple(value)


def parse(text: str, where: str) -> Fields:
    """Read JSON text that must be an object; `where` starts every later message.

    Raises `InputError` if it is not JSON, is cut short, nests too deep, or is not an object.

    >>> parse('{"num_layers": 3}', "config.json").integer("num_layers")
    3
    >>> parse('{"num_layers": 3', "file")
    Traceback (most recent call last):
    topology.base.errors.InputError: file: not JSON: Expecting ',' delimiter at line 1 column 17
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise InputError(f"{where}: not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise InputError(f"{where}: nests too deep") from None
    except ValueError:  # a whole number of thousands of digits
        raise InputError(f"{where}: a number is too long") from None
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: got JSON of something else, wanted an object")
    return Fields(where=where, values=value)


def _key(name: str) -> str:
    """Write a key of somebody else's on one line."""
    return name if name.isidentifier() and len(name) <= 60 else ascii(name)[:60]


def _value_text(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _HUGE_BITS:
        return "a number of more than 38 digits"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
