"""Lists of ranks as people leave them: without hosts, cut short, or with one GPU twice."""

import pytest

from topology.base import InputError
from validate.nccl_tests import LogOptions, compare_all
from validate.nccl_tests.log import read_log


def row(ratio, size=2**30, columns="float sum -1"):
    """One line at 100 GB/s of algorithm bandwidth."""
    time = size / 100e9 * 1e6
    return f"{size} {size // 4} {columns} {time:.1f} 100.00 {100 * ratio:.2f} 0\n"


def listed(ranks, *, hosts="ab", per_host=8, product="NVIDIA H100 80GB HBM3"):
    return "".join(
        f"#  Rank {n} Group  0 Pid 7 "
        + (f"on {hosts[n // per_host]} " if hosts else "")
        + f"device  {n % per_host} [0000:{n % per_host}b:00] {product}\n"
        for n in ranks
    )


def test_a_list_without_hosts_is_counted_by_its_devices():
    (log,) = read_log("# all_reduce_perf\n" + listed(range(16), hosts="") + row(1.875))

    assert (log.gpus, log.nodes, log.product) == (16, 2, "NVIDIA H100 80GB HBM3")


def test_a_list_that_stops_within_its_first_host_leaves_the_hosts_to_the_hardware():
    (found,) = compare_all("# all_reduce_perf\n" + listed(range(5)) + row(1.9375), LogOptions())

    assert (found.gpus, found.nodes) == (32, 4)


def test_a_list_that_stops_later_tells_the_gpus_of_a_host():
    (log,) = read_log("# all_reduce_perf\n" + listed(range(6), per_host=4) + row(1.875))

    assert (log.gpus, log.nodes) == (16, 4)


def test_one_line_of_a_list_yields_to_bandwidths():
    (log,) = read_log("# all_reduce_perf\n" + listed([143], hosts="", per_host=144) + row(1.984))

    assert log.gpus == 125  # two decimals tell it to some percent


def test_a_whole_list_stands_against_bandwidths_that_are_near():
    (found,) = compare_all("# all_reduce_perf\n" + listed(range(8)) + row(1.8333), LogOptions())

    assert found.gpus == 8
    assert any("printed for 12 ranks, not for 8" in note for note in found.notes)


def test_a_cut_list_does_not_hide_the_collective():
    (found,) = compare_all(listed(range(5)) + row(1.9375, columns="float sum"), LogOptions())

    assert (found.op, found.gpus) == ("all_reduce", 32)


def test_ranks_on_one_gpu_are_said_first_and_no_reason_is_sought():
    twice = listed([0, 1], per_host=2).replace("device  1 [0000:1b:00]", "device  0 [0000:0b:00]")
    (found,) = compare_all("# all_reduce_perf\n" + twice + row(1.0), LogOptions())

    assert "ranks 0 and 1 both list device 0 [0000:0b:00] of a" in found.opening()[0]
    assert not found.diagnosis


@pytest.mark.parametrize(
    ("head", "gpus"),
    [("./all_reduce_perf -b 8 -g 4\n", 4), ("./all_reduce_perf -b 8 -g 1\n", None)],
)
def test_one_process_that_tells_nothing_else_is_the_whole_run(head, gpus):
    slow = "1048576 262144 float sum -1 1000000.0 0.00 0.00 0\n"  # too slow to tell ranks

    (log,) = read_log(head + slow)

    assert log.gpus == gpus


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("main(), common.cu:699, NCCL version: 22602, CUDA Runtime Version: 12.0", (2, 26)),
        ("NCCL version 2.26.2+cuda12.8", (2, 26)),
        ("# nccl-tests version 2.18.3 nccl-headers=23004 nccl-library=23004", (2, 30)),
    ],
)
def test_releases(line, release):
    (log,) = read_log(f"{line}\n# all_reduce_perf\n" + row(1.75))

    assert log.nccl == release


def test_programs_that_were_built_with_mpi_in_their_name():
    (log,) = read_log("# Collective test starting: all_gather_perf_mpi\n" + row(0.5))

    assert log.op == "all_gather"


def test_words_over_a_table_decide_between_collectives_that_print_alike():
    table = listed([0, 1], per_host=2) + row(1.0)
    with pytest.raises(InputError, match="all_reduce or send_recv"):
        compare_all(table, LogOptions())

    (found,) = compare_all("Running all-reduce on both cards\n" + table, LogOptions())
    assert found.op == "all_reduce"
    assert "as words over it say" in found.notes[0]

    (sure,) = compare_all("All-Gather was slow, so\n" + listed(range(8)) + row(1.75), LogOptions())
    assert sure.op == "all_reduce"
