"""A drawing of one host: processors above, switches below them, devices at the bottom, NVLink.

Plain SVG without script, font or link, so that it can be mailed, printed and put in a page.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.machine import Edge, Machine

_WIDTH: Final = 96
_HEIGHT: Final = 34
_GAP: Final = 14
_STEP: Final = 78
_MOST_DEVICES: Final = 96  # devices that are drawn
_LEVELS: Final = {"cpu": 0, "root": 1, "pcie_switch": 2, "gpu": 4, "nic": 4, "nvswitch": 5}
_FILLS: Final = {
    "cpu": "#dbe4f0", "root": "#eef1f5", "pcie_switch": "#e3e3e3", "gpu": "#cfe8c6",
    "nic": "#f6e3c0", "nvswitch": "#b9dbaa",
}  # fmt: skip
_LINES: Final = {
    "pcie": "#777777", "host": "#9aa7b8", "socket": "#3b6ea5", "nvlink": "#4c9a2a",
    "c2c": "#8d5fb0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Box:
    """Where one part is drawn: its middle and its top."""

    x: float
    y: float
    width: float


def svg(machine: Machine) -> str:
    """Draw one host of a machine.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine import machine_of
    >>> drawing = svg(machine_of(find_hardware("h100-sxm")))
    >>> drawing.count('"middle">GPU'), drawing.count('"middle">NVSwitch')
    (8, 1)
    """
    kinds = machine.part_kinds
    boxes = _boxes(machine, kinds)
    width = max((box.x + box.width / 2 for box in boxes.values()), default=_WIDTH) + _GAP
    height = max((box.y for box in boxes.values()), default=0) + _HEIGHT + 5 * _GAP
    edges = [edge for edge in machine.edges if edge.a in boxes and edge.b in boxes]
    parts = [*_drawn_edges(edges, boxes, kinds), *_drawn_boxes(machine, boxes, kinds)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="11">'
        f"<title>{escape(machine.name)}</title>{''.join(parts)}</svg>"
    )


def _boxes(machine: Machine, kinds: Mapping[str, str]) -> dict[str, _Box]:
    """Place devices side by side in the order of the tree, and each parent above its children."""
    children_of = gathered(
        (edge.b, edge.a) for edge in machine.edges if edge.kind in ("pcie", "host")
    )
    order = [
        leaf
        for node in machine.nodes
        if node.kind == "cpu"
        for leaf in _leaves(node.name, children_of, kinds)
    ]
    names = [gpu.name for gpu in machine.gpus] + [nic.name for nic in machine.nics]
    order = list(dict.fromkeys([*order, *(n for n in names if n not in order)]))[:_MOST_DEVICES]
    boxes = {
        name: _Box(_GAP + index * (_WIDTH + _GAP) + _WIDTH / 2, _top(kinds[name]), _WIDTH)
        for index, name in enumerate(order)
    }
    for node in (n for n in machine.nodes if n.kind not in ("nvswitch", "switch")):
        children = [boxes[leaf] for leaf in _leaves(node.name, children_of, kinds) if leaf in boxes]
        if children:
            middle = (children[0].x + children[-1].x) / 2
            over_switch = any(
                kinds[child] == "pcie_switch" for child in children_of.get(node.name, ())
            )
            depth = int(node.kind == "pcie_switch" and over_switch)
            boxes[node.name] = _Box(middle, _top(node.kind) - depth * _STEP / 2, _WIDTH)
    for node in (n for n in machine.nodes if n.kind == "nvswitch"):  # a bar below their GPUs
        middles = [boxes[e.a].x for e in machine.edges if e.b == node.name and e.a in boxes]
        if middles:
            left, right = min(middles), max(middles)
            boxes[node.name] = _Box((left + right) / 2, _top("nvswitch"), right - left + _WIDTH)
    return boxes


def _leaves(
    name: str, children_of: Mapping[str, Sequence[str]], kinds: Mapping[str, str], depth: int = 0
) -> Iterator[str]:
    if depth > 64:
        return
    for child in children_of.get(name, ()):
        if kinds[child] in ("gpu", "nic"):
            yield child
        else:
            yield from _leaves(child, children_of, kinds, depth + 1)


def _top(kind: str) -> float:
    return _GAP * 2 + _LEVELS.get(kind, 2) * _STEP


def _drawn_edges(
    edges: Iterable[Edge], boxes: Mapping[str, _Box], kinds: Mapping[str, str]
) -> Iterator[str]:
    for number, edge in enumerate(edges):
        a, b = boxes[edge.a], boxes[edge.b]
        colour = _LINES.get(edge.kind, "#777777")
        stroke_width = 1 + min(4, edge.bandwidth.value / 10**11)
        title = f"{edge.a} - {edge.b}: {edge.bandwidth.value / 10**9:.4g} GB/s ({edge.kind})"
        tip = f"<title>{escape(title)}</title>"
        pen = f'fill="none" stroke="{colour}" stroke-width="{stroke_width:.1f}"'
        bottom_point = f"{a.x:.0f} {a.y + _HEIGHT:.0f}"
        if edge.kind == "nvlink" and kinds[edge.b] == "gpu":
            lowest_y = a.y + _HEIGHT + 22 + 8 * (number % 5)
            bend = (
                f"{a.x:.0f} {lowest_y:.0f} {b.x:.0f} {lowest_y:.0f} {b.x:.0f} {b.y + _HEIGHT:.0f}"
            )
            path = f"{bottom_point}C{bend}"
        elif edge.kind == "nvlink":
            path = f"{bottom_point}V{b.y:.0f}"
        else:
            path = f"{a.x:.0f} {a.y + _HEIGHT / 2:.0f}L{b.x:.0f} {b.y + _HEIGHT / 2:.0f}"
        yield f'<path d="M{path}" {pen}>{tip}</path>'


def _drawn_boxes(
    machine: Machine, boxes: Mapping[str, _Box], kinds: Mapping[str, str]
) -> Iterator[str]:
    labels = {nic.name: nic.device or nic.name for nic in machine.nics}
    labels |= {gpu.name: f"{gpu.name} {gpu.hardware or ''}".strip() for gpu in machine.gpus}
    for name, box in boxes.items():
        text = escape(labels.get(name, name.removeprefix("switch ")))
        label = text if len(text) <= 16 else text[:15] + "…"
        yield (
            f'<rect x="{box.x - box.width / 2:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
            f'height="{_HEIGHT}" rx="4" fill="{_FILLS.get(kinds[name], "#eeeeee")}" '
            f'stroke="#555555"/><text x="{box.x:.0f}" y="{box.y + _HEIGHT / 2 + 4:.0f}" '
            f'text-anchor="middle">{label}</text>'
        )
