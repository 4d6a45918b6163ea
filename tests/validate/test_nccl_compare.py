"""Logs of nccl-tests in the layouts people have, beside the model, and why the two part."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machinetexts import matrix

from costmodels.collectives import NcclSettings, bus_factor, collective_time
from planner.command.cli import main
from planner.rendering.plot import plot
from topology.base import InputError
from topology.base.table import document, terminal
from topology.catalogue import Network, find_hardware
from validate.nccl_tests import parts_of
from validate.nccl_tests.compare import LogOptions, compare, compare_all
from validate.nccl_tests.diagnosis import disturbed
from validate.nccl_tests.log import read_log

SIZES = 2.0 ** np.arange(10, 34, 2)
NODE = find_hardware("h100-sxm").fabric(8)
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def rows(op, times, *, ranks=8, sizes=SIZES, prefix="", type_bytes=4):
    """Rows as nccl-tests prints them, with a root and both halves."""
    lines = []
    for size, seconds in zip(sizes, times, strict=True):
        rate = size / seconds / 1e9
        cells = f"{seconds * 1e6:.2f} {rate:.2f} {rate * bus_factor(op, ranks):.2f} 0"
        lines.append(f"{prefix}{size:.0f} {size / type_bytes:.0f} float sum -1 {cells} {cells}")
    return "\n".join(lines)


def log_of(op, fabric, *, settings=None, sizes=SIZES, printed=None, start="", product=H100):
    """A log of a machine that behaves as the model says of `fabric`."""
    times = collective_time(op, sizes, fabric, settings=settings or NcclSettings())
    names = "\n".join(
        f"#  Rank {rank:2d} Group  0 Pid {rank} on host{rank * fabric.nodes // fabric.ranks} "
        f"device {rank % (fabric.ranks // fabric.nodes)} [0x0{rank}] {product}"
        for rank in range(fabric.ranks)
    )
    shown = sizes if printed is None else printed
    test = {"all_to_all": "alltoall", "send_recv": "sendrecv"}.get(op, op)
    head = f"# Collective test starting: {test}_perf\n{start}{names}\nNCCL version 2.29.2\n"
    return head + rows(op, times, ranks=fabric.ranks, sizes=shown)


def reasons(text, **said):
    (found,) = compare_all(text, LogOptions(**({"hardware": "h100-sxm"} | said)))
    return " | ".join(found.diagnosis)


# Layouts.

LAYOUTS = {
    "newest": """# nccl-tests version 2.17.6 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 67108864 step: 2(factor) graph: 0
#  Rank  0 Group  0 Pid 11 on  node1 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 12 on  node1 device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)
    33554432       4194304     float    none      -1   123.44  271.83  135.91       0   120.61  278.20  139.10       0
    67108864       8388608     float    none      -1   205.21  327.02  163.51       0   202.79  330.92  165.46     N/A
# Out of bounds values : 0 OK
""",  # noqa: E501
    "old, no root": """# nThread 1 nGpus 8 minBytes 8 maxBytes 16 step: 2(factor) validation: 1
# gpus_total: 8
# collective: AllReduce
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
    33554432       8388608   float     sum   550.8   60.92  106.62  2e-07    553.3   60.64  106.12  2e-07
    67108864      16777216   float     sum   992.7   67.60  118.30  2e-07    995.0   67.45  118.04  2e-07
""",  # noqa: E501
    "no reduction": """# alltoall_perf -b 32 -e 64 -g 8
           0             0   float             1.63    0.00    0.00    N/A     1.38    0.00    0.00    N/A
    33554432       1048576   float           207.30  161.86  141.63  0e+00   208.10  161.24  141.09    N/A
""",  # noqa: E501
    "root without reduction": """# collective: Broadcast
# gpus_total: 8
    33554432       8388608   float       0   173.10  193.84  193.84  0e+00   173.20  193.73  193.73  0e+00
""",  # noqa: E501
    "one half": """# gpus_total: 4
# collective: AllReduce
1048576 262144 float sum -1 63.2 16.59 24.89 0
""",
    "prefixes and colours": "# all_reduce_perf, 2 ranks\n"
    "[1,0]<stdout>:\x1b[0m   8388608  2097152  float  sum  -1  70.1  119.67  119.67  0  69.9  120.01  120.01  0\n",  # noqa: E501
}
EXPECTED = {  # op, gpus, rows, first seconds, per process, release
    "newest": ("all_gather", 2, 2, 123.44e-6, 1, (2, 29)),
    "old, no root": ("all_reduce", 8, 2, 550.8e-6, 8, None),
    "no reduction": ("all_to_all", 8, 1, 207.3e-6, 8, None),
    "root without reduction": ("broadcast", 8, 1, 173.1e-6, 1, None),
    "one half": ("all_reduce", 4, 1, 63.2e-6, 1, None),
    "prefixes and colours": ("all_reduce", 2, 1, 70.1e-6, 1, None),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    (log,) = read_log(LAYOUTS[name])
    first = log.rows[0]

    assert (
        log.op, log.gpus, len(log.rows), pytest.approx(first.seconds), log.per_process, log.nccl
    ) == EXPECTED[name]  # fmt: skip
    assert (first.in_place_s is None) == (name == "one half")


def test_several_tables_in_one_text():
    text = """## All Reduce - 2 Nodes
# nThread 1 nGpus 8 graph: 0
# NCCL version 2.28.9+cuda13.1
 8589934592    2147483648     float     sum      -1    21012  408.82  766.54      0    21036  408.35  765.65      0
# Avg bus bandwidth    : 405.346
## All-to-All - Single Node
# nThread 1 nGpus 1 graph: 1
 8589934592   268435456     float    none      -1    11126  772.06  675.55      0    11206  766.58  670.76    N/A
"""  # noqa: E501
    first, second = read_log(text)

    assert (first.op, first.gpus, first.nodes, first.per_process) == ("all_reduce", 16, 2, 8)
    assert (second.op, second.gpus, second.nodes) == ("all_to_all", 8, 1)
    assert first.nccl == second.nccl == (2, 28)


def test_hosts_are_counted_from_a_list_that_is_cut():
    text = (
        "# all_reduce_perf\n#  Rank  0 Group  0 Pid 1 on  a device  0 [0x1] NVIDIA GB300\n"
        "#  Rank 63 Group  0 Pid 1 on  p device  3 [0x1] NVIDIA GB300\n"
        "8589934592 2147483648 float sum -1 18842 455.88 897.52 0\n"
    )
    (log,) = read_log(text)

    assert (log.gpus, log.nodes, log.product) == (64, 16, "NVIDIA GB300")


@pytest.mark.parametrize(
    ("op", "ranks"), [("all_reduce", 8), ("all_gather", 16), ("all_to_all", 192), ("reduce", None)]
)
def test_ranks_follow_from_bandwidths(op, ranks):
    fabric = find_hardware("b200").fabric(8)
    times = collective_time(op, SIZES, fabric)
    (log,) = read_log(f"# {op.replace('_to_', 'to')}_perf\n" + rows(op, times, ranks=ranks or 8))

    assert log.gpus == ranks


@given(st.text(max_size=200) | st.text(alphabet="0123456789 floatsum-.\n#NA/", max_size=200))
def test_any_text_is_tables_or_one_line(text):
    try:
        found = read_log(text)
    except InputError as error:
        found, said = (), str(error)
    else:
        said = ""

    assert "\n" not in said
    assert all(log.rows and log.rows[0].seconds > 0 for log in found)


# What is printed.


def test_a_log_of_the_model_itself_agrees_with_it():
    (found,) = compare_all(log_of("all_reduce", NODE), LogOptions())

    assert (found.hardware, found.gpus, found.nodes) == ("h100-sxm", 8, 1)
    assert found.median(small=True) < 0.01
    assert found.median(small=False) < 0.01
    assert found.diagnosis == ()


@pytest.mark.parametrize("style", ["table", "json", "markdown", "csv"])
def test_every_format_has_every_size(style, tmp_path, capsys):
    path = tmp_path / "run.log"
    path.write_text(log_of("all_gather", NODE))
    code = main(["collectives", "--compare", str(path), "--format", style])
    text = capsys.readouterr().out

    assert code == 0
    if style == "json":
        (table,) = json.loads(text)["tables"]
        assert len(table["rows"]) == len(SIZES)
        assert table["median_error_large"] < 0.01
    elif style == "csv":
        assert len(text.splitlines()) == 1 + len(SIZES)
    else:
        assert "16 KiB" in text
        assert "4 GiB" in text


def test_a_machine_may_be_given_instead_of_a_name(tmp_path, capsys):
    path, topology = tmp_path / "run.log", tmp_path / "topo.txt"
    path.write_text(log_of("all_reduce", NODE))
    topology.write_text(matrix(8, lambda a, b: "NV18"))
    code = main(
        ["collectives", "--compare", str(path), "--topology", str(topology),
         "--hardware", "h100-sxm"]
    )  # fmt: skip

    assert code == 0
    assert "all_reduce on 8 x h100-sxm" in capsys.readouterr().out


KNOWN = "# gpus_total: 2\n# gpu: NVIDIA H100 80GB HBM3\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "wanted size, count, type, time"),
        ("# all_reduce_perf\n1048576 262144 float sum -1 630.2 1.66 2.49 0", "give --gpus"),
        ("# gpus: 2\n1048576 262144 float none 0 63.2 16.59 16.59 0", "give --hardware"),
        (f"{KNOWN}1048576 262144 float sum -1 63.2 16.59 16.59 0", "all_reduce or send_recv: give"),
        (f"{KNOWN}1048576 131072 float none -1 63.2 16.59 8.30 0", "all_gather or all_to_all"),
        ("1048576 262144 float sum -1 63.2 16.59 24.89 0", "give --hardware"),
    ],
)  # fmt: skip
def test_what_a_log_lacks_is_asked_for(text, said):
    with pytest.raises(InputError, match=said):
        compare_all(text, LogOptions())


NAMELESS = {  # file's name, columns of one row: on 8 ranks, of 64 MiB
    "all_reduce": ("run.log", "16777216 float sum -1 300.0 223.70 391.47 0"),
    "reduce": ("run.log", "16777216 float sum 0 300.0 223.70 223.70 0"),
    "reduce_scatter": ("run.log", "2097152 float sum -1 300.0 223.70 195.73 0"),
    "broadcast": ("run.log", "16777216 float none 0 300.0 223.70 223.70 0"),
    "send_recv": ("run.log", "16777216 float sum -1 300.0 223.70 223.70 0"),
    "all_gather": ("h100_AllGather.txt", "2097152 float 300.0 223.70 195.73 0"),
    "all_to_all": ("h100x8_alltoall.out", "2097152 float none -1 300.0 223.70 195.73 0"),
}


@pytest.mark.parametrize("op", NAMELESS)
@pytest.mark.parametrize("ranks", ["# gpus_total: 8\n", ""])
def test_a_collective_without_a_name_is_inferred_and_said(op, ranks):
    name, columns = NAMELESS[op]
    said = LogOptions(hardware="h100-sxm", name=name, gpus=None if ranks else 8)
    (found,) = compare_all(f"{ranks}67108864 {columns}\n", said)

    assert (found.op, found.gpus) == (op, 8)
    assert f"does not name its collective: {op}" in found.notes[0]


def test_ranks_follow_from_an_inferred_collective():
    text = f"67108864 {NAMELESS['all_reduce'][1]}"
    (found,) = compare_all(text, LogOptions(hardware="h100-sxm"))

    assert (found.op, found.gpus) == ("all_reduce", 8)
    assert "1.75 times algorithm bandwidth" in found.notes[0]


def test_a_file_that_is_called_otherwise_is_asked_about():
    text = f"# gpus_total: 8\n67108864 {NAMELESS['all_reduce'][1]}"

    with pytest.raises(InputError, match="called all_gather, its columns are not: give --op"):
        compare_all(text, LogOptions(hardware="h100-sxm", name="all_gather.log"))
    (found,) = compare_all(text, LogOptions(hardware="h100-sxm", name="b.log", op="all_reduce"))
    assert found.op == "all_reduce"


def test_the_name_of_a_file_is_read_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "node1-all-gather.log"
    path.write_text(f"# gpus_total: 8\n67108864 {NAMELESS['all_gather'][1]}")

    assert main(["collectives", "--compare", str(path), "--hardware", "h100-sxm"]) == 0
    assert "all_gather, as its file is called" in capsys.readouterr().out


@pytest.mark.parametrize("style", ["table", "json", "markdown"])
def test_a_log_of_other_gpus_says_so_first_and_no_reason_is_sought(style):
    found = compare_all(log_of("all_reduce", NODE), LogOptions(hardware="a100-sxm-80gb"))
    said = "the log names NVIDIA H100 80GB HBM3 (h100-sxm), priced as a100-sxm-80gb"
    write = {"table": terminal, "markdown": document}
    text = json.dumps(found[0].to_dict()) if style == "json" else write[style](parts_of(found))

    assert found[0].diagnosis == ()
    assert said in text
    if style == "json":
        assert json.loads(text)["notes"][0] == said
    else:
        assert text.startswith(said)


def test_a_missing_log_is_one_line(capsys):
    assert main(["collectives", "--compare", "no.log"]) == 2
    assert capsys.readouterr().err == "planner: --compare no.log: No such file or directory\n"


# Why measured and modelled times part.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"multicast": False}, "NVLS"),
        ({"link": "pcie", "bandwidth": 63e9, "multicast": False}, "NVLink is not used"),
        ({"link": "pcie", "bandwidth": 63e9, "multicast": False, "peer_to_peer": False},
         "peer access is off"),
    ],
)  # fmt: skip
def test_a_broken_path_is_named(changes, said):
    found = reasons(log_of("all_reduce", replace(NODE, **changes)))

    assert said in found


@pytest.mark.parametrize("left", [7, 4, 2, 1])
def test_missing_nics_are_counted(left):
    nodes = find_hardware("a100-sxm-80gb").fabric(16, nodes=2)
    share = Network(kind="infiniband", bandwidth=nodes.network.bandwidth * left / 8, nics=left)
    text = log_of("all_gather", replace(nodes, network=share), product=A100)
    found = reasons(text, hardware="a100-sxm-80gb")

    assert f"{left} of 8 NICs" in found if left < 7 else not found  # an eighth is within the model


def test_sockets_instead_of_rdma():
    nodes = find_hardware("a100-sxm-80gb").fabric(16, nodes=2)
    slow = replace(nodes, network=Network(kind="ethernet", bandwidth=25e9, nics=1))

    text = log_of("all_reduce", slow, product=A100)

    assert "TCP sockets" in reasons(text, hardware="a100-sxm-80gb")


def test_sizes_of_one_part():
    """Somebody printed what each rank holds instead of the gathered whole."""
    found = reasons(log_of("all_gather", NODE, printed=SIZES / 8))

    assert "sizes count one rank's part of the whole: bytes are 8 times" in found


def test_sizes_that_the_columns_prove_are_not_doubted():
    """Times of half the bytes: their sizes may be wrong where elements do not say so too."""
    times = collective_time("all_reduce", SIZES / 2, NODE)
    proven, doubtful = (
        reasons("# gpus_total: 8\n# all_reduce_perf\n" + rows("all_reduce", times, type_bytes=size))
        for size in (4, 2)
    )

    assert "sizes" not in proven
    assert "links" in proven
    assert "sizes are 2 times what nccl-tests would print" in doubtful


def test_the_floor_of_one_process():
    text = log_of("all_reduce", NODE, settings=NcclSettings(launcher="single"))

    assert "one process that launches all GPUs" in reasons(text)
    assert not reasons(text.replace("NCCL version", "# nThread 1 nGpus 8\nNCCL version"))


@pytest.mark.parametrize("step", [2, 5])
def test_a_flat_time_is_a_floor_however_few_sizes_show_it(step):
    """34.7 us from 1 KiB to 1 MiB, as one process that launches eight GPUs takes."""
    sizes = 2.0 ** np.arange(10, 31, step)
    times = np.maximum(34.7e-6, collective_time("all_reduce", sizes, NODE))
    text = "# all_reduce_perf\n# gpus_total: 8\n" + rows("all_reduce", times, sizes=sizes)
    found = reasons(text)

    assert "small messages take 34.7 us whatever their size, from 1 KiB to 1 MiB" in found
    assert "launch overhead, the floor of one process that launches all GPUs" in found


def test_a_higher_floor_is_the_hosts():
    times = np.maximum(90e-6, collective_time("all_reduce", SIZES, NODE))
    text = "# all_reduce_perf\n# nThread 1 nGpus 8\n" + rows("all_reduce", times)

    assert "the host is the bound" in reasons(text)


def test_slow_first_rows_are_left_out():
    times = collective_time("all_reduce", SIZES, NODE)
    times[:2] *= 50
    text = "# all_reduce_perf\n# gpus_total: 8\n" + rows("all_reduce", times)
    found = reasons(text)

    assert "the first 2 rows" in found
    assert "warm-up" in found
    assert disturbed(times).tolist()[:3] == [True, True, False]


def test_bandwidths_of_another_number_of_ranks_are_noticed():
    times = collective_time("all_reduce", SIZES, NODE)
    text = "# all_reduce_perf\n# gpus_total: 8\n" + rows("all_reduce", times, ranks=4)
    (found,) = compare_all(text, LogOptions(hardware="h100-sxm"))

    assert any("printed for 4 ranks, not for 8" in note for note in found.notes)


def test_an_old_release_is_taken_as_the_oldest_known():
    (log,) = read_log(log_of("all_reduce", NODE).replace("2.29.2", "2.12.7"))
    found = compare(log, LogOptions())

    assert any("NCCL 2.12 is older" in note for note in found.notes)
    assert terminal(parts_of([found])).startswith("all_reduce on 8 x h100-sxm")


def test_a_plot_of_one_point_and_of_none():
    assert plot({"a": []}, ("", "")) == ""
    assert "a" in plot({"a": [(8.0, 0.0)]}, ("8 B", "8 B"))


def test_a_plot_writes_its_rows_and_sets_counts_apart_from_none():
    def rows(*values):
        drawn = plot({"a": [(2.0**n, y) for n, y in enumerate(values)]}, ("", ""), height=6)
        marks = [line.partition("|") for line in drawn.splitlines() if "|" in line]
        return {mark.strip(): points.count("a") for mark, _, points in marks}

    assert rows(0.0, 1.0, 2.0, 9.0) == {"10": 1, "8": 0, "6": 0, "4": 0, "2": 2, "0": 1}
    assert rows(0.1, 24.0, 249.5) == {"250": 1, "200": 0, "150": 0, "100": 0, "50": 0, "0": 2}
