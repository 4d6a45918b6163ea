"""Words of a shell, made of names that people gave."""

import shlex
from typing import Final

_SPECIAL: Final = frozenset("\\'\"%$`")


def shell_word(text: str) -> str:
    r"""Quote a word so that a shell takes it as it is, and a terminal writes nothing else.

    >>> print(shell_word("a b"), shell_word("a\x1b[2J b"))
    'a b' "$(printf 'a\033[2J b')"
    """
    if text.isprintable():
        return shlex.quote(text)
    return f"""\"$(printf '{"".join(map(_escaped, text))}')\""""


def path_word(text: str) -> str:
    """Write a path that begins like an option so that it is none."""
    return f"./{text}" if text.startswith("-") else text


def shell_path(text: str) -> str:
    """Quote a path, which no program takes for an option.

    >>> shell_path("-x/config.json")
    './-x/config.json'
    """
    return shell_word(path_word(text))


def _escaped(character: str) -> str:
    if character.isprintable() and character not in _SPECIAL:
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
