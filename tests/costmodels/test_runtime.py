"""What runs a program: the table that ships, and tables that cannot be read."""

import tomllib

import pytest

from costmodels.runtime import load_runtimes
from costmodels.tables import communicator_bytes, overlap_table, runtime, runtimes, shipped_profile
from topology.base import CatalogueError, InputError

ROW = """
[mine]
launch = "stream"
kind = "measured"
"""
NUMBERS = {
    "host_kernel": "5 us",
    "host_collective": "20 us",
    "memory": "1 GiB",
    "convolution": "1000",
    "plane_convolution": "1000",
    "plane_passes": "0",
}


def table(**changes):
    rows = {**NUMBERS, **changes}
    lines = [
        f'{key} = {{ value = "{value}", kind = "measured", source = "a test" }}'
        for key, value in rows.items()
        if value is not None
    ]
    head = ROW.replace('kind = "measured"\n', "")
    return "\n".join([head, *lines, "[mine.functions]", "default = { traffic = 2.0, kernels = 3 }"])


def test_a_table_is_read_in_si_units():
    mine = load_runtimes(tomllib.loads(table()))["mine"]

    assert mine.host_kernel.value == pytest.approx(5e-6)
    assert mine.memory.value == 2**30
    assert mine.fusion("norm") == mine.fusion("default")
    assert (mine.fusion("norm").traffic, mine.fusion("norm").kernels) == (2.0, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory": None}, "mine: expected .*memory"),
        ({"colour": "5 us"}, "mine: expected .* got .*colour"),
        ({"memory": "1 s"}, "mine.memory: .* is not a quantity in B"),
        ({"host_kernel": "soon"}, "mine.host_kernel: 'soon' is not a quantity in s"),
    ],
)
def test_a_table_that_is_wrong_says_where(changes, said):
    with pytest.raises(CatalogueError, match=said):
        load_runtimes(tomllib.loads(table(**changes)))


def test_a_number_without_a_source_does_not_load():
    with pytest.raises(CatalogueError, match="has no source"):
        load_runtimes(tomllib.loads(table().replace("a test", " ")))


def test_the_promised_runtimes_are_there():
    assert set(runtimes()) >= {"tensorrt", "torch-graph", "torch-compile", "torch-eager"}
    assert runtime("TensorRT").name == "tensorrt"


@pytest.mark.parametrize(("name", "said"), [("torch", "did you mean"), ("?", "expected one of")])
def test_an_unknown_runtime_names_the_nearest(name, said):
    with pytest.raises(InputError, match=f"unknown runtime .* {said}"):
        runtime(name)


@pytest.mark.parametrize("one", runtimes().values(), ids=lambda one: one.name)
def test_a_runtime_moves_at_least_what_a_function_reads_and_writes(one):
    for fusion in one.functions.values():
        assert fusion.traffic >= 1
        assert fusion.kernels >= 1


@pytest.mark.parametrize("one", runtimes().values(), ids=lambda one: one.name)
def test_a_graph_costs_the_host_nothing(one):
    assert (one.host_kernel.value == 0) == (one.launch == "graph")
    assert (one.host_collective.value == 0) == (one.launch == "graph")


def test_a_torch_graph_replays_the_kernels_of_the_compiler():
    graph, compiled = runtime("torch-graph"), runtime("torch-compile")
    profile = shipped_profile("h100-sxm")

    assert graph.functions == compiled.functions
    assert profile.runtime(graph).functions == profile.runtime(compiled).functions
    assert profile.runtime(graph).host_kernel.value == 0


def test_eager_fuses_less_than_compiled():
    compiled, eager = runtime("torch-compile"), runtime("torch-eager")
    functions = list(eager.functions)

    assert all(eager.fusion(f).traffic >= compiled.fusion(f).traffic for f in functions)
    assert eager.host_kernel.value > compiled.host_kernel.value


def test_small_tables_hold_what_the_models_ask_for():
    assert 2**26 < communicator_bytes() < 2**31
    assert all(0 <= share <= 1 and 0 < start < 1e-3 for share, start in overlap_table().values())
