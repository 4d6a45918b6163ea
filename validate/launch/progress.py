"""The heartbeat of a rank: what it does now, since when, and until when it may.

A few thousand bytes of shared memory, written in place: cheap enough to be told of every operation.
Numbers are packed beforehand: `pack_into` clears its place first, and whoever reads just then finds
a deadline of zero.

Messages are counted by the ranks that exchange them. Who waits for whom follows from these counts
alone, whatever each rank's program is.
"""

import mmap
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from topology.base.values import dataclass
from validate.launch.place import Place

_HEAD: Final = struct.Struct("<Qdd")
_COUNT: Final = struct.Struct("<Q")
_LIFE: Final = struct.Struct("<dQ")
_GROUP: Final = struct.Struct("<QQ")
_GROUPS: Final = 64
_LIFE_AT: Final = _HEAD.size
_GPUS_AT: Final = _LIFE_AT + _LIFE.size
_WAITS_AT: Final = _GPUS_AT + 1
_LAST_AT: Final = _WAITS_AT + 1
_PHASE: Final = slice(_HEAD.size + 24, _HEAD.size + 184)
_OP: Final = slice(_PHASE.stop, _PHASE.stop + 320)
_CODE: Final = slice(_OP.stop, _OP.stop + 80)
_TABLE: Final = slice(_CODE.stop, _CODE.stop + _GROUPS * _GROUP.size)
SIZE: Final = _TABLE.stop

Group = tuple[int, ...]
"""Ranks that exchange messages; none in it: all, which agree on words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a rank last said. Times are of `time.monotonic`.

    count : operations started. cpu_s : seconds of a processor that the rank has used.
    lived : times that it has said so. code : the file and function that it is in. gpus : it runs on
    a GPU.
    waits : its host waits for a message or its device.
    group : of the last message. turns : messages started, by group.
    """

    count: int = 0
    since: float = 0.0
    deadline: float = 0.0
    phase: str = ""
    op: str = ""
    cpu_s: float = 0.0
    lived: int = 0
    code: str = ""
    gpus: bool = False
    waits: bool = False
    group: Group | None = None
    turns: Mapping[Group, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """A rank's heartbeat, as the rank writes it. places : of groups in its table of messages."""

    place: Place
    memory: mmap.mmap
    places: dict[Group, int] = field(default_factory=dict)

    def phase(self, name: str, limit_s: float | None = None) -> None:
        """Say what begins, and the seconds it may take; the last operation is forgotten."""
        now = time.monotonic()
        deadline = now + (self.place.phase_s if limit_s is None else limit_s)
        count = _COUNT.unpack_from(self.memory)[0]
        self.memory[: _HEAD.size] = _HEAD.pack(
            count, now, deadline
        )  # first: no phase without a limit
        self.waits(now=False)
        self.memory[_OP] = _padded(b"", _OP)
        self.memory[_PHASE] = _padded(name.encode(), _PHASE)

    def op(self, text: str | bytes) -> None:
        """Say which operation starts now; text that is encoded beforehand is cheaper."""
        count = _COUNT.unpack_from(self.memory)[0]
        self.memory[: _COUNT.size] = _COUNT.pack(count + 1)
        self.memory[_OP] = _padded(text if isinstance(text, bytes) else text.encode(), _OP)

    def message(self, text: bytes, group: Group) -> None:
        """Say that a message among ranks starts now, and that this one waits for it."""
        place = self.places.setdefault(group, min(len(self.places), _GROUPS - 1))
        offset = _TABLE.start + place * _GROUP.size
        turns = _GROUP.unpack_from(self.memory, offset)[1] + 1
        self.memory[offset : offset + _GROUP.size] = _GROUP.pack(_bits(group), turns)
        self.memory[_LAST_AT] = place + 1
        self.op(text)
        self.waits()

    def waits(self, *, now: bool = True) -> None:
        """Say whether the host waits, for a message or its device."""
        self.memory[_WAITS_AT] = now

    def lives(self, cpu_s: float, code: str) -> None:
        """Say how much of a processor this rank has used, and in which code it is."""
        self.memory[_CODE] = _padded(code.encode(), _CODE)
        lived = _LIFE.unpack_from(self.memory, _LIFE_AT)[1] + 1
        self.memory[_LIFE_AT : _LIFE_AT + _LIFE.size] = _LIFE.pack(cpu_s, lived)

    def on_gpus(self) -> None:
        """Say that this rank runs on a GPU."""
        self.memory[_GPUS_AT] = 1

    def end(self) -> None:
        """Say that all is done; no limit holds from here on."""
        self.phase("done", 1e3)

    @property
    def beat(self) -> Beat:
        """What a rank's heartbeat said last."""
        return read(self.memory)


def _padded(text: bytes, field: slice) -> bytes:
    size = int(field.stop - field.start)
    return text[:size].ljust(size, b"\0")


def unheard() -> Progress:
    """Make a heartbeat that nobody reads."""
    return Progress(Place(rank=0, world=1, local=0), mmap.mmap(-1, SIZE))


def _bits(group: Sequence[int]) -> int:
    return sum(1 << rank for rank in group if rank < _GROUPS)


def _ranks(bits: int) -> Group:
    return tuple(rank for rank in range(_GROUPS) if bits >> rank & 1)


def read(memory: mmap.mmap | bytes) -> Beat:
    """Read a heartbeat; one that was never written, or not yet whole, has no phase."""
    count, since, deadline = _HEAD.unpack_from(memory) if len(memory) >= SIZE else (0, 0.0, 0.0)
    if not deadline:
        return Beat()
    phase, op, code = (
        bytes(memory[section]).rstrip(b"\0").decode(errors="replace")
        for section in (_PHASE, _OP, _CODE)
    )
    cpu_s, lived = _LIFE.unpack_from(memory, _LIFE_AT)
    table = [(_ranks(bits), turns) for bits, turns in _GROUP.iter_unpack(memory[_TABLE])]
    return Beat(
        count=count,
        since=since,
        deadline=deadline,
        phase=phase,
        op=op,
        cpu_s=cpu_s,
        lived=lived,
        code=code,
        gpus=bool(memory[_GPUS_AT]),
        waits=bool(memory[_WAITS_AT]),
        group=table[memory[_LAST_AT] - 1][0] if memory[_LAST_AT] else None,
        turns={group: turns for group, turns in table if turns},
    )
