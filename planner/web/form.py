"""The form of a page, with what was filled in before."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from planner.models import names
from planner.web.fields import PAGES, Field
from topology.base.page import STYLE as LOOK
from topology.catalogue import all_hardware

STYLE: Final = (
    f"{LOOK}nav a{{margin-right:1.2em}}nav a[aria-current]{{font-weight:700}}"
    "fieldset{border:1px solid var(--line);display:flex;flex-wrap:wrap;gap:.7em 1.2em;"
    "margin:.6em 0;padding:.6em .9em}details{margin:.6em 0}summary{cursor:pointer}"
    "form label{display:grid;gap:.15em;font-size:13px}"
    "form label.flag{display:flex;align-items:center;gap:.4em}"
    "input,select,textarea,button{font:inherit;max-width:100%}input[type=text]{width:9.5em}"
    "label.paste{flex:1 1 100%}textarea{width:100%;font:12px monospace}"
    "button{padding:.35em 1.4em;margin:.3em 0}@media print{nav,form{display:none}}"
)
"""Of the pages that ask."""


def form(page: str, filled: Mapping[str, str]) -> str:
    """Write the links to all pages, and the form of one."""
    links = "".join(
        f'<a href="/{name}"{_CURRENT if name == page else ""}>{name}</a>' for name in PAGES
    )
    (title, first), *others = PAGES[page]
    groups = "".join(_more(name, group, filled) for name, group in others)
    return (
        f'<nav aria-label="pages">{links}</nav>'
        f'<form method="post" action="/{page}" accept-charset="utf-8">'
        f"{_fieldset(title, first, filled)}{groups}"
        f'<button type="submit">{page}</button></form>{_lists()}'
    )


_CURRENT: Final = ' aria-current="page"'


def _more(title: str, group: Iterable[Field], filled: Mapping[str, str]) -> str:
    """Write fields that few need, open where one of them is filled in."""
    used = " open=''" if any(filled.get(field.name, "").strip() for field in group) else ""
    inside = _fieldset("", group, filled)
    return f"<details{used}><summary>{escape(title)}</summary>{inside}</details>"


def _fieldset(title: str, group: Iterable[Field], filled: Mapping[str, str]) -> str:
    legend = f"<legend>{escape(title)}</legend>" if title else ""
    inputs = "".join(_labelled(field, filled.get(field.name, "")) for field in group)
    return f"<fieldset>{legend}{inputs}</fieldset>"


def _labelled(field: Field, value: str) -> str:
    label, name = escape(field.label), escape(field.name)
    match field.kind:
        case "flag":
            ticked = " checked=''" if value else ""
            box = f'<input type="checkbox" name="{name}" value="yes"{ticked}/>'
            return f'<label class="flag">{box}{label}</label>'
        case "choice":
            options = "".join(
                f"<option{' selected=' + repr('') if choice == value else ''}>{choice}</option>"
                for choice in ("", *field.choices)
            )
            return f'<label>{label}<select name="{name}">{options}</select></label>'
        case "paste":
            area = (
                f'<textarea name="{name}" rows="6" placeholder="{escape(field.hint)}">'
                f"\n{escape(value)}</textarea>"
            )
            return f'<label class="paste">{label}{area}</label>'
    listed = f' list="{field.kind}"' if field.kind in ("model", "hardware") else ""
    needed = " required=''" if field.kind == "model" else ""
    numeric = ' inputmode="decimal"' if field.kind == "number" else ""
    return (
        f'<label>{label}<input type="text" name="{name}" value="{escape(value)}" '
        f'placeholder="{escape(field.hint)}" autocomplete="off"{listed}{numeric}{needed}/></label>'
    )


def _lists() -> str:
    """List the names of models and hardware, which fields offer."""
    return _datalist("model", names()) + _datalist("hardware", all_hardware())


def _datalist(kind: str, known: Iterable[str]) -> str:
    options = "".join(f'<option value="{escape(name)}"></option>' for name in known)
    return f'<datalist id="{kind}">{options}</datalist>'
