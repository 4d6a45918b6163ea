"""Files as users give and get them, or as they ship, and the variables a command runs with."""

import marshal
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from topology.base.errors import InputError, TopologyError, printable_character

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MOST_CHARACTERS: Final = 10 * 2**20
_LONGEST_PATH: Final = 1024
_PIECE_BYTES: Final = 2**20
_DRAFT_LETTERS: Final = 40
"""Characters of a name in that of its draft: a file system takes 255 bytes."""
_MOST_PARTS: Final = 64
_PART: Final = r"""(?:[\w-]+|"[^"\n]{0,99}"|'[^'\n]{0,99}')"""
_DEEP_KEY: Final = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{_MOST_PARTS}}}")
"""Parsers take a time that grows with the square of the parts."""


def text_of(source: str | Path) -> str:
    """Give the text that `source` is, or that the file it names holds.

    A string with a line break, a ``<`` or a ``{`` is text; any other names a file.

    Raises TopologyError if there is no such file, it is a folder, over 10 MiB, or no text.
    """
    if is_text(source):
        return str(source)
    name = str(source)[:100]
    try:
        if len(str(source)) > _LONGEST_PATH or not Path(source).exists():
            raise TopologyError(f"no such file: {name!r}")
        if not Path(source).is_file():  # a pipe or a device may never end
            raise TopologyError(f"{name!r} is a {_file_kind(Path(source))}, wanted a file")
        size = Path(source).stat().st_size
        if size > MOST_CHARACTERS:
            raise TopologyError(f"{name}: {size} bytes: expected at most {MOST_CHARACTERS}")
        return decoded_text(read_up_to(Path(source), MOST_CHARACTERS), name)
    except (OSError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"cannot read {name!r}: {error}") from None


def content(source: str, most: int) -> bytes:
    """Read a file of at most `most` bytes; the caller says of which option or kind it is.

    Raises InputError if it is not there, no file (a pipe or a device never ends), too large, or
    unreadable.
    """
    path, data = Path(source), b""
    try:
        exists, regular = path.exists(), path.is_file()
        if regular or not exists:
            data = read_up_to(path, most + 1)
    except (OSError, ValueError) as error:
        raise InputError(getattr(error, "strerror", None) or "no path") from None
    if exists and not regular:
        raise InputError(f"not a file but a {_file_kind(path)}")
    if len(data) > most:
        raise InputError(f"wanted a file of at most {most} bytes")
    return data


def read_up_to(path: Path, most: int) -> bytes:
    """Read a file, or its first `most` bytes.

    Raises OSError if it cannot be read, or does not answer at once, as some that the kernel makes.
    """
    data = bytearray()
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        while len(data) < most and (piece := os.read(file, min(most - len(data), _PIECE_BYTES))):
            data += piece
    finally:
        os.close(file)
    return bytes(data)


def toml_of(text: str) -> dict[str, Any]:
    """Parse TOML that somebody wrote.

    Raises InputError with the reason, for the caller to say of what: no TOML, or keys, lists or
    numbers that take longer than any file of ours needs.

    >>> toml_of("a.b = 1")
    {'a': {'b': 1}}
    >>> toml_of(".".join("x" * 100) + " = 1")
    Traceback (most recent call last):
    topology.base.errors.InputError: got a key of more than 64 parts
    """
    import tomllib  # noqa: PLC0415  # most commands find all tables parsed

    if _DEEP_KEY.search(text):
        raise InputError(f"got a key of more than {_MOST_PARTS} parts")
    try:
        return cast("dict[str, Any]", printable(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise InputError(" ".join(str(error).split())[:120]) from None
    except RecursionError:
        raise InputError("got lists or tables in each other, too deep to read") from None
    except ValueError:
        raise InputError("got a number of thousands of digits") from None


def csv_of(text: str) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    r"""Parse CSV that somebody wrote: the names of its columns, and its rows, empty where cut off.

    Raises InputError with the reason, for the caller to say of what.

    >>> csv_of("a,b\n1,2,3\n4")
    (('a', 'b'), [{'a': '1', 'b': '2'}, {'a': '4', 'b': ''}])
    """
    import csv  # noqa: PLC0415  # few commands read any

    table = csv.reader(text.splitlines())
    try:
        names = tuple(next(table, ()))
        rows = [row for row in table if row]
    except csv.Error as error:
        raise InputError(f"got a line that is no CSV, {error}") from None
    return names, [dict(zip_longest(names, row[: len(names)], fillvalue="")) for row in rows]


def printable(value: object) -> object:
    r"""Escape control characters in what was parsed, save the ends of lines of a text in it.

    >>> printable({"name": ["GPU0\x1b[2J"]})
    {'name': ['GPU0\\x1b[2J']}
    """
    if isinstance(value, str):
        return value if value.isprintable() else "".join(map(_escaped, value))
    if isinstance(value, dict):
        return {printable(key): printable(inner) for key, inner in value.items()}
    return [printable(inner) for inner in value] if isinstance(value, list) else value


def _escaped(character: str) -> str:
    return character if character in "\n\r\t" else printable_character(character)


def _file_kind(path: Path) -> str:
    return "folder" if path.is_dir() else "pipe or device"


def is_file(source: str) -> bool:
    """Whether a text is the name of something that is there; False for what is no name."""
    try:
        return len(source) <= _LONGEST_PATH and Path(source).exists()
    except (OSError, ValueError):
        return False


def is_text(source: str | Path) -> bool:
    """Tell text from the name of a file."""
    return isinstance(source, str) and any(mark in source for mark in "\n\r<{")


def decoded_text(data: bytes, name: str) -> str:
    r"""Turn bytes into text: UTF-8, or UTF-16 where a byte-order mark says so.

    >>> decoded_text("GPU0".encode("utf-16"), "paste.txt")
    'GPU0'
    """
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TopologyError(f"{name}: line {line} is not text: got binary data") from None


def shipped_table(path: "Traversable") -> dict[str, Any]:
    """Read a TOML file of the package, which is parsed once: kept as Python keeps modules.

    What was parsed lies in ``__pycache__`` while the file has the same size and time, and nowhere
    if that folder cannot be written or Python is told to write no bytecode.
    """
    if not isinstance(path, Path):  # in an archive
        return _parsed_toml(path)
    from importlib.util import cache_from_source  # noqa: PLC0415  # help reads no table

    state = path.stat()
    key = [state.st_mtime_ns, state.st_size]
    cached_path = Path(cache_from_source(str(path))).with_suffix(".tomlc")
    with suppress(OSError, ValueError, EOFError, TypeError):
        cached_key, table = marshal.loads(cached_path.read_bytes())  # noqa: S302  # as bytecode is
        if cached_key == key:
            return cast(dict[str, Any], table)
    table = _parsed_toml(path)
    if not sys.dont_write_bytecode:
        with suppress(OSError, ValueError):
            cached_path.parent.mkdir(exist_ok=True)
            with _replacing_file(cached_path) as file:
                file.write(marshal.dumps((key, table)))
    return table


def _parsed_toml(path: "Traversable") -> dict[str, Any]:
    import tomllib  # noqa: PLC0415  # most commands find all tables parsed

    return tomllib.loads(path.read_text(encoding="utf-8"))


def draft_path(path: Path) -> Path:
    """Give a name beside `path` that nobody else has: it is drawn."""
    return path.with_name(f".{path.name[:_DRAFT_LETTERS]}.{os.urandom(8).hex()}")


@contextmanager
def _replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `path` when all is written, or leaves nothing.

    It is made, so that a link which somebody has put there is not followed.
    """
    draft = draft_path(path)
    file = draft.open("xb")
    try:
        with file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def place(output: str, what: str = "a file", option: str = "--output") -> Path:
    """Give the place that an option names, links followed, whether or not something is there.

    Raises InputError if there can be nothing of that name: none, too long, a circle of links, a
    null character.
    """
    try:
        path = Path(output).resolve()
        path.exists()
        has_name = bool(path.name) and output.strip() != ""
    except OSError as error:
        raise InputError(f"{option} {output}: {error.strerror}") from None
    except (RuntimeError, ValueError):
        has_name = False
    if not has_name:
        raise InputError(f"{option} {output[:60]!r}: wanted the path of {what}")
    return path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, safe on the disk; one that is replaced keeps its rights.

    Raises OSError if it cannot be written; nothing is left beside it.
    """
    with _replacing_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
        if path.exists():
            Path(file.name).chmod(path.stat().st_mode)


def write_new(path: Path, text: str) -> None:
    """Write a file whole or not at all, and never over one that is there.

    Raises InputError if there is one, or it cannot be written.
    """
    draft = draft_path(path)
    try:
        write_whole(draft, text)
        os.link(draft, path)
    except FileExistsError:
        raise InputError(f"{path}: exists already, wanted a new name") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Hold a folder that is there, for as long as this process works in it, however it ends.

    Where a system has no such locks it is free to all.

    Raises InputError with `busy` if another process does.
    """
    try:
        import fcntl  # noqa: PLC0415  # few hold one
    except ImportError:
        yield
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # of a file system without locks
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(busy) from None
        yield
    finally:
        os.close(file)


def environment() -> dict[str, str]:
    """Give the variables that this program runs with."""
    return dict(os.environ)
