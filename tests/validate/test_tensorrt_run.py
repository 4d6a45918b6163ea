"""The runner on a made-up TensorRT: order, handshakes, time limits, and the right numbers."""

import json
import socket
import threading
import time
import types
from dataclasses import dataclass, replace
from functools import cache

import faketensorrt as fake
import numpy as np
import pytest
import testmodels
from engineruns import Quiet, Setup, job, place, setup
from exportedfolders import exportable, of_a_model, started

from planner.export.files import write_folder
from planner.export.tensorrt import tensorrt_folder
from planner.lowering import lower
from planner.search.evaluate import price
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, document_of
from planner.tensorrt.from_program import networks_of
from planner.tensorrt.runner import connections, harness, processes
from planner.tensorrt.runner import device as driver
from planner.tensorrt.runner.connections import held_port, join
from planner.tensorrt.runner.errors import InputError, LateError, RunError
from planner.tensorrt.runner.external_weights import entries, is_outside, read, writer
from planner.tensorrt.runner.formats import bits
from planner.tensorrt.runner.library import require
from planner.tensorrt.runner.processes import Guard
from planner.tensorrt.runner.run import Job, Limits, Parts, run
from planner.tensorrt.runner.weights import drawn
from planner.tensorrt.schedule import schedule_of
from validate.reference import run_plan
from validate.reference.weights import Source


def start(setup, ranks, *, device=None, graph=False, spoil=None, outside=None):
    """Run ranks as threads; returns what each gave or raised."""
    found = {}

    def one(rank):
        mine = device(rank) if device else fake.FakeDevice()
        try:
            world = len(setup.order["ranks"])
            joined = join(rank, world, ("127.0.0.1", setup.port), setup.limits.meet_s, "plan")
            parts = Parts(
                library=fake.library(setup.world, mine),
                device=mine,
                nccl=setup.world,
                connections=joined,
                guard=Quiet([]),
            )
            try:
                found[rank] = run(
                    job(setup, rank, graph=graph, spoil=spoil, outside=outside), parts
                )
            finally:
                joined.close()
        except (RunError, threading.BrokenBarrierError, AssertionError) as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    return found


PLANS = [
    (testmodels.flux, "ulysses4"),
    (testmodels.flux, "cfg2.tp2"),
    (testmodels.wan, "allgather_kv2.ulysses2"),
    (testmodels.cosmos3, "cfg2.ulysses2"),
    (testmodels.sound, "dp2.ulysses2"),
    (testmodels.experts, "tp2"),
    (testmodels.flux, "pp3"),
    (testmodels.wan, "cfg2.pp2"),
    (testmodels.sana, "pp2.tp2"),
]


@cache
def unsplit(model):
    """What the model gives on one rank."""
    return run_plan(model, testmodels.workload(model, batch=2), parse_plan("single"))[0]


@pytest.mark.parametrize("graph", [False, True], ids=["calls", "graph"])
@pytest.mark.parametrize(("model", "text"), PLANS, ids=lambda one: getattr(one, "name", one))
def test_a_run_gives_every_rank_the_unsplit_result(model, text, graph):
    made = setup(model, text)
    plan = parse_plan(text)
    whole = unsplit(model)

    found = start(made, range(plan.gpus), graph=graph)

    for rank, out in found.items():
        assert not isinstance(out, Exception), f"rank {rank}: {out}"
        first = made.order["ranks"][rank]["sample"]
        want = whole[first : first + len(out.output)]
        np.testing.assert_allclose(out.output, want, atol=2e-4 * np.abs(whole).max())
        assert len(out.seconds) == made.order["steps"]


class Library:
    """NCCL's functions of one process; each gives its code."""

    def __init__(self, bad=""):
        self.calls, self.bad = [], bad

    def __getattr__(self, name):
        def call(*given):
            plain = [getattr(one, "value", one) for one in given]
            self.calls.append((name, *plain))
            return 5 * (name == self.bad)

        return call


def test_messages_of_a_stage_are_sent_at_one_time(monkeypatch):
    library, own = Library(), types.SimpleNamespace(ptr=77)
    monkeypatch.setattr(driver, "CDLL", lambda name: library)
    messages = [driver.Message(2, 4096, 64, sends=True), driver.Message(0, 8192, 64, sends=False)]

    driver.Nccl(types).pass_on(own, messages, 9)

    assert library.calls == [
        ("ncclGroupStart",),
        ("ncclSend", 4096, 64, 0, 2, 77, 9),
        ("ncclRecv", 8192, 64, 0, 0, 77, 9),
        ("ncclGroupEnd",),
    ]
    library.bad = "ncclGroupEnd"
    with pytest.raises(RunError, match="between stages failed with code 5"):
        driver.Nccl(types).pass_on(own, messages, 9)


def test_a_rank_loads_engines_of_its_own_stage_alone():
    made = setup(testmodels.wan, "cfg2.pp2")

    found = start(made, range(4))

    assert not any(isinstance(out, Exception) for out in found.values())
    ran = {(what[1], what[2]) for what in made.world.log if what[0] == "execute"}
    assert ran == {("forward.stage0", 0), ("forward.stage1", 0), ("combine", 0), ("combine", 1)}
    joined = [what for what in made.world.log if what[0] == "join"]
    assert len(joined) == 8  # pairs of branches, and all ranks to send


def beside(setup, name, rank):
    """A file of drawn weights, as a build leaves it beside an engine."""
    document = next(one for one in setup.documents if one["name"] == name)
    written, share = bytearray(), place(setup, name, rank)
    put = writer(document, written.extend)
    for layer in filter(is_outside, document["layers"]):
        put(layer["name"], bits(drawn()(layer, share), "fp32"))
    if not entries(document):
        return None
    return read("weights", np.frombuffer(bytes(written), np.uint8))


def reads_outside(name, rank, document, network, raw):
    constants = network.constants
    return fake.engine(document, constants, json.loads(raw)["rank"], outside=True)


@pytest.mark.parametrize("graph", [False, True], ids=["calls", "graph"])
@pytest.mark.parametrize(
    ("model", "text"), [*PLANS[:2], (testmodels.sana, "ulysses2")], ids=lambda one: str(one)[:8]
)
def test_weights_beside_engines_give_the_unsplit_result(model, text, graph):
    made, plan = setup(model, text), parse_plan(text)
    whole = unsplit(model)

    found = start(made, range(plan.gpus), graph=graph, spoil=reads_outside, outside=beside)

    for rank, out in found.items():
        assert not isinstance(out, Exception), f"rank {rank}: {out}"
        first = made.order["ranks"][rank]["sample"]
        want = whole[first : first + len(out.output)]
        np.testing.assert_allclose(out.output, want, atol=2e-4 * np.abs(whole).max())


def test_a_decoder_s_engines_share_the_weights_beside_them():
    made = setup(testmodels.llama, "single", passes=1, output_tokens=1)
    work = testmodels.workload(testmodels.llama, batch=2, passes=1, output_tokens=1)
    whole = run_plan(testmodels.llama, work, parse_plan("single"))[0]
    device = fake.FakeDevice()

    found = start(made, [0], device=lambda rank: device, spoil=reads_outside, outside=beside)

    np.testing.assert_allclose(found[0].output, whole, atol=2e-4 * np.abs(whole).max())
    prefill, decode = ({one.name for one in entries(document)} for document in made.documents)
    assert prefill == decode
    others = 1 + len(made.order["buffers"]) + sum(len(one.tables) for one in made.made)
    assert len(device.allocated) == others + len(prefill)


def test_weights_that_are_not_beside_their_engine_are_named():
    made = setup(testmodels.flux, "single")

    found = start(made, range(1), spoil=reads_outside)

    assert str(found[0]).startswith("forward: its engine reads weight.embed")
    assert str(found[0]).endswith("from a file of weights that is not beside it: build it again")


def test_weights_of_another_build_are_refused():
    """The engine holds its own; the file beside it is of a build that kept them outside."""
    made = setup(testmodels.flux, "single")

    found = start(made, range(1), outside=beside)

    assert str(found[0]) == "forward: its engine has no input weight.embed: build it again"


@pytest.mark.parametrize("cut", [0, 10, -300])
def test_a_file_of_weights_that_is_cut_short_is_refused(cut):
    written = bytearray()
    layer = {
        "kind": "weight", "part": "values", "encoding": "plain",
        "outputs": [{"name": "weight.a", "shape": [3, 5], "dtype": "bf16"}],
    }  # fmt: skip
    writer({"layers": [layer]}, written.extend)("weight.a", np.zeros((3, 5), np.uint16))

    with pytest.raises(InputError, match=r"a\.weights: .* build it again"):
        read("a.weights", np.frombuffer(bytes(written[:cut]), np.uint8))


def test_a_decoder_runs_its_prompt_and_one_token():
    made = setup(testmodels.llama, "tp2", passes=1, output_tokens=1)
    work = testmodels.workload(testmodels.llama, batch=2, passes=1, output_tokens=1)
    whole = run_plan(testmodels.llama, work, parse_plan("single"))[0]

    found = start(made, range(2))

    for out in found.values():
        np.testing.assert_allclose(out.output, whole, atol=2e-4 * np.abs(whole).max())


def test_every_engine_with_collectives_takes_a_communicator():
    made = setup(testmodels.cosmos3, "cfg2.ulysses2")

    found = start(made, range(4))

    assert {out.bound for out in found.values()} == {2}  # forward and combine
    alone = [document["name"] for document in made.documents if not document["collectives"]]
    assert alone == ["text_tower"]  # on every rank the same, and not for several devices
    groups = [tuple(sorted(ranks)) for ranks in made.world.joined.values()]
    assert groups == [(0, 1)] * 4  # two pairs of branches, two pairs along the sequence


@pytest.mark.parametrize("model", ["cosmos3", "llama-3.1-8b"])
def test_every_folder_that_is_exported_starts_with_its_program_s_collectives(model):
    """This draws some of all models on 2 to 8 GPUs: tests/exportedfolders.py."""
    _, count, said = of_a_model(model, [2])

    assert count
    assert said == []


def test_each_layer_is_timed_in_a_step_behind_the_others(tmp_path):
    scenario, plan = next(exportable("wan2.1-1.3b", 2))
    files = tensorrt_folder(scenario, price(scenario, plan))
    folder = harness.open_folder(write_folder(files, str(tmp_path / "out")))

    left = started(folder, steps=1, change=lambda rank, job: replace(job, layers=True))
    plain = started(folder, steps=1)

    of = {document["name"]: document["layers"] for document in folder.documents}
    engines = [call["engine"] for call in folder.plan["each_step"] if "engine" in call]
    wanted = [(name, layer["name"], 0.002) for name in engines for layer in of[name]]
    for rank, outcome in left.items():
        assert outcome.layers == tuple(wanted)
        np.testing.assert_array_equal(outcome.output, plain[rank].output)
        harness.save(tmp_path / "results", f"layers.rank{rank}", outcome.layers)
        assert harness.layers_of(tmp_path, rank) == outcome.layers
    assert plain[0].layers == ()


def test_communicators_are_handed_over_at_once():
    """The handshake comes back on no rank before all have called; one after another would hang."""
    made = setup(testmodels.flux, "ulysses4")

    found = start(made, range(4))

    assert [one for one in found.values() if isinstance(one, Exception)] == []
    assert all(one.closed == ["destroyed"] * 4 for one in made.world.communicators.values())


def test_engines_work_in_one_memory_and_everything_is_freed():
    made, devices = setup(testmodels.cosmos3, "cfg2.ulysses2"), {}

    found = start(made, range(4), device=lambda rank: devices.setdefault(rank, fake.FakeDevice()))

    assert [one for one in found.values() if isinstance(one, Exception)] == []
    for device in devices.values():
        assert device.freed == device.allocated
        assert len(device.works) == len(made.documents) == 3
        ((address, size),) = set(device.works)
        assert address == device.allocated[0]
        assert size == max(device.wanted)


def test_ranks_issue_the_same_engines_in_the_same_order():
    made = setup(testmodels.flux, "cfg2.tp2")

    start(made, range(4))

    calls = [what[1] for what in made.world.log if what[0] == "execute"]
    assert calls.count("forward") == 2 * 4  # one forward a rank and step, two steps
    assert calls.count("combine") == 2 * 4


def test_an_engine_for_one_device_ends_the_run():
    """Its collectives would be skipped, and the numbers wrong."""
    made = setup(testmodels.flux, "ulysses2")

    def spoil(name, rank, document, network, raw):
        return fake.engine(document, network.constants, rank, several=False)

    found = start(made, range(2), spoil=spoil)

    assert "not for several devices" in str(found[0])


def test_an_engine_of_another_machine_is_named():
    made = setup(testmodels.flux, "single")

    found = start(made, range(1), spoil=lambda name, *_: b"" if name == "combine" else _[-1])

    assert str(found[0]) == "combine: not an engine of this GPU and this TensorRT: build it here"


def test_an_engine_that_does_not_start_is_named():
    made = setup(testmodels.flux, "single")

    def spoil(name, rank, document, network, raw):
        return fake.engine(document, network.constants, rank, broken=name == "forward")

    found = start(made, range(1), spoil=spoil)

    assert str(found[0]) == "forward: TensorRT did not start it"


def test_a_step_that_does_not_end_is_late():
    made = replace(setup(testmodels.flux, "single"), limits=Limits(meet_s=300, step_s=0.2))

    def device(rank):
        one = fake.FakeDevice()
        one.hangs = True
        return one

    found = start(made, range(1), device=device)

    assert isinstance(found[0], LateError)
    assert "took more than 0.2 s" in str(found[0])


def test_a_rank_that_never_comes_is_named(monkeypatch):
    """The time of rank 0 is over as soon as the two others are there."""
    made = replace(setup(testmodels.flux, "ulysses4"), limits=Limits(meet_s=1000))
    welcome, come = connections._welcome, []  # noqa: SLF001  # where a rank is let in
    clock = types.SimpleNamespace(
        monotonic=lambda: time.monotonic() + 2000 * (len(come) == 2), sleep=time.sleep
    )
    monkeypatch.setattr(connections, "time", clock)
    monkeypatch.setattr(connections, "_welcome", lambda *one: come.append(welcome(*one)))

    found = start(made, (0, 1, 3))

    assert str(found[0]) == "ranks 2 did not come in 1000 s"
    assert all(isinstance(one, RunError) for one in found.values())


def test_a_failing_rank_frees_the_others():
    """They hold communicators with it: those are aborted, and every rank ends."""
    made = replace(setup(testmodels.flux, "ulysses2"), limits=Limits(meet_s=300, step_s=300))

    def spoil(name, rank, document, network, raw):
        return fake.engine(document, network.constants, rank, several=rank == 0)

    began = time.monotonic()
    found = start(made, range(2), spoil=spoil)

    assert "not for several devices" in str(found[1])
    assert isinstance(found[0], Exception)
    assert time.monotonic() - began < 300


def test_a_watch_ends_a_phase_that_is_late():
    said = []
    done = threading.Event()

    def expire(line):
        said.append(line)
        done.set()

    guard = Guard(expire).start()
    guard.phase("binding communicators", 0.1)

    assert done.wait(300)
    assert said == ["late in binding communicators, after 0.1 s: another rank is missing or stuck"]


def test_a_watch_that_ended_says_nothing(monkeypatch):
    said, now, before = [], [0.0], threading.enumerate()
    monkeypatch.setattr(processes, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    guard = Guard(said.append).start()
    guard.phase("a step", 0.1)
    guard.end()
    now[0] = 100.0
    for thread in set(threading.enumerate()).difference(before):
        thread.join(300)

    assert said == []


@pytest.mark.parametrize(
    ("has", "needs", "fits"),
    [("2.28.9", "2.30", False), ("2.30.4", "2.30", True), ("", "2.30", True), ("11.4.1", "", True)],
)
def test_a_version_that_is_too_old_is_refused(has, needs, fits):
    if fits:
        require("NCCL", has, needs)
    else:
        with pytest.raises(RunError, match=r"NCCL 2\.28\.9: this plan needs 2\.30 or newer"):
            require("NCCL", has, needs)


def test_a_port_is_nobody_else_s_until_rank_0_listens(port):
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):  # and again, after it has closed
        with socket.create_server(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def meet(world, plans):
    found = {}

    def one(rank, port):
        try:
            joined = join(rank, world, ("127.0.0.1", port), 300.0, plans[rank])
            found[rank] = joined.say("word", rank * rank)
            joined.close()
        except RunError as error:
            found[rank] = error

    with held_port() as port:
        threads = [threading.Thread(target=one, args=(n, port), daemon=True) for n in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    return found


def test_a_meeting_tells_all_what_each_said():
    assert meet(4, ["same"] * 4) == {rank: [0, 1, 4, 9] for rank in range(4)}


def test_a_rank_with_another_plan_is_refused():
    found = meet(2, ["mine", "theirs"])

    assert str(found[0]) == "rank 1 runs another plan: theirs, wanted mine"
    assert isinstance(found[1], RunError)
