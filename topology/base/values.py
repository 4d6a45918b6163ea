"""`dataclass` of the standard library for frozen values, at a tenth of its time to load.

The standard one writes and compiles up to eight methods a class when its module is imported: a
third of the time until a first answer. Here `__init__` is compiled when a first value is made, and
the others are closures. Fields, `replace`, `asdict`, `match` and type checkers see no difference.
"""

import dataclasses
from collections.abc import Callable
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

__all__ = ["by_content", "dataclass", "hash_of"]


_PLAIN_TYPES = frozenset({str, int, float, bool})
_MOST_HASHED: Final = 256
"""Numbers of an array that is hashed; what is kept by larger ones would fill the memory."""


def by_content(part: Any, largest: float = inf) -> Any:  # noqa: ANN401  # whatever values are made of
    """Write the arrays in a tuple as their bytes, so that it can be compared, and looked up.

    Raises `TypeError` if an array holds more than `largest` numbers.
    """
    if isinstance(part, tuple):
        return tuple(
            [item if type(item) in _PLAIN_TYPES else by_content(item, largest) for item in part]
        )
    if not hasattr(part, "tobytes"):
        return part
    if part.size > largest:
        raise TypeError(f"arrays of more than {largest:g} numbers are not hashed")
    return part.dtype.char, part.shape, part.tobytes()


def hash_of(parts: tuple[object, ...]) -> int:
    """Hash what a value is made of, arrays by their numbers.

    Raises `TypeError` if an array is too large to be kept by, or a part cannot be hashed.
    """
    try:
        return hash(parts)
    except TypeError:
        return hash(by_content(parts, _MOST_HASHED))


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *, frozen: bool, slots: bool, kw_only: bool = False, eq: bool = True
    ) -> Callable[[type], type]:
        """Make a class one of frozen values with slots.

        >>> @dataclass(frozen=True, slots=True)
        ... class Seat:
        ...     rank: int
        ...     gpu: str = "g0"
        >>> Seat(1), Seat(1) == Seat(rank=1), hash(Seat(1)) == hash(Seat(1, "g0"))
        (Seat(rank=1, gpu='g0'), True, True)
        >>> Seat(1).rank = 2
        Traceback (most recent call last):
        dataclasses.FrozenInstanceError: cannot assign to field 'rank'
        """
        assert frozen
        assert slots

        def made(original: type) -> type:
            original.__doc__ = original.__doc__ or original.__name__  # or it is made of a signature
            has_base = any(dataclasses.is_dataclass(base) for base in original.__bases__)
            fields_alone = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=True, kw_only=kw_only, frozen=has_base
            )
            kind: Any = fields_alone(original)
            kind.__dataclass_params__.frozen = True  # so that the standard one extends it as such
            methods = _lazy_init(kind) | _SHARED_METHODS | (_comparison_methods(kind) if eq else {})
            for name, method in methods.items():
                if name not in original.__dict__:
                    setattr(kind, name, method)
            return kind

        return made


def _lazy_init(kind: type) -> dict[str, Callable[..., Any]]:
    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        kind.__init__ = _compiled_init(kind)  # type: ignore[misc]
        kind.__init__(self, *args, **kwargs)  # type: ignore[misc]

    return {"__init__": __init__}


def _compiled_init(kind: type) -> Callable[..., None]:
    """Write `__init__` of a class: what each field is given, or its default, into its slot."""
    scope: dict[str, Any] = {"missing": dataclasses.MISSING}
    positional: list[str] = []
    keyword_only: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(kind):
        name, text, value = field.name, field.name, field.name
        if field.default is not dataclasses.MISSING:
            scope[f"default_{name}"] = field.default
            text = f"{name}=default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"make_{name}"] = field.default_factory
            text, value = f"{name}=missing", f"make_{name}() if {name} is missing else {name}"
        scope[f"set_{name}"] = getattr(kind, name).__set__  # past the refusal of `__setattr__`
        (keyword_only if field.kw_only else positional).append(text)
        lines.append(f" set_{name}(self, {value})")
    if hasattr(kind, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *keyword_only] if keyword_only else [])])
    exec("\n".join([f"def __init__({parameters}):", *(lines or [" pass"])]), scope)  # noqa: S102
    scope["__init__"].__qualname__ = f"{kind.__qualname__}.__init__"
    return scope["__init__"]  # type: ignore[no-any-return]


def _comparison_methods(kind: type) -> dict[str, Callable[..., Any]]:
    fields = [field for field in dataclasses.fields(kind) if field.compare]
    read_values = _reader([field.name for field in fields])
    read_hashed = _reader([field.name for field in fields if field.hash is not False])

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        own_values, other_values = read_values(self), read_values(other)
        try:
            return own_values == other_values
        except ValueError:  # arrays are compared number by number
            return bool(by_content(own_values) == by_content(other_values))

    def __hash__(self: object) -> int:  # noqa: N807
        return hash_of(read_hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _reader(names: list[str]) -> Callable[[Any], tuple[object, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _names(value: Any, *, shown: bool = False) -> list[str]:  # noqa: ANN401  # of any class
    return [field.name for field in dataclasses.fields(value) if field.repr or not shown]


def _repr_text(self: object) -> str:
    field_texts = [f"{name}={getattr(self, name)!r}" for name in _names(self, shown=True)]
    return f"{self.__class__.__qualname__}({', '.join(field_texts)})"


def _refuse(_self: object, name: str, *value: object) -> None:
    verb = "assign to" if value else "delete"
    raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")


def _state(self: object) -> list[object]:
    return [getattr(self, name) for name in _names(self)]


def _with_state(self: object, state: list[object]) -> None:
    for name, value in zip(_names(self), state, strict=True):
        object.__setattr__(self, name, value)


_SHARED_METHODS = {
    "__repr__": _repr_text,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _state,
    "__setstate__": _with_state,
}
