"""XML from strangers, read without surprises: no entities, bounded size, depth and count."""

from collections.abc import Iterator
from dataclasses import field
from itertools import count
from typing import Final
from xml.parsers import expat

from topology.base import TopologyError
from topology.base.values import dataclass

_MOST_DEPTH: Final = 64
_MOST_ELEMENTS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Element:
    """One element: its attributes, its own text, what is inside, and the line it begins on."""

    tag: str
    line: int
    attributes: dict[str, str]
    texts: list[str] = field(default_factory=list)
    children: list["Element"] = field(default_factory=list)

    def get(self, key: str) -> str:
        """Give the text of an attribute; empty where it is absent."""
        return self.attributes.get(key, "")

    def number(self, key: str, default: int) -> int:
        """Read an attribute that is a whole number; `default` where it is absent or negative."""
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
        return next(iter(self.all(tag)), None)

    def all(self, tag: str) -> list["Element"]:
        """Give the children of that tag."""
        return [child for child in self.children if child.tag == tag]

    def at(self, path: str) -> str:
        """Text of the element that a path of tags leads to; empty if there is none."""
        node: Element | None = self
        for tag in path.split("/"):
            node = node.find(tag) if node is not None else None
        return "".join(node.texts).strip() if node is not None else ""

    def walk(self) -> Iterator["Element"]:
        """Yield this element and all inside it, in the order of the text."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_xml(text: str) -> Element:
    """Read an XML document.

    A document type may be named, as nvidia-smi does, but neither declares nor loads anything.

    Raises TopologyError if the XML is malformed or cut, declares entities, nests deeper than 64 or
    holds more than 200,000 elements; the message names the line.

    >>> parse_xml('<system><cpu numaid="0"/></system>').children[0].attributes
    {'numaid': '0'}
    >>> parse_xml('<!DOCTYPE s [<!ENTITY a "b">]><s>&a;</s>')
    Traceback (most recent call last):
    topology.base.errors.TopologyError: XML line 1: declares entities: refused
    """
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    document = Element("", 0, {})
    path, numbers = [document], count()

    def start(tag: str, attributes: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if len(path) > _MOST_DEPTH:
            raise TopologyError(
                f"XML line {line}: <{tag[:40]}> is nested deeper than {_MOST_DEPTH}"
            )
        if next(numbers) >= _MOST_ELEMENTS:
            raise TopologyError(f"XML line {line}: more than {_MOST_ELEMENTS} elements")
        element = Element(tag, line, attributes)
        path[-1].children.append(element)
        path.append(element)

    def entity(*_details: object) -> None:
        raise TopologyError(f"XML line {parser.CurrentLineNumber}: declares entities: refused")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _tag: path.pop()
    parser.CharacterDataHandler = lambda data: path[-1].texts.append(data)  # noqa: PLW0108
    parser.StartDoctypeDeclHandler = lambda *name: entity() if name[-1] else None
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)  # noqa: FBT003  # positional only
    except expat.ExpatError as error:
        raise TopologyError(_error_text(error, path[1:])) from None
    return document.children[0]


def _error_text(error: expat.ExpatError, path: list[Element]) -> str:
    """Say where XML stops making sense, and which element was open there."""
    reason = expat.ErrorString(error.code)
    open_element = f" inside <{path[-1].tag[:40]}>" if path else ""
    if "no element found" in reason or "unclosed" in reason:
        reason = "the XML is cut"
    return f"XML line {error.lineno}, column {error.offset + 1}{open_element}: {reason}"
