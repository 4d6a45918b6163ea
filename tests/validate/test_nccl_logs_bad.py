"""Logs that no program wrote, or not whole, are compared or refused in one line, and at once."""

import pytest
from commands import assert_refused, run
from growth import grows_in_proportion

from topology.base import InputError
from validate.nccl_tests.log import read_log

RANK = "#  Rank {:2} Group  0 Pid 7 on  node1 device {:2} [0x07] NVIDIA H100 80GB HBM3\n"
HEAD = "# Collective test starting: all_reduce_perf\n" + RANK.format(0, 0) + RANK.format(1, 1)
ROW = "1048576 262144 float sum -1 {} 47.45 47.45 0 21.90 47.88 47.88 0\n"
GOOD = HEAD + ROW.format("22.10")
LONG = "9" * 5000


@pytest.mark.parametrize("time_us", ["-22.1", "1e-300", "1e-320", "1e308", "1e400", "9" * 400])
def test_a_time_that_cannot_be_is_named_with_its_line(time_us):
    with pytest.raises(InputError, match=r"log, line 4: got .{1,20}, wanted a time from 0\.001 to"):
        read_log(HEAD + ROW.format(time_us))


@pytest.mark.parametrize("bandwidth", ["-5", "1e400"])
def test_a_bandwidth_that_cannot_be_is_named_with_its_line(bandwidth):
    with pytest.raises(InputError, match=f"log, line 4: got {bandwidth}, wanted a bandwidth"):
        read_log(HEAD + ROW.format("22.10").replace("47.45", bandwidth))


@pytest.mark.parametrize("word", ["nan", "inf", "N/A", "0.00"])
def test_a_row_without_a_time_is_left_out(word):
    (log,) = read_log(HEAD + ROW.format(word) + ROW.format("23.5"))

    assert [row.seconds for row in log.rows] == [pytest.approx(23.5e-6)]


SAID = [
    "# gpus: {}", "# nodes: {}", "# nThread 1 nGpus {}", "# graph: {}", "NCCL version 2.{}",
    "## all reduce, {} hosts", "#  Rank  2 Pid 9 on node1 device {} [0x07] NVIDIA H100",
    "#  Rank {} Pid 9 on node1 device 0 [0x07] NVIDIA H100",
]  # fmt: skip


@pytest.mark.parametrize("line", SAID)
@pytest.mark.parametrize("number", ["99999999", "999999999999", LONG])
def test_numbers_that_cannot_be_are_an_answer_or_one_line(tmp_path, line, number):
    path = tmp_path / "log"
    path.write_text(f"{line.format(number)}\n{GOOD}")
    code, out, err = run("collectives", "--compare", str(path))

    if code:
        assert_refused(code, out, err)
    assert len(max((out + err).splitlines(), key=len)) < 300


EVIL = [
    "Rank 0 x on a device 1 [" + " on a device 1 [" * 20, "Rank 1 ", "NET/OFI ",
    "NET/OFI provider is a ", "NCCL version" + " " * 500, "Using network a" + " " * 300 + "b",
    "NCCL INFO Using network a" + " " * 300 + "b", "# env: " + "(1)" * 300 + "\n",
    "## " + "1" * 900 + "\n", "1 " * 9, "# network: " + "1  " * 300 + "\n", RANK.format(3, 3),
]  # fmt: skip


@pytest.mark.parametrize("piece", EVIL, ids=lambda piece: piece[:12])
def test_a_quarter_of_a_mebibyte_of_anything_is_read_in_proportion(piece):
    def read(size):
        read_log(HEAD + piece * (size // len(piece)) + "\n" + ROW.format("22.10"))

    assert grows_in_proportion(read, 2**18)


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "log"
    path.write_text(GOOD)
    return str(path)


OPTIONS = [
    (("--op", "foo"), "unknown collective 'foo'"),
    (("--op", "all_gather"), "op: got all_gather, wanted all_reduce, which the log says"),
    (("--gpus", "3"), "gpus: got 3, wanted 2, which the log says it ran on"),
    (("--nodes", "2"), "nodes: got 2, wanted 1, which the log says it ran on"),
    (("--gpus", "0"), "gpus: got 0"),
    (("--gpus", "9" * 12), "wanted a whole number from 2 to 131072"),
    (("--nodes", "-1"), "nodes: got -1"),
    (("--nodes", "9" * 12), "wanted a whole number from 1 to 16384"),
    (("--launch", "often"), "unknown launch 'often'"),
    (("--launch", "stream"), "launch: got stream, as PyTorch calls, wanted graph"),
    (("--bytes", "2MiB:1GiB"), "bytes: got 2 MiB to 1 GiB, wanted some of the log's, 1 MiB to 1"),
    (("--bytes", "2KiB,4KiB:8KiB"), "bytes: got 2 KiB, 4 KiB to 8 KiB, wanted some of the log's"),
    (("--bytes", "17TiB"), "bytes: got '17TiB', wanted a size from 1 B to 16 TiB"),
    (("--bytes", "lots"), "bytes: 'lots' is not a quantity in B"),
]


@pytest.mark.parametrize(("words", "message"), OPTIONS)
def test_options_that_do_not_go_with_a_log_are_refused(good, words, message):
    assert_refused(*run("collectives", "--compare", good, *words), message)


def test_options_that_a_log_agrees_with_are_taken(good):
    plain = run("collectives", "--compare", good)

    assert plain[0] == 0
    for words in (
        ("--op", "all_reduce", "--gpus", "2", "--nodes", "1"),
        ("--bytes", "1MiB", "--launch", "graph"),
    ):
        assert run("collectives", "--compare", good, *words) == plain


def test_some_of_the_ranks_that_are_listed_may_have_run(tmp_path):
    """As where nccl-tests splits them into groups."""
    path = tmp_path / "log"
    path.write_text(HEAD + RANK.format(2, 2) + RANK.format(3, 3) + ROW.format("22.10"))

    code, out, _ = run("collectives", "--compare", str(path), "--gpus", "2")

    assert code == 0
    assert "on 2 x h100-sxm" in out
    assert "bandwidths of 2 of the 4 GPUs that the log lists" in out
    assert_refused(*run("collectives", "--compare", str(path), "--gpus", "3"), "wanted 4, which")


def test_a_row_is_read_however_long_its_line_is(good, tmp_path):
    path = tmp_path / "wide"
    path.write_text(HEAD + "worker-7 " * 200 + ROW.format("22.10").replace(" ", " " * 300))

    plain, wide = (run("collectives", "--compare", name)[1] for name in (good, str(path)))
    assert wide == plain


@pytest.mark.parametrize("row", [ROW.format("22.10").replace("47.88", "?"), ROW.format("N/A")])
def test_rows_that_cannot_be_read_are_said(tmp_path, row):
    path = tmp_path / "log"
    path.write_text(GOOD + row + row)

    said = "2 rows without numbers that can be read, from line 5 on: left out"
    assert said in run("collectives", "--compare", str(path))[1]


def test_a_log_of_rows_that_cannot_be_read_says_so(tmp_path):
    path = tmp_path / "log"
    path.write_text(HEAD + ROW.format("N/A"))

    said = "log: got no number that can be read from line 4, wanted size"
    assert_refused(*run("collectives", "--compare", str(path)), said)


def test_an_algorithm_that_was_asked_for_is_priced_or_refused(good):
    assert_refused(*run("collectives", "--compare", good, "--algorithm", "pairwise"), "pairwise")


def test_some_rows_of_a_log_are_compared(tmp_path):
    path, other = tmp_path / "log", ROW.format("44.20").replace("1048576", "2097152")
    path.write_text(GOOD + other)
    words = ("collectives", "--compare", str(path), "--format", "csv")

    every = run(*words)[1].splitlines()
    assert run(*words, "--bytes", "2MiB:1GiB")[1].splitlines() == [every[0], every[2]]
