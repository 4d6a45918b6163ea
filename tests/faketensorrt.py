"""TensorRT, CUDA and NCCL as far as the runner needs them, on numpy and threads.

Engines hold a network's document and are evaluated layer by layer. Communicators are handshakes:
they come to life when all ranks have handed theirs over, and not before.
"""

import json
import threading
import types
import zlib
from ctypes import c_char_p, c_void_p, py_object, pythonapi

import numpy as np

from planner.tensorrt.runner.external_weights import entries
from planner.tensorrt.runner.formats import bits, floats, storage
from planner.tensorrt.runner.weights import cut, drawn, taken
from validate.tensorrt.evaluate import Held, deliver, evaluate

PATIENCE_S = 10


class FakeCommunicator:
    """Ranks that meet: in the handshake, and in collectives, which each rank takes in order."""

    def __init__(self, ranks, number):
        self.ptr, self.ranks = number, ranks
        self.condition = threading.Condition()
        self.slots, self.turns, self.results = {}, {}, {}
        self.bound = threading.Barrier(ranks)
        self.closed, self.mail = [], {}

    def destroy(self):
        self.closed.append("destroyed")

    def abort(self):
        self.closed.append("aborted")
        self.bound.abort()

    def exchange(self, rank, message):
        place = message.members.index(rank)
        with self.condition:
            turn = self.turns[rank, message.members] = (
                self.turns.get((rank, message.members), 0) + 1
            )
            key = (message.members, turn)
            self.slots.setdefault(key, {})[place] = message
            if len(self.slots[key]) == len(message.members):
                given = [self.slots[key][n] for n in range(len(message.members))]
                self.results[key] = deliver(given)
                self.condition.notify_all()
            done = self.condition.wait_for(lambda: key in self.results, PATIENCE_S)
        assert done, f"rank {rank} waits for {message.operation}"
        return self.results[key][place]

    def post(self, sender, receiver, raw):
        with self.condition:
            self.mail.setdefault((sender, receiver), []).append(raw)
            self.condition.notify_all()

    def fetch(self, sender, receiver):
        key = sender, receiver
        with self.condition:
            came = self.condition.wait_for(lambda: self.mail.get(key), PATIENCE_S)
            assert came, f"{receiver} waits for {sender}"
            return self.mail[key].pop(0)


class World:
    """What all ranks of a run share."""

    def __init__(self):
        self.lock = threading.Lock()
        self.communicators, self.joined, self.count = {}, {}, 0
        self.devices = {}
        self.log = []

    def note(self, *what):
        with self.lock:
            self.log.append(what)

    def unique(self):
        with self.lock:
            self.count += 1
            return self.count.to_bytes(16, "little")

    def join(self, ranks, rank, unique):
        number = int.from_bytes(unique, "little")
        with self.lock:
            made = self.communicators.setdefault(number, FakeCommunicator(ranks, number))
            self.joined.setdefault(number, set()).add(rank)
        self.note("join", number, rank)
        return Member(made, rank)

    def pass_on(self, member, messages, stream):
        device = self.devices[threading.get_ident()]
        assert stream == device.stream
        device.put(lambda: device.deliver(member, messages))

    def named(self, capsule):
        get = pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = c_void_p, [py_object, c_char_p]
        return self.communicators[get(capsule, b"ncclComm_t")]


class Member:
    """One rank's end of a communicator."""

    def __init__(self, whole, rank):
        self.whole, self.rank, self.ptr = whole, rank, whole.ptr

    def destroy(self):
        self.whole.destroy()

    def abort(self):
        self.whole.abort()


class FakeDevice:
    """A GPU: memory is a row of bytes, the stream runs what is put on it at once."""

    def __init__(self):
        self.memory, self.next, self.stream = np.zeros(2**24, np.uint8), 256, 1
        self.recording, self.hangs = None, False
        self.allocated, self.freed, self.works, self.wanted = [], [], [], []

    def allocate(self, size):
        address, self.next = self.next, self.next + size + 256
        assert self.next < len(self.memory)
        self.allocated.append(address)
        return address

    def free(self, address):
        self.freed.append(address)

    def upload(self, address, array):
        raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self.memory[address : address + len(raw)] = raw

    def download(self, address, array):
        raw = self.memory[address : address + array.nbytes]
        array[...] = raw.view(array.dtype).reshape(array.shape)

    def copy(self, target, source, size):
        def work():
            self.memory[target : target + size] = self.memory[source : source + size].copy()

        self.put(work)

    def put(self, work):
        if self.recording is not None:
            self.recording.append(work)
        else:
            work()

    def deliver(self, member, messages):
        for one in messages:
            place = slice(one.address, one.address + one.size)
            if one.sends:
                member.whole.post(member.rank, one.peer, self.memory[place].copy())
        for one in messages:
            place = slice(one.address, one.address + one.size)
            if not one.sends:
                self.memory[place] = member.whole.fetch(one.peer, member.rank)

    def idle(self):
        return not self.hangs

    def capture(self):
        self.recording = []

    def captured(self):
        graph, self.recording = self.recording, None
        return graph

    def launch(self, graph):
        for work in graph:
            work()

    def release(self, graph):
        graph.clear()


class FakeContext:
    def __init__(self, world, device, engine):
        self.world, self.device, self.made = world, device, engine
        self.addresses, self.communicator, self.profiler = {}, None, None
        sides = [engine["document"][key] for key in ("inputs", "tables", "outputs")]
        names = [one["name"] for side in sides for one in side]
        names += [one.name for one in entries(engine["document"])] if engine["outside"] else []
        self.names = names
        self.engine = types.SimpleNamespace(
            num_io_tensors=len(names),
            get_tensor_name=lambda place: names[place],
            device_memory_size_v2=1000 + len(names),
        )

    def set_device_memory(self, address, size):
        self.works_in = address
        self.device.works.append((address, size))
        self.device.wanted.append(self.engine.device_memory_size_v2)

    def set_communicator(self, capsule):
        if not self.made["several"]:
            return False
        self.communicator = self.world.named(capsule)
        self.communicator.bound.wait(PATIENCE_S)  # comes back when all ranks have called
        return True

    def set_tensor_address(self, name, address):
        self.addresses[name] = address
        return name in self.names

    def execute_async_v3(self, stream):
        assert stream == self.device.stream
        assert self.works_in
        self.world.note("execute", self.made["document"]["name"], self.made["rank"])
        self.device.put(lambda at=dict(self.addresses): self.work(at))
        return not self.made.get("broken")

    def work(self, addresses):
        document, rank = self.made["document"], self.made["rank"]
        values = {v["name"]: self.read(v, addresses) for v in document["inputs"]}
        tables = {v["name"]: self.read(v, addresses)[None] for v in document["tables"]}
        arrays = {name: np.array(one) for name, one in self.made["constants"].items()}
        # this rank's rows are all that it was given
        rows = {name: {rank: table[0]} for name, table in tables.items()}
        weights = drawn()
        if self.made["outside"]:

            def weights(layer, rank):
                return self.read(layer["outputs"][0], addresses)

        held = Held(arrays={**arrays, **rows}, weights=weights, rank=rank)
        layers = evaluate(document, held, values)
        answer = None
        while True:
            try:
                message = layers.send(answer)
            except StopIteration as stop:
                outputs = stop.value
                break
            assert self.communicator is not None, "a collective was skipped"
            answer = self.communicator.exchange(rank, message)
        for layer in document["layers"] if self.profiler else ():
            self.profiler.report_layer_time(layer["name"], 2.0)
        for value in document["outputs"]:
            if value["name"] in addresses:
                raw = bits(outputs[value["name"]].astype(np.float32), value["dtype"])
                self.device.upload(addresses[value["name"]], raw)

    def read(self, value, addresses):
        dtype = value["dtype"]
        array = np.empty(value["shape"], storage(dtype))
        self.device.download(addresses[value["name"]], array)
        return floats(array, dtype).astype(np.float64)


def engine(document, constants, rank, *, several=None, broken=False, outside=False):
    """Serialise a network as an engine of this library; it may read weights as inputs.

    several : whether it is for several devices, which its layers say where left out.
    """
    if several is None:
        several = any(
            layer["kind"] == "collective" or (layer["kind"] == "attention" and layer["ranks"] != 1)
            for layer in document["layers"]
        )
    plain = {name: array.tolist() for name, array in constants.items()}
    made = {"document": document, "constants": plain, "rank": rank, "several": several}
    return json.dumps({**made, "broken": broken, "outside": outside}).encode()


def library(world, device):
    """The part of TensorRT that runs engines."""

    world.devices[threading.get_ident()] = device  # a thread is a rank

    class Runtime:
        def __init__(self, logger):
            del logger

        def deserialize_cuda_engine(self, raw):
            if not raw:
                return None
            made = json.loads(raw)
            return types.SimpleNamespace(
                create_execution_context=lambda strategy: FakeContext(world, device, made)
            )

    managed = types.SimpleNamespace(USER_MANAGED=2)
    return types.SimpleNamespace(
        Runtime=Runtime,
        ExecutionContextAllocationStrategy=managed,
        IProfiler=type("IProfiler", (), {}),
        __name__="fake",
        __version__="11.4.1",
    )


def learned_drawn():
    """Draw biases and norms as weights are drawn, to see that each finds its place."""

    def numbers(entry, rank):
        if entry["once"] and rank:
            return None
        name = f"{entry['kind']}/{entry['name']}@{entry['layer']}"
        random = np.random.default_rng(zlib.crc32(name.encode()))
        whole = random.standard_normal(sum(units * size for units, size in entry["parts"]))
        return np.asarray(taken(whole, cut(entry, rank), 0), np.float32)

    return numbers
