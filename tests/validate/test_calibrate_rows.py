"""Rows survive a kill, and damaged ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.base import InputError
from validate.fit.rows import Row, done, line, read_rows, whole_lines

ROW = Row(key="matmul m=8", family="matmul", sizes={"m": 8}, mode="short", values={"seconds": 1e-5})
TEXT = line(ROW) + "\n"


def test_a_row_reads_back():
    assert read_rows(TEXT) == [ROW]
    assert read_rows(TEXT)[0].seconds == 1e-5
    assert read_rows(TEXT)[0].number("m") == 8


@given(st.integers(0, len(TEXT) - 1))
def test_a_write_that_was_cut_off_is_dropped(end):
    assert read_rows(TEXT + TEXT[:end]) == [ROW]
    assert whole_lines(TEXT + TEXT[:end]) == TEXT


@pytest.mark.parametrize(
    "damaged",
    [
        "not json",
        "[]",
        "{}",
        TEXT.strip().replace("1e-05", '"soon"'),
        TEXT.strip().replace("1e-05", "-1"),
        TEXT.strip().replace("1e-05", "0"),
        TEXT.strip().replace("1e-05", '"1e-05"'),
        TEXT.strip().replace("1e-05", "NaN"),
        TEXT.strip().replace("1e-05", "Infinity"),
        TEXT.strip().replace('"values":{', '"values":{"communication":0,'),
        TEXT.strip().replace('"values":{', '"values":{"messages":0,'),
        TEXT.strip().replace('"rank":0', '"rank":"first"'),
        TEXT.strip()[:-3],
    ],
)
def test_a_damaged_row_is_named_by_its_line(damaged):
    with pytest.raises(InputError, match=r"mine\.jsonl, line 2: (not JSON|.*got)"):
        read_rows(TEXT + damaged + "\n" + TEXT, "mine.jsonl")


def test_a_case_that_failed_is_done_too():
    failed = Row(
        key="matmul m=9", family="matmul", sizes={}, mode="failed", values={}, error="no memory"
    )

    assert done([ROW, failed]) == {"matmul m=8", "matmul m=9"}
