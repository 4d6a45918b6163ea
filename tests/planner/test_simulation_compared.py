"""A measured trace beside a simulated turn: a trace made by hand, whose sums are known."""

import gzip
import json
import sqlite3

import pytest

from costmodels.kernel_names import class_of
from planner.command import cli
from planner.recommendation import estimate_plan
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.simulation import measured
from planner.simulation.comparison import compare
from planner.simulation.measured import OTHER, read_trace
from planner.simulation.simulation import simulate

WORDS = ("simulate", "--model", "flux", "--gpus", "4", "--plan", "ring4")
GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
FLASH = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16"
NCCL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
STEP = (  # what runs, its stream, when and for how long, in parts of a step
    (GEMM, 7, 0.00, 0.30),
    (FLASH, 7, 0.30, 0.30),
    (NCCL, 20, 0.40, 0.30),  # 0.20 beside attention, 0.10 exposed
    (ADD, 7, 0.70, 0.10),
    ("Memcpy DtoD (Device -> Device)", 7, 0.80, 0.05),
    ("mystery", 7, 0.85, 0.05),  # then nothing for 0.10
)
SHARES = {
    "gemm": 0.3, "attention": 0.3, "communication": 0.3, "pointwise": 0.1, "layout": 0.05,
    "other": 0.05, "communication_exposed": 0.1, "idle": 0.1, "step": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def simulation():
    scenario = resolve(Request(model="flux.1-dev", gpus=4))
    return simulate(scenario, estimate_plan(scenario, "ring4"))


def kernels(begin, length, steps=1):
    """Write steps of so many microseconds, one after the other."""
    return [
        {
            "ph": "X", "cat": "gpu_memcpy" if name.startswith("Mem") else "kernel", "name": name,
            "pid": 0, "tid": stream, "ts": begin + (step + at) * length, "dur": took * length,
            "args": {"device": 0, "stream": stream, "correlation": 100 * step + number},
        }
        for step in range(steps)
        for number, (name, stream, at, took) in enumerate(STEP)
    ]  # fmt: skip


def packed(events, **more):
    return json.dumps({"traceEvents": events, **more}).encode()


def check(compared, length_s):
    for part, share in SHARES.items():
        assert compared.measured.parts_s[part] == pytest.approx(share * length_s, abs=1e-9), part
    difference = length_s - compared.simulated.parts_s["step"]
    assert compared.apart_s["step"] == pytest.approx(difference, abs=1e-9)  # as exact as traces


def test_steps_that_repeat_are_found_between_other_work(simulation):
    """Layers of a step and what comes before it repeat as well, but not for as long."""
    length = simulation.turn_s * 2e6
    before = [{**one, "name": f"start {n}"} for n, one in enumerate(kernels(0, length))]
    trace = read_trace(packed([*before, *kernels(length, length, steps=5)]))

    compared = compare(simulation, trace)

    assert compared.step == "a stretch of 5 kernels that comes 5 times"
    check(compared, length / 1e6)


def test_annotated_steps_hold_what_was_launched_in_them(simulation):
    """The host is ahead: it launches the second step before the first has begun on the GPU."""
    length = simulation.turn_s * 1.5e6
    events = kernels(length, length, steps=3)
    for step in range(3):
        begin = 100 * step
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}",
                       "ts": begin, "dur": 100})  # fmt: skip
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 1 + n,
             "dur": 1, "args": {"correlation": 100 * step + n}}
            for n in range(len(STEP))
        ]  # fmt: skip
    trace = read_trace(gzip.compress(packed(events, distributedInfo={"rank": 2})))

    compared = compare(simulation, trace)

    assert compared.step == "one of 3 steps that the profiler was told of"
    assert compared.rank == 2
    assert trace.annotated.spans[1] == pytest.approx((2 * length / 1e6, 3 * length / 1e6))
    check(compared, length / 1e6)


def test_a_step_by_itself_is_taken_whole(simulation):
    length = simulation.turn_s * 1e6
    compared = compare(simulation, read_trace(json.dumps(kernels(7, length)).encode()))

    assert compared.step == "the whole trace"
    assert compared.measured.parts_s["step"] == pytest.approx(0.9 * simulation.turn_s)


def test_an_export_of_nsight_is_the_same_trace(simulation):
    """Its copies have a number for what they are, and its kernels one for their names."""
    length = 20 * round(simulation.turn_s * 1e6 / 20)  # so that shares are whole nanoseconds
    events = kernels(1e3, length, steps=2)
    data = exported(events)

    trace, other = read_trace(data), read_trace(packed(events))

    assert [one.kind for one in trace.kernels] == [one.kind for one in other.kernels]
    check(compare(simulation, trace), length / 1e6)


def test_rows_that_a_database_works_out_are_not_asked_for(simulation):
    """A view may have no end; kernels without their names are of no class."""
    made = sqlite3.connect(":memory:")
    made.deserialize(exported(kernels(0, simulation.turn_s * 1e6)))
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    made.execute("DROP TABLE StringIds")
    made.execute(f"CREATE VIEW StringIds AS {endless} SELECT x AS id, x AS value FROM n")
    made.commit()

    assert {one.kind for one in read_trace(made.serialize()).kernels} <= {OTHER, "copy", "layout"}


def exported(events, graphs=0):
    """Write a database with the columns that are read, as Nsight Systems names them."""
    made = sqlite3.connect(":memory:")
    columns = "start, end, globalPid, deviceId, streamId"
    made.execute("CREATE TABLE StringIds (id, value)")
    made.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, demangledName)")
    made.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns}, copyKind)")
    made.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end)")
    made.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, 1)", [(0,)] * graphs)
    for number, event in enumerate(events):
        start, took = (round(1e3 * event[name]) for name in ("ts", "dur"))
        values = (start, start + took, 1, 0, event["tid"])
        if event["cat"] == "kernel":
            made.execute("INSERT INTO StringIds VALUES (?, ?)", (number, event["name"]))
            table, last = "KERNEL", number
        else:
            table, last = "MEMCPY", 8  # DtoD
        row = f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES (?, ?, ?, ?, ?, ?)"
        made.execute(row, (*values, last))
    made.commit()
    return made.serialize()


def test_the_simulated_side_is_the_rank_of_the_simulation(simulation):
    compared = compare(simulation, read_trace(packed(kernels(0, 1e3))))
    here, rank = compared.simulated.parts_s, simulation.ranks[0]

    for kind, seconds in rank.compute_s.items():
        assert here[kind] == pytest.approx(seconds)
    shown = rank.communication_s - rank.communication_hidden_s + rank.waiting_s
    assert here["communication_exposed"] == pytest.approx(shown)
    assert here["idle"] == pytest.approx(rank.idle_s, abs=1e-9)


def test_the_command_shows_both(capsys, tmp_path, simulation):
    file = tmp_path / "trace.json"
    file.write_bytes(packed(kernels(0, simulation.turn_s * 2e6, steps=4)))

    assert cli.main([*WORDS, "--compare", str(file)]) == 0
    out = capsys.readouterr().out
    assert cli.main([*WORDS, "--compare", str(file), "--format", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)["compared"]

    assert "a measured step beside the simulated one" in out
    assert "measured takes 2.00 times as long; they part in" in out
    assert f"- 1 x {GEMM}" in out
    assert compared["measured"]["longest"]["gemm"][0]["name"] == GEMM
    assert compared["measured"]["parts_s"]["step"] == pytest.approx(2 * simulation.turn_s)


GOOD = packed(kernels(0, 100.0))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON: Expecting value"),
        (GOOD[:200], "the JSON is cut off"),
        (b"\x00\x01", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"{}", "got no traceEvents, wanted a trace of PyTorch's profiler"),
        (packed([]), "got 0 events and none of a GPU"),
        (packed([{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}]), "got 1 event and none of"),
        (packed([{"ph": "X", "cat": "kernel", "name": "k", "dur": 1}]), "k: got ts None and dur 1"),
        (packed([{**kernels(0, 1)[0], "ts": "1"}]), "got ts 1 and dur 0.3, wanted numbers of"),
        (packed([{**kernels(0, 1)[0], "dur": 10**400}]), "wanted numbers of microseconds"),
        (packed([{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]), "and dur -1"),
        (packed([{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "pid": n} for n in (0, 1)]),
         "got kernels of 2 GPUs, wanted those of one rank"),
        (gzip.compress(GOOD)[:-20], "the gzip is cut off"),
        (b"\x1f\x8b" + b"none" * 9, "broken gzip"),
        (exported(kernels(0, 100.0))[:5000], "no whole export of Nsight Systems: "),
        (exported([], graphs=1), "got CUDA graphs as wholes, wanted their kernels"),
        (exported([]), "got 0 events and none of a GPU"),
    ],
    ids=range(17),
)  # fmt: skip
def test_bad_traces_are_one_line_and_nothing_is_written(capsys, tmp_path, data, said):
    file, other = tmp_path / "bad.json", tmp_path / "out.json"
    file.write_bytes(data)

    code = cli.main([*WORDS, "--compare", str(file), "--trace", str(other)])
    shown = capsys.readouterr()

    assert (code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert f"--compare {file}: " in shown.err
    assert said in shown.err
    assert not other.exists()


def test_traces_that_are_too_large_are_refused(capsys, tmp_path, monkeypatch):
    """Packed ones are unpacked as far as the limit."""
    monkeypatch.setattr(measured, "MOST_BYTES", len(GOOD) - 1)
    file = tmp_path / "large.json"
    for data, said in (
        (GOOD, f"wanted a file of at most {len(GOOD) - 1} bytes"),
        (gzip.compress(GOOD), f"wanted at most {len(GOOD) - 1} bytes when unpacked"),
    ):
        file.write_bytes(data)
        assert cli.main([*WORDS, "--compare", str(file)]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_poi_fused__scaled_dot_product_flash_attention_add_3", "pointwise"),
        ("triton_tem_fused_mm_7", "gemm"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90> >", "attention"),
        ("_gemm_mha_v2_myl3_6", "attention"),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolution"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("Memcpy PtoP (Device -> Device)", "communication"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>", "layout"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >", "pointwise"),
        ("mystery", None),
    ],
)
def test_names_of_kernels_say_their_class(name, kind):
    assert class_of(name) == kind
