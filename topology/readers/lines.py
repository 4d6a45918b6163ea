"""A pasted text as plain lines: colours, carets, odd blanks and line ends taken out."""

import re
from typing import Final

from topology.base import MOST_CHARACTERS, TopologyError

_ESCAPE: Final = re.compile(
    r"(?:\x1b|\^\[|\\e|\\033|\\x1b)\[[0-9;?]{0,16}[A-Za-z]"  # real, caret and spelled-out escapes
    r"|\[(?:[0-9]{1,2}(?:;[0-9]{1,3}){0,4})?m"  # what is left when the escape character was lost
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]"
)
_BLANKS: Final = str.maketrans({"\xa0": " ", "\u2003": " ", "\u2002": " ", "\u3000": " "})


def plain_lines(text: str) -> list[str]:
    r"""Split a text into lines without control sequences; line `n` stays line `n`.

    >>> plain_lines("\t\x1b[4mGPU0\tGPU1\x1b[0m\r\nGPU0\t X ")
    ['\tGPU0\tGPU1', 'GPU0\t X ']
    >>> plain_lines("[4mGPU0 GPU1[0m")
    ['GPU0 GPU1']
    """
    return [
        _ESCAPE.sub("", line).translate(_BLANKS)
        for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]


def checked(text: str) -> str:
    """Refuse what is no text, or too much of it.

    Raises
    ------
    TopologyError
        If the text is empty, binary, or longer than 10 MiB.
    """
    if len(text) > MOST_CHARACTERS:
        raise TopologyError(f"{len(text)} characters: expected at most {MOST_CHARACTERS}")
    if not text.strip():
        raise TopologyError("got an empty text, wanted a topology")
    at = text.find("\x00")
    if at >= 0:
        raise TopologyError(f"byte {at} is 0: got binary data, wanted text")
    return text
