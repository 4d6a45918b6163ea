"""The schedule as lines of words, which the runner in C++ reads without any library.

::

    world 4
    steps 28
    engine forward 4 engines/forward.engine            (one file: shared by all ranks)
    communicator forward 0 1 2 3                        (ranks of one, in its order)
    buffer input.image 1048576 bf16                     (bytes and type)
    given input.text#0                                  (starts with numbers, else with zeros)
    table forward rank.cos@0 8192 0                     (bytes a rank, and where the first begins)
    device 0 0 0                                        (rank, host, GPU)
    call once forward input.image=input.image+0 ...     (tensor=buffer+offset)
    copy each next.input.image input.image 1048576
    output input.image
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import cast

from planner.tensorrt import ITEMSIZE, Network

Document = Mapping[str, object]


def cpp_schedule(document: Document, written: Sequence[Network]) -> str:
    """Return the lines."""
    lines = [
        f"world {document['gpus']}",
        f"steps {document['steps']}",
        *_engines(document),
        *_buffers(document),
        *_tables(written),
        *_ranks(document),
    ]
    for when in ("once", "each"):
        key = "once" if when == "once" else "each_step"
        calls = cast("list[Document]", document[key])
        lines += [_call(when, call, document) for call in calls]
    return "\n".join([*lines, f"output {document['output']}", ""])


def _engines(document: Document) -> Iterator[str]:
    for engine in cast("list[Document]", document["engines"]):
        name, files = engine["name"], cast("list[str]", engine["files"])
        yield f"engine {name} {engine['ranks']} {' '.join(files)}"
        for group in cast("list[list[int]]", engine["communicators"]):
            yield f"communicator {name} {' '.join(map(str, group))}"


def _buffers(document: Document) -> Iterator[str]:
    for name, buffer in cast("Mapping[str, Document]", document["buffers"]).items():
        yield f"buffer {name} {_bytes(buffer)} {buffer['dtype']}"
        if buffer["given"]:
            yield f"given {name}"


def _bytes(buffer: Document) -> int:
    return prod(cast("list[int]", buffer["shape"])) * int(ITEMSIZE[str(buffer["dtype"])])


def _tables(written: Sequence[Network]) -> Iterator[str]:
    for network in written:
        start = 0
        for name, array in network.tables.items():
            each = array.nbytes // len(array)
            yield f"table {network.name} {name} {each} {start}"
            start += array.nbytes


def _ranks(document: Document) -> Iterator[str]:
    for rank in cast("list[Document]", document["ranks"]):
        yield f"device {rank['rank']} {rank['host']} {rank['device']}"


def _call(when: str, call: Document, document: Document) -> str:
    buffers = cast("Mapping[str, Document]", document["buffers"])
    if "copy" in call:
        source, target = cast("list[str]", call["copy"])
        return f"copy {when} {source} {target} {_bytes(buffers[source])}"
    words = []
    for tensor, (buffer, place) in cast("Mapping[str, list[object]]", call["bind"]).items():
        holder = buffers[str(buffer)]
        step = _bytes(holder) // cast("list[int]", holder["shape"])[0]
        words.append(f"{tensor}={buffer}+{cast(int, place) * step}")
    return f"call {when} {call['engine']} {' '.join(words)}"
