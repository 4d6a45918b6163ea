"""Answers as pages: one look for all, which needs no script, no font and no link to be whole."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from typing import Final

from topology.base.chart import STYLE as CHARTS
from topology.base.table import Drawing, Line, Part, Said, Table, Title, Typed

_LOOK: Final = (
    ":root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--line:#c9d1d9;--soft:#f3f5f7;"
    "--warn:#a40e26;--link:#0b5cad}"
    "@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--paper:#14171a;"
    "--line:#3c444d;--soft:#1f2429;--warn:#ff8f9c;--link:#7cb8ff}}"
    "*{box-sizing:border-box}body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);"
    "background:var(--paper);margin:0 auto;max-width:76em;padding:1em;overflow-wrap:anywhere}"
    "h1{font-size:1.35em;margin:.4em 0}h2{font-size:1.1em;margin:1.6em 0 .4em}"
    "a{color:var(--link)}:focus-visible{outline:2px solid var(--link);outline-offset:2px}"
    ".wide{overflow-x:auto;margin:.6em 0;background:"
    "linear-gradient(90deg,var(--paper) 1em,transparent) left/2em 100% no-repeat local,"
    "linear-gradient(270deg,var(--paper) 1em,transparent) right/2em 100% no-repeat local,"
    "linear-gradient(90deg,#8888,transparent) left/.7em 100% no-repeat,"
    "linear-gradient(270deg,#8888,transparent) right/.7em 100% no-repeat}"
    ".wide>svg{width:100%;height:auto;min-width:52em}"
    "table{border-collapse:collapse;"
    "font-variant-numeric:tabular-nums;font-size:13px;overflow-wrap:normal}"
    "td,th{border:1px solid var(--line);padding:3px 8px;text-align:right;white-space:nowrap}"
    "th{background:var(--soft);white-space:normal}"
    "@media(max-width:50em){td,th{padding:2px 5px;font-size:12px}}"
    "td.l,th.l{text-align:left}.prose td.l{white-space:normal;"
    "min-width:9em}"
    "pre{background:var(--soft);border:1px solid var(--line);padding:.6em;"
    "white-space:pre-wrap;font-size:13px}li{margin:.25em 0}.w{color:var(--warn)}"
    "figure{margin:1em 0;break-inside:avoid}figcaption{font-weight:600;margin-bottom:.4em}"
    "footer{margin-top:2em;border-top:1px solid var(--line);font-size:13px}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.2em 1em}dd{margin:0}"
    "@media print{body{max-width:none;padding:0;font-size:11pt}"
    ".wide{overflow:visible;background:none}"
    ".wide>svg{min-width:0}"
    "td,th{white-space:normal}table,pre,li{break-inside:avoid}h2{break-after:avoid}}"
)
STYLE: Final = _LOOK + CHARTS
"""The only style of a page."""
MAIN: Final = "<main>"
"""Where what a page says begins."""


def content_policy(style: str = STYLE) -> str:
    """Write the policy of a page: its own style, and nothing from anywhere else."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'"


def web(title: str, parts: Iterable[Part], foot: Mapping[str, str] | None = None) -> str:
    """Write an answer as a page; `foot` says what it came of."""
    return page(title, map(fragment, parts), foot or {})


def fragment(part: Part) -> str:
    """Write a part of an answer as HTML."""
    match part:
        case Table():
            prose = " prose" if max(map(len, _cells(part)), default=0) > _PROSE else ""
            return _wide(part.html(), prose)
        case Title():
            return f"<h{part.level}>{escape(part.text)}</h{part.level}>"
        case Said():
            return _items(part) if part.lines else ""
        case Typed():
            return f"<pre>{escape(part.line)}</pre>"
        case Drawing():
            return part.svg if part.svg.startswith("<figure") else _figure(part)
    text = part.text if isinstance(part, Line) else part
    return f"<p>{escape(text)}</p>" if text else ""


def _wide(body: str, css_class: str = "") -> str:
    """Let something that may be wider than a telephone be moved, by hand or by keys."""
    if not body:
        return ""
    label = "table" if body.startswith("<table") else "picture"
    return (
        f'<div class="wide{css_class}" role="region" aria-label="{label}" tabindex="0">{body}</div>'
    )


def _figure(drawing: Drawing) -> str:
    """Put the title of a picture above it."""
    title = f"<figcaption>{escape(drawing.title)}</figcaption>" if drawing.title else ""
    return f"<figure>{title}{_wide(drawing.svg)}</figure>" if drawing.svg else ""


_PROSE: Final = 60
"""Characters of a cell that is a sentence."""


def _cells(table: Table) -> Iterable[str]:
    return (cell for row in table.rows for cell in row)


def _items(said: Said) -> str:
    mark = ' class="w"' if said.warns else ""
    return f"<ul>{''.join(f'<li{mark}>{escape(line)}</li>' for line in said.lines)}</ul>"


def page(title: str, body: Iterable[str], foot: Mapping[str, str]) -> str:
    """Make a page of parts that are HTML already."""
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in foot.items()
    )
    footer = f"<footer><dl>{facts}</dl></footer>" if facts else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(content_policy())}"/>'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{MAIN}{''.join(body)}</main>{footer}</body></html>"
    )


def notebook(parts: Iterable[Part]) -> str:
    """Write parts of an answer for a notebook, which has a look of its own."""
    return f"<div><style>{CHARTS}</style>{''.join(map(fragment, parts))}</div>"
