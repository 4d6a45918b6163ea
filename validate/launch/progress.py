"""The heartbeat of a rank: what it does now, since when, and until when it may.

A few hundred bytes of shared memory, written in place: cheap enough to be told of every operation.
Numbers are packed beforehand: `pack_into` clears its place first, and whoever reads just then finds
a deadline of zero.
"""

import mmap
import struct
import time
from typing import Final

from topology.base.values import dataclass
from validate.launch.place import Place

_HEAD: Final = struct.Struct("<Qdd")
_COUNT: Final = struct.Struct("<Q")
_PHASE: Final = slice(_HEAD.size, _HEAD.size + 160)
_OP: Final = slice(_HEAD.size + 160, _HEAD.size + 480)
SIZE: Final = _HEAD.size + 480


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a rank last said. count : operations started; times are of `time.monotonic`."""

    count: int = 0
    since: float = 0.0
    deadline: float = 0.0
    phase: str = ""
    op: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A rank's heartbeat, as the rank writes it."""

    place: Place
    memory: mmap.mmap

    def phase(self, name: str, limit_s: float | None = None) -> None:
        """Say what begins, and the seconds it may take; the last operation is forgotten."""
        now = time.monotonic()
        until = now + (self.place.phase_s if limit_s is None else limit_s)
        count = _COUNT.unpack_from(self.memory)[0]
        self.memory[: _HEAD.size] = _HEAD.pack(count, now, until)  # first: no phase without a limit
        self.memory[_OP] = _padded(b"", _OP)
        self.memory[_PHASE] = _padded(name.encode(), _PHASE)

    def op(self, text: str | bytes) -> None:
        """Say which operation starts now; text that is encoded beforehand is cheaper."""
        count = _COUNT.unpack_from(self.memory)[0]
        self.memory[: _COUNT.size] = _COUNT.pack(count + 1)
        self.memory[_OP] = _padded(text if isinstance(text, bytes) else text.encode(), _OP)

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


def read(memory: mmap.mmap | bytes) -> Beat:
    """Read a heartbeat; one that was never written, or not yet whole, has no phase."""
    count, since, deadline = _HEAD.unpack_from(memory) if len(memory) >= SIZE else (0, 0.0, 0.0)
    if not deadline:
        return Beat()
    phase, op = (
        bytes(memory[field]).rstrip(b"\0").decode(errors="replace") for field in (_PHASE, _OP)
    )
    return Beat(count=count, since=since, deadline=deadline, phase=phase, op=op)
