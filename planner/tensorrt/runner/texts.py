"""A prompt to a text: its tokens, one more of every step of the engines, and what they say.

Prompts may have fewer rows than the engines take, each its own: they are told how many rows of
their cache are filled. Tokens are numbers in the checkpoint's own vocabulary, read by the package
tokenizers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.errors import InputError, MissingError
from planner.tensorrt.runner.library import Document, Foreign

FILLED: Final = "filled"
"""Buffer that says how many rows of the cache are filled; it starts with those of a prompt."""
Numbers = NDArray[np.int64]
Follow = Callable[[NDArray[np.float32]], Mapping[str, NDArray[np.float32]] | None]
"""From what a step gave to what the next one reads; None where nothing follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What a plan of a language model takes: names of its inputs, and of how many rows.

    rows : of a prompt, at most. room : of the cache.
    """

    prompt: str
    following: str
    rows: int
    room: int

    def check(self, prompt: int, tokens: int) -> None:
        """Raise `InputError` unless a prompt of so many tokens, and such a text, have room."""
        if not 0 < prompt <= self.rows:
            raise InputError(
                f"prompt: got {prompt} tokens, wanted 1 to {self.rows}, as engines were exported "
                "for (planner export --input-tokens)"
            )
        max_tokens = self.room - prompt + 1
        if tokens > max_tokens:
            raise InputError(
                f"--tokens: got {tokens}, wanted at most {max_tokens}: the cache has room for "
                f"{self.room}, and the prompt takes {prompt} (planner export --output-tokens)"
            )


def padded(prompts: Sequence[Sequence[int]]) -> Numbers:
    """Lay prompts one below the other, with -1 behind those that are shorter.

    >>> padded([[5, 7, 2], [6]]).tolist()
    [[5, 7, 2], [6, -1, -1]]
    """
    rows = np.full((len(prompts), max(map(len, prompts))), -1, np.int64)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    return rows


def text_of(plan: Document) -> Text | None:
    """Say what a plan takes to make a text; None where it makes none."""
    if FILLED not in plan["buffers"]:
        return None
    given_names = [
        buffer["given"]["name"] for buffer in plan["buffers"].values() if buffer["given"]
    ]
    rows = plan["buffers"][FILLED]["start"]
    return Text(
        prompt=given_names[0], following=given_names[1], rows=rows, room=rows + plan["steps"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeliest:
    """Goes on from the token of the highest score, until there are enough or all texts end.

    name : of the input. embedding : of its tokens. vocabulary : scores behind it are padding.
    most : tokens. ends : those that end a text. chosen : of every step so far, one a sample.
    """

    name: str
    embedding: Callable[[str, NDArray[np.generic]], NDArray[np.float32]]
    vocabulary: int
    most: int
    ends: Sequence[int] = ()
    chosen: list[Numbers] = field(default_factory=list)

    def __call__(self, scores: NDArray[np.float32]) -> Mapping[str, NDArray[np.float32]] | None:
        """Choose, and give the rows that the next step reads."""
        best = np.argmax(scores[:, 0, : self.vocabulary], axis=-1)
        self.chosen.append(best)
        ended_texts = np.isin(self.chosen, self.ends).any(axis=0)
        if len(self.chosen) == self.most or ended_texts.all():
            return None
        return {self.name: self.embedding(self.name, best[:, None])}


def tokenizer_in(folder: str) -> Foreign:
    """Load the tokenizer of a checkpoint's folder.

    Raises `MissingError` if the package is not installed, and `InputError` if there is none.
    """
    try:
        package = import_module("tokenizers")
    except ImportError as error:
        raise MissingError(f"generate: {error}: pip install 'tokenizers>=0.20,<1'") from None
    try:
        return package.Tokenizer.from_file(f"{folder}/tokenizer.json")
    except Exception as error:  # noqa: BLE001  # the package raises nothing narrower
        raise InputError(f"{folder}/tokenizer.json: no tokenizer: {error}") from None


def said(tokenizer: Foreign, tokens: Sequence[int], ends: Sequence[int]) -> str:
    """Write tokens as text, up to the first that ends it."""
    text_end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return str(tokenizer.decode([int(token) for token in tokens[:text_end]]))
