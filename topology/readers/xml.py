"""XML from strangers, read without surprises: no entities, bounded size, depth and count."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final
from xml.parsers import expat

from topology.base import TopologyError

_DEEPEST: Final = 64
_MOST: Final = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element: its attributes, its own text, what is inside, and the line it begins on."""

    tag: str
    line: int
    attributes: dict[str, str]
    text: str
    children: tuple["Element", ...]

    def get(self, key: str) -> str:
        """Give the text of an attribute; empty where it is absent."""
        return self.attributes.get(key, "")

    def number(self, key: str, default: int) -> int:
        """Read an attribute that is a whole number; `default` where it is absent or negative.

        Raises
        ------
        TopologyError
            If it is no number, naming the line.
        """
        text = self.get(key)
        if not text:
            return default
        try:
            value = int(text[:12], 0)
        except ValueError:
            raise TopologyError(
                f"XML line {self.line}: {key}={text[:20]!r}: expected a whole number"
            ) from None
        return value if value >= 0 and len(text) <= 12 else default

    def find(self, tag: str) -> "Element | None":
        """Give the first child of that tag."""
        return next((child for child in self.children if child.tag == tag), None)

    def all(self, tag: str) -> tuple["Element", ...]:
        """Give the children of that tag."""
        return tuple(child for child in self.children if child.tag == tag)

    def at(self, path: str) -> str:
        """Text of the element that a path of tags leads to; empty if there is none."""
        node: Element | None = self
        for tag in path.split("/"):
            node = node.find(tag) if node is not None else None
        return node.text if node is not None else ""

    def walk(self) -> Iterator["Element"]:
        """Yield this element and all inside it, in the order of the text."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_xml(text: str) -> Element:
    """Read an XML document.

    A document type may be named, as nvidia-smi does, but neither declares nor loads anything.

    Raises
    ------
    TopologyError
        If the XML is malformed or cut, declares entities, nests deeper than 64 or holds more
        than 200,000 elements; the message names the line.

    Examples
    --------
    >>> parse_xml('<system><cpu numaid="0"/></system>').children[0].attributes
    {'numaid': '0'}
    >>> parse_xml('<!DOCTYPE s [<!ENTITY a "b">]><s>&a;</s>')
    Traceback (most recent call last):
    topology.base.errors.TopologyError: XML line 1: declares entities: refused
    """
    parser = expat.ParserCreate("utf-8")
    building = _Building(parser, [], [], count())
    parser.StartElementHandler = building.start
    parser.EndElementHandler = building.end
    parser.CharacterDataHandler = building.data
    parser.StartDoctypeDeclHandler = building.doctype
    parser.EntityDeclHandler = building.entity
    parser.buffer_text = True
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)  # noqa: FBT003  # positional only
    except expat.ExpatError as error:
        raise TopologyError(_place(error, building)) from None
    return building.done[0]


@dataclass(frozen=True, slots=True)
class _Open:
    tag: str
    line: int
    attributes: dict[str, str]
    text: list[str]
    children: list[Element]


@dataclass(frozen=True, slots=True)
class _Building:
    """What expat calls while it reads; lives for one document."""

    parser: expat.XMLParserType
    open: list[_Open]
    done: list[Element]
    number: Iterator[int]

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        if len(self.open) >= _DEEPEST:
            raise TopologyError(f"XML line {line}: <{tag[:40]}> is nested deeper than {_DEEPEST}")
        if next(self.number) >= _MOST:
            raise TopologyError(f"XML line {line}: more than {_MOST} elements")
        self.open.append(_Open(tag, line, attributes, [], []))

    def end(self, _tag: str) -> None:
        top = self.open.pop()
        element = Element(
            tag=top.tag,
            line=top.line,
            attributes=top.attributes,
            text="".join(top.text).strip(),
            children=tuple(top.children),
        )
        if self.open:
            self.open[-1].children.append(element)
        self.done[:] = [element]

    def data(self, text: str) -> None:
        if self.open:
            self.open[-1].text.append(text)

    def doctype(self, _name: str, _system: str | None, _public: str | None, inside: bool) -> None:  # noqa: FBT001  # expat's order
        if inside:
            self.entity()

    def entity(self, *_details: object) -> None:
        line = self.parser.CurrentLineNumber
        raise TopologyError(f"XML line {line}: declares entities: refused")


def _place(error: expat.ExpatError, building: _Building) -> str:
    """Say where XML stops making sense, and which element was open there."""
    what = expat.ErrorString(error.code)
    inside = f" inside <{building.open[-1].tag[:40]}>" if building.open else ""
    if "no element found" in what or "unclosed" in what:
        what = "the XML is cut"
    return f"XML line {error.lineno}, column {error.offset + 1}{inside}: {what}"
