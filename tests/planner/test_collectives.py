"""Tables of collectives read like nccl-tests' own, and add up."""

import time

import pytest
from generators import tried
from growth import TRIES, seconds
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collectives import OPS, bus_factor, collective_time
from planner.collective_table import (
    HEADERS,
    over_gpus,
    side_by_side,
    sizes_of,
    table,
)
from planner.command.cli import main
from topology.base import InputError, format_seconds
from topology.base.table import document, terminal
from topology.catalogue import find_hardware

BUS = {  # nccl-tests, doc/PERFORMANCE.md, for 8 ranks
    "all_reduce": 2 * 7 / 8,
    "all_gather": 7 / 8,
    "reduce_scatter": 7 / 8,
    "all_to_all": 7 / 8,
    "broadcast": 1,
    "reduce": 1,
    "gather": 7 / 8,
    "scatter": 7 / 8,
    "send_recv": 1,
}


@pytest.mark.parametrize("op", OPS)
def test_rows_agree_with_the_model_and_with_each_other(op):
    found = table(op, "1KiB:64MiB", gpus=8)
    fabric = find_hardware("h100-sxm").fabric(8)

    assert len(found.rows) == 17
    for row in found.rows:
        assert row.time_s == collective_time(op, row.message_bytes, fabric)
        assert row.algorithm_bandwidth_bytes_per_s == pytest.approx(row.message_bytes / row.time_s)
        assert row.bus_bandwidth_bytes_per_s == pytest.approx(
            row.algorithm_bandwidth_bytes_per_s * BUS[op]
        )


@pytest.mark.parametrize("op", OPS)
def test_larger_messages_never_take_less_time(op):
    times = [row.time_s for row in table(op, "1:16GiB", gpus=8).rows]

    assert times == sorted(times)


@pytest.mark.parametrize("name", ["h100-sxm", "b200", "a100-sxm-80gb", "l40s", "rtx-4090"])
def test_bus_bandwidth_stays_below_the_link(name):
    """But for reductions in the switch, which an all-reduce counts twice."""
    node = find_hardware(name)
    for op in ("all_gather", "all_to_all", "send_recv"):
        top = table(op, "1GiB", gpus=8, hardware=name).rows[0].bus_bandwidth_bytes_per_s
        assert top <= node.link_bandwidth.value * 1.001


@pytest.mark.parametrize("op", sorted(BUS))
def test_bus_factors_are_as_nccl_tests_has_them(op):
    assert bus_factor(op, 8) == pytest.approx(BUS[op])


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1024", [1024]),
        ("8M", [2**23]),
        ("8MB", [8e6]),
        ("1KiB:1KiB", [1024]),
        ("1KiB:7KiB", [1024, 2048, 4096]),
        ("3:25", [3, 6, 12, 24]),
        ("1K,1M", [2**10, 2**20]),
        ("1MiB,1KiB:4KiB,2KiB", [2**20, 2**10, 2**11, 2**12]),
        ("1:16TiB", [2**power for power in range(45)]),
    ],
)
def test_sizes_double(text, sizes):
    assert sizes_of(text) == sizes


@pytest.mark.parametrize(
    "text", ["", ":", "0", "0:1", "-1", "2KiB:1KiB", "1:2:3", "nan", "inf", "1e400", "1KX", "17TiB"]
)
def test_what_is_no_size_is_one_line(text):
    with pytest.raises(InputError) as error:
        sizes_of(text)

    assert len(str(error.value)) < 120


@given(text=st.text(alphabet="0123456789KMGTiB:,.e- ", max_size=12) | st.text(max_size=8))
def test_any_text_is_sizes_or_one_line(text):
    sizes, said = tried(sizes_of, text)

    assert "\n" not in said
    assert said or 1 <= len(sizes) <= 45 * (1 + text.count(","))
    assert said or sizes[0] >= 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": 1}, "gpus: got 1, wanted a whole number from 2 to 131072"),
        ({"gpus": 200_000}, "gpus: got 200000"),
        ({"nodes": -1}, "nodes: got -1"),
        ({"nodes": 3}, "over 3 nodes"),
        ({"hardware": "h10"}, "unknown hardware 'h10': did you mean"),
        ({"algorithm": "rings"}, "unknown algorithm 'rings': did you mean ring"),
        ({"algorithm": "nvls", "hardware": "l40s"}, "nvls"),
        ({"launch": "async"}, "unknown launch 'async'"),
    ],
)
def test_bad_input_is_named(changes, said):
    with pytest.raises(InputError, match=said):
        table("all_reduce", "1MiB", **{"gpus": 8, **changes})


def test_a_table_as_text_and_as_markdown_has_the_same_cells():
    found = table("all_reduce", "1KiB:1MiB", gpus=8)
    lines = terminal(found.parts(bars=True)).splitlines()
    shown_in = document(found.parts()).splitlines()[2:]

    assert lines[0] == "all_reduce on 8 x h100-sxm"
    assert len(lines) == len(shown_in) == len(found.rows) + 2
    for row, line, shown in zip(found.table().rows, lines[2:], shown_in[2:], strict=True):
        assert len(row) == len(HEADERS)
        assert all(cell in line for cell in row)
        assert shown == f"| {' | '.join(row)} |"


def test_the_longest_bar_is_the_fastest_row():
    found = table("all_reduce", "1KiB:1GiB", gpus=8)
    bars = [line.count("█") for line in terminal(found.parts(bars=True)).splitlines()[2:]]
    rates = [row.bus_bandwidth_bytes_per_s for row in found.rows]

    assert bars.index(max(bars)) == rates.index(max(rates))


def test_several_nodes_are_named_with_their_network():
    spread = table("all_reduce", "1MiB", gpus=8, nodes=2)
    alone = table("all_reduce", "1MiB", gpus=8)

    assert "2 nodes, 4 GPUs each, over infiniband (4 NICs, 200 GB/s a node)" in terminal(
        spread.parts(bars=True)
    )
    assert document(spread.parts()).startswith(f"**{spread.title()}**")
    assert spread.to_dict()["nodes"] == 2
    assert spread.to_dict()["network"]["nics"] == 4
    assert alone.title() == "all_reduce on 8 x h100-sxm"
    assert alone.to_dict()["network"] is None


@pytest.mark.parametrize(("gpus", "nodes"), [(8192, 1024), (65536, 8192)])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
def test_a_thousand_nodes_and_more_take_no_longer_than_a_few(gpus, nodes, op):
    table(op, "1GiB", gpus=8, nodes=2)  # tables are read
    found = table(op, "1GiB", gpus=gpus, nodes=nodes)

    assert any(
        seconds(lambda count: table(op, "1GiB", gpus=count, nodes=count // 8), gpus)
        < 5 * seconds(lambda count: table(op, "1GiB", gpus=count, nodes=count // 8), 32) + 0.005
        for _ in range(TRIES)
    )
    assert (found.gpus, found.nodes) == (gpus, nodes)
    assert found.rows[0].time_s > 0


def test_multishot_takes_two_steps_where_a_ring_takes_more_with_every_gpu():
    """NVIDIA, "3x Faster AllReduce with NVSwitch and TensorRT-LLM MultiShot": 2 against 2 N - 2."""
    gains = []
    for gpus in (4, 8):
        found = side_by_side("all_reduce", "1KiB:1GiB", ("ring", "multishot"), gpus=gpus)
        assert [own.steps for own in found.tables] == [2 * gpus - 2, 2]
        ring, multishot = (own.rows[0].time_s for own in found.tables)
        gains.append(ring / multishot)
    assert 1 < gains[0] < gains[1]


def test_the_fastest_of_each_size_is_named_once_a_run_of_sizes():
    found = side_by_side("all_reduce", "1KiB:1GiB", ("ring", "multishot", "nvls"), gpus=8)
    sizes = [row.message_bytes for row in found.tables[0].rows]

    winners = found.winners()
    assert winners[0][0] == "multishot"
    assert winners[-1][0] == "nvls"
    assert [winners[0][1], winners[-1][2]] == [sizes[0], sizes[-1]]
    for name, first, last in winners:
        for size in (first, last):
            times = {
                who: own.rows[sizes.index(size)].time_s
                for who, own in zip(found.algorithms, found.tables, strict=True)
            }
            least = format_seconds(min(times.values()))
            assert " and ".join(n for n in times if format_seconds(times[n]) == least) == name
    for (name, *_), note in zip(winners, found.notes()[1:], strict=True):
        is_fastest = "are equally fast" if " and " in name else "is the fastest"
        assert note.startswith(f"{name} {is_fastest}")


def test_none_of_two_that_take_the_same_as_printed_is_the_fastest():
    notes = side_by_side("all_reduce", "256MiB", ("ring", "multishot"), gpus=8).notes()

    assert notes[-1] == "ring and multishot are equally fast at 256 MiB"


def test_two_steps_gain_more_with_every_gpu_of_a_rack():
    found = over_gpus("all_reduce", "4KiB:1GiB", ("ring", "multishot"), (2, 8, 36, 72),
                      hardware="gb200")  # fmt: skip

    assert [[own.steps for own in one.tables] for one in found.each] == [
        [2 * gpus - 2, 2] for gpus in (8, 36, 72)
    ]
    gains = [one.gain(one.tables[1], 0) for one in found.each]
    assert 1 < gains[0] < gains[1] < gains[2]
    assert found.each[0].fastest() == "multishot to 64 MiB, then ring"  # a crossover
    assert found.each[2].fastest() == "multishot"
    assert "more than two GPUs" in found.left_out[2]
    assert len(found.csv_rows()) == 3 * 2 * 19


def test_times_below_what_a_curve_was_fitted_to_are_extrapolated():
    """MultiShot's was seen from 512 KiB on, and tables have one size an octave."""
    found = table("all_reduce", "64KiB:1MiB", gpus=8, algorithm="multishot")

    assert [row.basis for row in found.rows] == ["extrapolated"] * 2 + ["calibrated"] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpus 4:2", "got '4:2', wanted numbers such as"),
        ("--gpus 4,8", "algorithm: got auto beside several numbers of GPUs"),
        ("--gpus 2,4 --algorithm ring,multishot --hardware l40s", "all_reduce by multishot"),
        ("--gpus 2,4 --compare log", "gpus: got several numbers beside a log, wanted one"),
    ],
)
def test_numbers_of_gpus_that_say_nothing_are_refused(capsys, words, said):
    assert main(["collectives", *words.split()]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_what_cannot_stand_side_by_side_is_refused():
    with pytest.raises(InputError, match="algorithm: got ring,ring, wanted each once"):
        side_by_side("all_reduce", "1MiB", ("ring", "ring"), gpus=8)
    with pytest.raises(InputError, match="multishot"):
        side_by_side("all_reduce", "1MiB", ("ring", "multishot"), gpus=8, hardware="l40s")
