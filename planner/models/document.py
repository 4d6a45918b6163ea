"""JSON text to a checked object."""

import json
from collections.abc import Mapping

from planner.models.fields import Fields
from topology.base import InputError


def parse(text: str, where: str) -> Fields:
    """Read JSON text that must be an object; `where` starts every later message.

    Raises
    ------
    InputError
        If it is not JSON, is cut short, nests too deep, or is not an object.

    Examples
    --------
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
        raise InputError(f"{where}: not a configuration: nests too deep") from None
    except ValueError:  # a whole number of thousands of digits
        raise InputError(f"{where}: not a configuration: a number is too long") from None
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: got JSON that is not an object, wanted a configuration")
    return Fields(where=where, values=value)
