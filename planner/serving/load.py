"""What comes: when requests arrive, how long they are, and how many are followed."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from planner.request.request import LARGEST
from topology.base import InputError, content, decoded, shown

SEED: Final = 7
COLUMNS: Final = ("arrival_s", "input_tokens", "output_tokens")
LATEST: Final = 1000.0 * 86400
"""Seconds of the longest trace, about three years."""
MOST_BYTES: Final = 2**25


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts and answers, on average: uniform from `spread` below to as much above.

    spread : a share of the mean, 0 where all requests are alike. most : tokens of the longest
    request where it is known; 0 for what the spread makes of it.
    """

    prompt: int
    output: int
    spread: float = 0.0
    most: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.most or ceil((self.prompt + self.output) * (1.0 + self.spread))

    def draw(self, count: int) -> tuple[list[int], list[int]]:
        """Draw prompts and answers, the same ones whenever they are asked for."""
        random = np.random.default_rng(SEED)
        low, wide = 1.0 - self.spread, 2.0 * self.spread
        parts = low + wide * random.random((2, count))
        prompts = np.maximum(1, np.rint(self.prompt * parts[0]))
        outputs = np.maximum(1, np.rint(self.output * parts[1]))
        return prompts.astype(int).tolist(), outputs.astype(int).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, of one engine or of all.

    concurrency : that clients keep in flight: each sends its next one when the last is done; 0
    where they come by themselves. arrivals : seconds at which they do, in order.
    prompts, outputs : tokens of each.
    """

    prompts: list[int]
    outputs: list[int]
    concurrency: int = 0
    arrivals: list[float] | None = None

    @property
    def count(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> Lengths:
        """Mean and largest lengths."""
        both = zip(self.prompts, self.outputs, strict=True)
        return Lengths(
            prompt=round(sum(self.prompts) / self.count),
            output=round(sum(self.outputs) / self.count),
            most=max(prompt + output for prompt, output in both),
        )

    def part(self, number: int, engines: int) -> "Load":
        """Return the requests of one of several engines, which take turns."""
        own = slice(number, None, engines)
        arrivals = None if self.arrivals is None else self.arrivals[own]
        return Load(prompts=self.prompts[own], outputs=self.outputs[own], arrivals=arrivals)


def closed(lengths: Lengths, concurrency: int, requests: int) -> Load:
    """Keep so many requests in flight."""
    prompts, outputs = lengths.draw(requests)
    return Load(prompts=prompts, outputs=outputs, concurrency=concurrency)


def read_arrivals(path: str) -> Load:
    """Read requests from a CSV file with `COLUMNS`: when each comes, and how long it is.

    Raises
    ------
    InputError
        If the file cannot be read, a column is missing, or a number cannot be right.
    """
    table = csv.DictReader(_text(path).splitlines())
    try:
        missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: got no column {missing[0]}, wanted {', '.join(COLUMNS)}")
        rows = [_arrival(row, f"{path}, line {number}") for number, row in enumerate(table, 2)]
    except csv.Error as error:
        raise InputError(f"{path}: got a line that is no CSV, {error}") from None
    if not rows:
        raise InputError(f"{path}: got no requests, wanted a line for each")
    rows.sort()
    return Load(
        prompts=[prompt for _, prompt, _ in rows],
        outputs=[output for _, _, output in rows],
        arrivals=[time - rows[0][0] for time, _, _ in rows],
    )


def _text(path: str) -> str:
    try:
        return decoded(content(path, MOST_BYTES), path)
    except InputError as error:
        why = str(error).removeprefix(f"{path}: ")
        raise InputError(
            f"arrivals: got {shown(path)}, {why}; wanted a CSV file of requests"
        ) from None


def _arrival(row: Mapping[str, str | None], where: str) -> tuple[float, int, int]:
    numbers = []
    for name in COLUMNS:
        text = (row.get(name) or "").strip()
        try:
            numbers.append(float(text))
        except ValueError:
            raise InputError(f"{where}: {name}: got {shown(text)}, wanted a number") from None
    time, prompt, output = numbers
    if not 0 <= time < LATEST:
        raise InputError(f"{where}: arrival_s: got {time:g}, wanted seconds from 0 to {LATEST:g}")
    for name, tokens in zip(COLUMNS[1:], (prompt, output), strict=True):
        if not 1 <= tokens <= LARGEST["input_tokens"] or tokens != int(tokens):
            raise InputError(f"{where}: {name}: got {tokens:g}, wanted a whole number from 1")
    return time, int(prompt), int(output)


def poisson(lengths: Lengths, rate: float, requests: int, burst: float = 1.0) -> Load:
    """Let requests come at random, `rate` a second on average.

    Parameters
    ----------
    burst : squared variation of the gaps between them: 1 for a Poisson process, more for bursts.
    """
    prompts, outputs = lengths.draw(requests)
    gaps = np.random.default_rng(SEED + 1).gamma(1.0 / burst, burst / rate, requests)
    return Load(prompts=prompts, outputs=outputs, arrivals=np.cumsum(gaps).tolist())
