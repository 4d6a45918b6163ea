"""What parsers of engines and tools take, from ``engineparsers.toml``, and complaints by it."""

import shlex
import tomllib
from functools import cache
from pathlib import Path

FIXTURE = Path(__file__).with_name("engineparsers.toml")
PARSERS = tomllib.loads(FIXTURE.read_text("utf-8"))
LAUNCHERS = {name: parser for name, parser in PARSERS.items() if parser.get("launches")}
VALUES = {"flag": (0, 0), "boolean": (0, 1), "ints": (1, 99), "texts": (1, 99)}
"""Fewest and most values of a kind of flag; one where it is not here."""
READ = {"int": int, "ints": int, "float": float}


@cache
def kinds(key):
    """Give the kind of every flag of a parser, and of the one that it stands beside."""
    parser = next(parser for parser in PARSERS.values() if parser["source"] == key)
    own = {
        flag: kind
        for kind in ("flag", "boolean", "int", "ints", "float", "text", "texts")
        for flag in parser.get(kind, ())
    }
    own |= dict.fromkeys(parser.get("choices", {}), "text")
    beside = parser.get("beside")
    return (kinds(PARSERS[beside]["source"]) | own) if beside else own


def complaints(command, parser):
    """Say what a command has that its parser does not take; nothing where it takes all."""
    words = [word for word in shlex.split(command) if not word.startswith("CUDA_VISIBLE_DEVICES=")]
    while words[0] in LAUNCHERS:
        said, words = _parsed(words[1:], LAUNCHERS[words[0]], stop=True)
        yield from said
    for start in (start.split() for start in parser["start"]):
        if words[: len(start)] == start:
            yield from _parsed(words[len(start) :], parser)[0]
            return
    yield f"starts with {words[:2]}, not with {parser['start']}"


def _parsed(words, parser, *, stop=False):
    """Return complaints about words; where a launcher stops, what it launches too."""
    known, choices = kinds(parser["source"]), parser.get("choices", {})
    seen, said, positional, words = [], [], 0, list(words)
    while words:
        word, equals, inline = words.pop(0).partition("=")
        if not word.startswith("-"):
            if stop:
                return said, [word, *words]
            positional += 1
            continue
        if word in seen:
            said.append(f"{word} twice")
        seen.append(word)
        if word not in known:
            said.append(f"no flag {word}")
            continue
        least, most = VALUES.get(known[word], (1, 1))
        values = [inline] if equals else []
        while words and len(values) < most and not words[0].startswith("-"):
            values.append(words.pop(0))
        if len(values) < least:
            said.append(f"{word} without a value")
        said += _bad(word, known[word], choices.get(word), values)
    if positional > parser.get("positional", 0):
        said.append(f"{positional} words that belong to no flag")
    said += [f"no {flag}" for flag in parser.get("required", ()) if flag not in seen]
    return said, []


def _bad(flag, kind, choices, values):
    """Say which values a flag does not take."""
    for value in values:
        if choices and value not in choices:
            yield f"{flag} {value}: none of {choices}"
        if kind == "boolean" and value.lower() not in ("true", "false"):
            yield f"{flag} {value}: no boolean"
        try:
            READ.get(kind, str)(value)
        except ValueError:
            yield f"{flag} {value}: no {kind}"
