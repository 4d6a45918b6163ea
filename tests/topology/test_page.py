"""Pages: one look, whole by themselves, their charts inside their frames at any width."""

import re
from xml.etree import ElementTree as ET

import pytest
from commands import COMMANDS, run
from hypothesis import example, given
from hypothesis import strategies as st

from topology.base.chart import Axis, ChartRow, ChartSpan, Series, curves, spans
from topology.base.page import content_policy, web
from topology.base.table import Drawing

SIZE = st.floats(1e-9, 1e15)
NAME = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=90)
SVG = "{http://www.w3.org/2000/svg}"


def axis(base=0, unit=1.0):
    return Axis(title="of <nothing>", write="{:g}".format, base=base, unit=unit)


def tree(svg):
    return ET.fromstring(f"<div>{svg}</div>")


def places(root):
    """Every percentage along the page, and where each line of a path goes in a box of 100."""
    for part in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            if part.get(name, "").endswith("%"):
                yield float(part.get(name)[:-1])
        yield from map(float, re.findall(r"[\d.]+", part.get("d", "")))


@given(
    st.lists(st.tuples(SIZE, SIZE, NAME), min_size=1, max_size=9),
    st.sampled_from([0, 2, 10]),
    st.sampled_from([1.0, 1 / 60, 2.0**30]),
    st.one_of(st.none(), st.tuples(SIZE, NAME)),
)
@example([(279427.0, 1.0, "0")], 2, 1 / 60, None)  # a thousandth below a power of two
def test_every_point_of_a_chart_is_in_its_frame_and_says_what_it_is(points, base, unit, mark):
    shape = ("straight", "steps", "none")[len(points) % 3]
    root = tree(curves("<b>", [Series(name="&", points=points, shape=shape)],
                       (axis(base, unit), axis(base)), mark))  # fmt: skip
    said = [part.get("aria-label") for part in root.iter(f"{SVG}g")]

    assert all(-0.01 <= place <= 100.01 for place in places(root))
    assert said == [f"&: {says}" for _, _, says in points]
    assert [part.text for part in root.iter("figcaption")] == ["<b>"]


@given(st.lists(st.tuples(SIZE, SIZE), min_size=1, max_size=9))
def test_spans_stand_where_they_start_and_are_as_long_as_they_last(parts):
    drawn = [ChartSpan(start=start, end=start + size, kind="a", says="b") for start, size in parts]
    boxes = [
        (float(box.get("x")[:-1]), float(box.get("width")[:-1]))
        for box in tree(spans("c", [ChartRow(name="d", spans=drawn)], axis())).iter(f"{SVG}rect")
    ]
    whole = max(span.end for span in drawn)

    assert len(boxes) == len(drawn)
    for (left, width), span in zip(boxes, drawn, strict=True):
        assert left + width <= 100.06
        assert left / 100 <= span.start / whole + 1e-4
        assert (
            width / 100 >= (span.end - span.start) / whole / 2 - 1e-4
        )  # the axis is twice at most


def test_axes_have_round_ticks():
    root = tree(curves("a", [Series(name="b", points=[(3.0, 430.0, ""), (90.0, 10.0, "")])],
                       (axis(2), axis()), (30.0, "asked")))  # fmt: skip
    texts = [part.text for part in root.iter(f"{SVG}text") if part.text]

    assert texts[:4] == ["2", "8", "32", "128"]
    assert texts[5:11] == ["0", "100", "200", "300", "400", "500"]
    assert "asked" in texts


def test_what_there_is_nothing_of_is_no_chart():
    assert curves("a", [Series(name="b", points=[])], (axis(), axis()), None) == ""
    assert spans("a", [ChartRow(name="b", spans=[])], axis()) == ""
    assert "<figure" not in web("a", [Drawing(svg="")])


PAGES = [name for name in COMMANDS if not name.startswith("models") and name != "decoder"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_by_itself_and_says_what_it_came_of(name):
    code, page, err = run(*COMMANDS[name], "--format", "html")

    assert (code, err) == (0, "")
    assert len(page) < 4 * 2**20
    assert "<svg" in page
    assert not re.search(r"<script|<link|<img|url\(|@import|\son\w+=|\sstyle=", page)
    assert set(re.findall(r"https?://[^\s\"<]+", page)) <= {"http://www.w3.org/2000/svg"}
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.replace("&#x27;", "'") == content_policy()
    assert f"<dd>planner {' '.join(COMMANDS[name])} --format html</dd>" in page
    assert re.search(r"<dt>version</dt><dd>planner \d", page)
    assert re.search(r"<dt>written</dt><dd>\d{4}-\d\d-\d\d ", page)
    ET.fromstring(page.removeprefix("<!DOCTYPE html>"))
