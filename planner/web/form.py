"""The form of a page, with what was filled in before."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from planner.models import names
from planner.web.fields import Field, Groups
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


Filled = Mapping[str, Sequence[str]]
"""What was filled in by the name of its field, which some are several times."""
_HIDDEN_KINDS: Final = ("file", "unmodelled")
"""Kinds of fields that no form has."""


def form(pages: Mapping[str, Groups], page: str, filled: Filled) -> str:
    """Write the links to all pages, and the form of one."""
    links = "".join(
        f'<a href="/{name}"{_CURRENT_PAGE if name == page else ""}>{name}</a>' for name in pages
    )
    (title, first_group), *other_groups = pages[page]
    groups = "".join(_collapsed_group(name, group, filled) for name, group in other_groups)
    return (
        f'<nav aria-label="pages">{links}</nav>'
        f'<form method="post" action="/{page}" accept-charset="utf-8">'
        f"{_fieldset(title, first_group, filled)}{groups}"
        f'<button type="submit">{page}</button></form>'
        f"{_datalist('model', names())}{_datalist('hardware', all_hardware())}"
    )


_CURRENT_PAGE: Final = ' aria-current="page"'


def _collapsed_group(title: str, group: Iterable[Field], filled: Filled) -> str:
    """Write fields that few need, open where one of them is filled in."""
    texts = (text for field in group for text in filled.get(field.name, ()))
    open_mark = " open=''" if any(map(str.strip, texts)) else ""
    fieldset = _fieldset("", group, filled)
    return f"<details{open_mark}><summary>{escape(title)}</summary>{fieldset}</details>"


def _fieldset(title: str, group: Iterable[Field], filled: Filled) -> str:
    legend = f"<legend>{escape(title)}</legend>" if title else ""
    inputs = "".join(
        _labelled_input(field, value)
        for field in group
        if field.kind not in _HIDDEN_KINDS
        for value in _field_values(field, filled)
    )
    return f"<fieldset>{legend}{inputs}</fieldset>"


def _field_values(field: Field, filled: Filled) -> Sequence[str]:
    """List what stands in a field; one that may be repeated has room for another."""
    filled_texts = [text for text in filled.get(field.name, ()) if text.strip()]
    return [*filled_texts, ""] if field.repeats or not filled_texts else filled_texts


def _labelled_input(field: Field, value: str) -> str:
    label, name = escape(field.label), escape(field.name)
    match field.kind:
        case "flag":
            checked_mark = " checked=''" if value else ""
            box = f'<input type="checkbox" name="{name}" value="yes"{checked_mark}/>'
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
    list_attribute = f' list="{field.kind}"' if field.kind in ("model", "hardware") else ""
    required_mark = " required=''" if field.kind == "model" else ""
    title = f' title="{escape(field.says)}"' if field.says else ""
    numeric = ' inputmode="decimal"' if field.kind in ("number", "price") else ""
    return (
        f'<label>{label}<input type="text" name="{name}" value="{escape(value)}" '
        f'placeholder="{escape(field.hint)}" autocomplete="off"'
        f"{list_attribute}{numeric}{required_mark}{title}/></label>"
    )


def _datalist(kind: str, names_offered: Iterable[str]) -> str:
    """List the names of a kind, which its fields offer."""
    options = "".join(f'<option value="{escape(name)}"></option>' for name in names_offered)
    return f'<datalist id="{kind}">{options}</datalist>'
