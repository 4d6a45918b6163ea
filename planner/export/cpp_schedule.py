"""The schedule as lines of words, which the runner in C++ reads without any library.

::

    world 4
    steps 28
    environment NAME 0                                  (set before NCCL starts, unless it is)
    engine forward 4 engines/forward.engine            (one file: shared by all ranks)
    group forward 0 1 2 3                               (ranks that run one together)
    meets forward                                       (by a communicator of each group)
    buffer input.image 1048576 bf16                     (bytes and type)
    given input.text#0                                  (starts with numbers, else with zeros)
    start filled 4096                                   (starts with this number)
    table forward rank.cos@0 8192 0                     (bytes a rank, and where the first begins)
    device 0 0 0                                        (rank, host, GPU)
    call once forward input.image=input.image+0 ...     (tensor=buffer+offset)
    copy each next.input.image input.image 1048576
    send each sent.x.image x.image 1048576 0>1 1>2      (between stages: bytes, and who to whom)
    output input.image
"""

from collections.abc import Iterator, Sequence

from planner.tensorrt import EngineNetwork, buffer_size
from planner.tensorrt.runner.library import Document


def cpp_schedule(document: Document, networks: Sequence[EngineNetwork]) -> str:
    """Write a schedule as the lines that the C++ runner reads."""
    buffers = document["buffers"]
    return "\n".join([
        f"world {document['gpus']}",
        f"steps {document['steps']}",
        *(f"environment {name} {value}" for name, value in document["environment"].items()),
        *_engine_lines(document),
        *_buffer_lines(buffers),
        *_table_lines(networks),
        *(f"device {rank['rank']} {rank['host']} {rank['device']}" for rank in document["ranks"]),
        *(_call_line("once", call, buffers) for call in document["once"]),
        *(_call_line("each", call, buffers) for call in document["each_step"]),
        f"output {document['output']}",
        "",
    ])  # fmt: skip


def _engine_lines(document: Document) -> Iterator[str]:
    for engine in document["engines"]:
        name = engine["name"]
        yield f"engine {name} {engine['ranks']} {' '.join(engine['files'])}"
        for group in engine["groups"]:
            yield f"group {name} {' '.join(map(str, group))}"
        if engine["collectives"]:
            yield f"meets {name}"


def _buffer_lines(buffers: Document) -> Iterator[str]:
    for name, buffer in buffers.items():
        yield f"buffer {name} {buffer_size(buffer)} {buffer['dtype']}"
        if buffer["given"]:
            yield f"given {name}"
        if "start" in buffer:
            yield f"start {name} {buffer['start']}"


def _table_lines(networks: Sequence[EngineNetwork]) -> Iterator[str]:
    for network in networks:
        start = 0
        for name, array in network.tables.items():
            yield f"table {network.name} {name} {array.nbytes // len(array)} {start}"
            start += array.nbytes


def _call_line(when: str, call: Document, buffers: Document) -> str:
    for kind in {"copy", "send"} & call.keys():
        source, target = call[kind]
        pairs = [f"{sender}>{receiver}" for sender, receiver in call.get("pairs", [])]
        return " ".join([kind, when, source, target, str(buffer_size(buffers[source])), *pairs])
    words = []
    for tensor, (name, place) in call["bind"].items():
        step = buffer_size(buffers[name]) // buffers[name]["shape"][0]
        words.append(f"{tensor}={name}+{place * step}")
    return f"call {when} {call['engine']} {' '.join(words)}"
