"""Texts as they are after something went wrong with them, in whatever format they are."""

import re

TOKEN = re.compile(r'"[^"\n]*"|[A-Za-z_][\w.-]*|[-+]?[0-9][\w.+-]*')
"""A text in quotation marks, a word or a number, as JSON, TOML, CSV, XML and logs have them."""
VALUES = (
    "0", "-1", "1", "2", "3", "1.5", "1e-300", "1e9", "4096", "1" * 30, "9" * 400, "1e400",
    "-1e308", "NaN", "Infinity", "null", "true", "false", "{}", "[]", '""', '"x"', '"1"', "[1, 2]",
    '{"a": 1}', r'"\u001b[2J"', r'"\ud800"', f'"{"x" * 300}"',
)  # fmt: skip
"""Of JSON, and most of them of other formats."""
JUNK = (
    "nan", "inf", "0x10", "1_0", "٣", "", '"', "\n", "\t", ",", "=", "]", "}", "\x1b[2J", "\x00",
    "\ufeff", "<", "&", "</", "-", "x" * 200_000, "[" * 2000, "a." * 40,
)  # fmt: skip
TIMES = (1, 1, 1, 2, 4)


def damaged(text, random):
    """Give a text with a few values, lines or pieces put in another's place, cut or repeated."""
    for _ in range(random.choice(TIMES)):
        text = random.choice(WAYS)(text, random)
    return text


def _value(text, random):
    """Put something odd, or another value of the text, where a value stands."""
    found = [match.span() for match in TOKEN.finditer(text)]
    if not found:
        return text
    at, end = random.choice(found)
    other = random.choice(found)
    put = random.choice([random.choice(VALUES), random.choice(VALUES), text[slice(*other)]])
    return text[:at] + put + text[end:]


def _line(text, random):
    """Leave a line out, or write it twice, or elsewhere."""
    lines = text.splitlines(keepends=True) or [""]
    line = lines.pop(random.randrange(len(lines)))
    for _ in range(random.randint(0, 2)):
        lines.insert(random.randint(0, len(lines)), line)
    return "".join(lines)


def _piece(text, random):
    """Cut a piece out, repeat it, or put something odd in its place."""
    at = random.randint(0, len(text))
    end = at + random.randint(0, 30)
    return text[:at] + random.choice(["", text[at:end] * 2, random.choice(JUNK)]) + text[end:]


def _end(text, random):
    """Cut a text off, as a write that was stopped does."""
    return text[: random.randint(0, len(text))]


WAYS = (*[_value] * 6, _line, _line, _piece, _piece, _end)
