"""Pages that need nothing else: no script, no font, no link, so that they can be mailed."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

_STYLE: Final = (
    "body{font:14px sans-serif;margin:2em;color:#222}table{border-collapse:collapse;margin:.5em 0}"
    "td,th{border:1px solid #ccc;padding:2px 7px;text-align:right;font:12px monospace}"
    "li{margin:.2em 0}.w{color:#a11}h2{font-size:16px;margin-top:1.5em}"
)


def document(title: str, body: Iterable[str]) -> str:
    """Make a page of parts that are HTML already."""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>'
        f"{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"{''.join(body)}</body></html>"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Make a table; its first row is the head."""
    cells = (
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for row, tag in ((row, "td" if number else "th") for number, row in enumerate(rows))
    )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
