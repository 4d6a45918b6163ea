"""What a sweep is asked: lists and ranges of everything, and the portions that it is done in."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from math import prod
from typing import Final

from planner.request.request import LARGEST, Request, whole_number
from planner.scenario.keywords import distinct_names, request_of
from planner.strategies import parse_plan
from topology.base import InputError, shown
from topology.base.values import dataclass

PICTURE: Final = ("height", "width", "frames", "steps")
"""Sizes that a sweep of diffusion models may range over."""
LANGUAGE: Final = ("input_tokens", "output_tokens")
"""And those of language models."""
SIZES: Final = (*PICTURE, *LANGUAGE)
MOST_QUESTIONS: Final = 10_000_000
"""Questions of one sweep, each of all plans."""
_RANGE: Final = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?(?::([1-9][0-9]{0,8}))?")
NUMBERS_WORDS: Final = "numbers such as 8, 1,2,4, 1:64 or 480:1080:120"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """A sweep: every combination of its lists.

    models, hardware : names or files. gpus : numbers of GPUs. sizes : by name of `PICTURE` or
    `LANGUAGE`; the model's usual one where left out. plans : as a person writes them, ``all``
    legal ones, or the ``best`` alone of each question. request : all else that is asked.
    """

    models: tuple[str, ...]
    hardware: tuple[str, ...]
    gpus: tuple[int, ...]
    sizes: Mapping[str, tuple[int, ...]]
    plans: tuple[str, ...] = ("best",)
    request: Request

    def __post_init__(self) -> None:
        """Refuse empty lists, plans beside ``all`` or ``best``, and plans of other GPUs.

        Raises `InputError` also if there are more questions than one sweep answers.
        """
        for name in ("models", "hardware", "gpus", "plans"):
            if not getattr(self, name) or "" in getattr(self, name):
                raise InputError(f"{name}: got an empty one, wanted one or more")
        keywords = {"all", "best"}.intersection(self.plans)
        if keywords and len(self.plans) > 1:
            raise InputError(f"plan: got {min(keywords)} beside others, wanted it alone")
        for plan in () if keywords else self.plans:
            if (gpus := parse_plan(plan).gpus) not in self.gpus:  # it would have no row
                expected = f"wanted that of plan {plan} among them"
                raise InputError(f"gpus: got none of {gpus}, {expected}")
        if self.questions > MOST_QUESTIONS:
            raise InputError(
                f"sweep: got {self.questions:,} questions, wanted at most {MOST_QUESTIONS:,}"
            )

    @property
    def questions(self) -> int:
        """Count the combinations, each of which is asked of all plans."""
        lists = (self.models, self.hardware, self.gpus, *self.sizes.values())
        return prod(map(len, lists))

    def portions(self) -> list["Portion"]:
        """List what is done at a time: a model on so many GPUs, of all sizes and hardware."""
        pairs = product(self.models, self.gpus)
        return [Portion(asked=self, model=model, gpus=gpus) for model, gpus in pairs]

    @property
    def digest(self) -> str:
        """Sum up what is asked, so that a sweep that goes on can tell whether it is the same."""
        fields = {
            "models": self.models,
            "hardware": self.hardware,
            "gpus": self.gpus,
            "sizes": dict(self.sizes),
            "plans": self.plans,
            "request": self.request.to_dict(),
        }
        return hashlib.sha256(json.dumps(fields, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """A part of a sweep that one process does."""

    asked: Questions
    model: str
    gpus: int

    @property
    def name(self) -> str:
        """Name of the portion; no other has it."""
        model_number = self.asked.models.index(self.model)
        return f"{model_number}-{self.gpus}"

    def request(self, hardware: str, sizes: Mapping[str, int]) -> Request:
        """Ask one of its questions."""
        request_fields = {"model": self.model, "gpus": self.gpus, "hardware": hardware, **sizes}
        return replace(self.asked.request, **request_fields)  # type: ignore[arg-type]  # checked by Request

    def sizes(self) -> Iterator[dict[str, int]]:
        """Yield every combination of sizes, by name."""
        names = list(self.asked.sizes)
        for values in product(*self.asked.sizes.values()):
            yield dict(zip(names, values, strict=True))


def questions_of(
    models: object,
    hardware: object,
    gpus: str | int | Sequence[int],
    plans: object,
    options: Mapping[str, object],
) -> Questions:
    """Read a sweep as a person or a program writes it.

    models, hardware, plans : one or several; text may hold several with commas.
    options : of a request; `SIZES` among them may be several numbers.

    Raises `InputError` if a name, a number or a keyword cannot be right.
    """
    names = distinct_names("models", models)
    sizes = {name: options[name] for name in SIZES if options.get(name) is not None}
    other_options = {name: value for name, value in options.items() if name not in SIZES}
    return Questions(
        models=names,
        hardware=distinct_names("hardware", hardware),
        gpus=read_numbers("gpus", gpus),
        sizes={name: read_numbers(name, value) for name, value in sizes.items()},  # type: ignore[arg-type]  # checked there
        plans=distinct_names("plan", plans),
        request=request_of(names[0], 1, other_options),
    )


def read_numbers(name: str, text: str | int | Sequence[int]) -> tuple[int, ...]:
    """Read numbers with commas and ranges ``first:last`` or ``first:last:step``, ends included.

    Raises `InputError` if a part is none, a range is empty, or a number is not from 1 to the
    largest of its kind.

    >>> read_numbers("gpus", "1:4,8")
    (1, 2, 3, 4, 8)
    >>> read_numbers("height", "480:1080:300")
    (480, 780, 1080)
    """
    if not isinstance(text, str):
        return _checked_numbers(name, _value_list(name, text))
    numbers: list[int] = []
    for number_range in text.split(","):
        match = _RANGE.fullmatch(number_range.strip())
        first_text, last_text, step = match.groups() if match else ("0", "-1", None)
        span = range(int(first_text), int(last_text or first_text) + 1, int(step or 1))
        if not 0 < len(span) <= MOST_QUESTIONS:
            raise InputError(f"{name}: got {shown(number_range)}, wanted {NUMBERS_WORDS}")
        numbers += span
    return _checked_numbers(name, numbers)


def _value_list(name: str, values: object) -> list[object]:
    """Read a size of a sweep: one number, or several."""
    if isinstance(values, bytes):  # of which each part is a number too
        raise InputError(f"{name}: got {shown(values)}, wanted {NUMBERS_WORDS}")
    try:
        numbers = list(islice(iter(values), MOST_QUESTIONS + 1))  # type: ignore[call-overload]  # if it can be
    except Exception:  # noqa: BLE001  # it is one, or fails in its own way
        numbers = [values]
    if not 0 < len(numbers) <= MOST_QUESTIONS:
        raise InputError(f"{name}: got {shown(values)}, wanted {NUMBERS_WORDS}")
    return numbers


def _checked_numbers(name: str, numbers: Iterable[object]) -> tuple[int, ...]:
    integers = [whole_number(name, number) for number in numbers]
    for number in integers:
        if not 1 <= number <= LARGEST[name]:
            raise InputError(f"{name}: got {number}, wanted from 1 to {LARGEST[name]}")
    return tuple(dict.fromkeys(integers))
