"""Our `dataclass` is the standard one to whoever uses it; it is only quicker to load."""

import copy
import dataclasses
import pickle
from dataclasses import KW_ONLY, asdict, field, fields, replace
from typing import ClassVar

import numpy as np
import pytest

from topology.base.values import dataclass
from topology.catalogue import all_devices


def point(made):
    """Define one class, with fields of every kind, with the decorator given."""

    @made(frozen=True, slots=True)
    class Point:
        unit: ClassVar[str] = "m"
        x: float
        y: float = 2.0
        tags: dict[str, int] = field(default_factory=dict, hash=False)
        note: str = field(default="", compare=False, repr=False)
        _: KW_ONLY
        name: str = "p"

        def __post_init__(self):
            if self.x < 0:
                raise ValueError(self.x)

    return Point


def deeper(made):
    base = point(made)

    @made(frozen=True, slots=True, kw_only=True)
    class Deeper(base):
        depth: int

        def __hash__(self):
            return self.depth

    return Deeper


OURS, STANDARD = point(dataclass), point(dataclasses.dataclass)
OURS_DEEPER, STANDARD_DEEPER = deeper(dataclass), deeper(dataclasses.dataclass)
OUTCOMES = {
    "shown": lambda kind: repr(kind(1.0, tags={"a": 1})),
    "same": lambda kind: kind(1.0) == kind(1.0, note="other"),
    "other": lambda kind: kind(1.0) == kind(1.0, name="q"),
    "of another class": lambda kind: kind(1.0) == (1.0, 2.0, {}, "p"),
    "hash": lambda kind: hash(kind(1.0)) == hash(kind(1.0, tags={"a": 1})),
    "not a number": lambda kind: kind(float("nan")) == kind(float("nan")),
    "replaced": lambda kind: repr(replace(kind(1.0), y=3.0)),
    "replaced by a bad one": lambda kind: replace(kind(1.0), x=-1.0),
    "too few": lambda kind: kind(),
    "too many": lambda kind: kind(1.0, 2.0, {}, "", "p"),
    "unknown": lambda kind: kind(1.0, z=1.0),
    "assigned": lambda kind: setattr(kind(1.0), "x", 2.0),
    "deleted": lambda kind: delattr(kind(1.0), "x"),
    "fields": lambda kind: [(f.name, f.kw_only, f.default) for f in fields(kind)],
    "as a dictionary": lambda kind: asdict(kind(1.0, tags={"a": 1})),
    "matched by place": lambda kind: kind.__match_args__,
    "made apart": lambda kind: kind(1.0).tags is kind(1.0).tags,
    "copied": lambda kind: repr(copy.deepcopy(kind(1.0, tags={"a": 1}))),
    "of a class": lambda kind: kind.unit,
    "no dictionary": lambda kind: hasattr(kind(1.0), "__dict__"),
}


def outcome(ask, kind):
    try:
        return ask(kind)
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("ask", OUTCOMES.values(), ids=list(OUTCOMES))
def test_a_value_answers_as_one_of_the_standard_library(ask):
    assert outcome(ask, OURS) == outcome(ask, STANDARD)


def test_a_value_that_extends_another_is_made_hashed_and_compared_as_its_own():
    for kind in (OURS_DEEPER, STANDARD_DEEPER):
        made = kind(1.0, depth=3)
        assert (made.x, made.depth, hash(made)) == (1.0, 3, 3)
        assert made == kind(1.0, depth=3) != kind(1.0, depth=4)
        with pytest.raises(ValueError, match="-1"):
            kind(-1.0, depth=3)
    assert repr(OURS_DEEPER(1.0, depth=3)) == repr(STANDARD_DEEPER(1.0, depth=3))


def test_the_standard_library_extends_a_value():
    @dataclasses.dataclass(frozen=True)
    class More(OURS):
        depth: int = 0

    assert repr(More(1.0, depth=3)).endswith("name='p', depth=3)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        More(1.0).x = 2.0


def test_a_value_crosses_to_another_process():
    devices = all_devices()

    assert pickle.loads(pickle.dumps(devices)) == devices


def test_a_class_without_its_own_equality_is_equal_to_itself_alone():
    @dataclass(frozen=True, slots=True, eq=False)
    class Alone:
        rank: int

    assert Alone(1) != Alone(1)
    assert len({Alone(1), Alone(1)}) == 2


@dataclass(frozen=True, slots=True)
class Seat:
    at: object


def test_values_with_arrays_are_hashed_and_compared_by_their_numbers():
    def seat(*numbers, kind=float):
        return Seat(np.array(numbers, kind))

    assert seat(1, 2) == seat(1, 2)
    assert hash(seat(1, 2)) == hash(seat(1, 2))
    for other in (seat(1, 3), seat(1), seat(1, 2, kind=int), Seat(1)):
        assert len({seat(1, 2), other}) == 2
    assert seat(*range(1000)) == seat(*range(1000))
    with pytest.raises(TypeError, match="more than 256"):  # what is kept by such fills the memory
        hash(seat(*range(1000)))


def test_nothing_is_compiled_before_a_value_is_made():
    """The compiler is what made modules slow to load."""
    kind = point(dataclass)
    written = {name for name in vars(kind) if hasattr(getattr(kind, name), "__code__")}
    compiled = {name for name in written if getattr(kind, name).__code__.co_filename == "<string>"}

    assert "__init__" in written
    assert not compiled
