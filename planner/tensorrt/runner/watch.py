"""A rank that hangs ends itself: no call into a library can be trusted to come back."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

EVERY_S: Final = 0.05
SPARE_S: Final = 10.0
"""Longer than a phase's limit: then the system ends a process whose libraries let no thread run."""


class Watch(Protocol):
    """Told what is done now, and how long it may take."""

    def phase(self, name: str, seconds: float) -> None: ...

    def end(self) -> None: ...


def _unheard(seconds: float) -> None:
    del seconds


@dataclass(frozen=True, slots=True)
class Guard:
    """Calls `expire` with one line when a phase outlives its limit.

    alarm : told in how many seconds the system shall end this process; 0 where it shall not.
    """

    expire: Callable[[str], None]
    alarm: Callable[[float], object] = _unheard
    now: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    def phase(self, name: str, seconds: float) -> None:
        """Say what is done now; the clock starts anew."""
        self.now["phase"] = (name, seconds, time.monotonic() + seconds)
        self.alarm(seconds + SPARE_S)

    def end(self) -> None:
        """Nothing is watched any more."""
        self.stopped.set()
        self.alarm(0.0)

    def start(self) -> "Guard":
        """Begin to watch."""
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def _look(self) -> None:
        while not self.stopped.wait(EVERY_S):
            name, seconds, until = self.now.get("phase", ("", 0.0, float("inf")))
            if time.monotonic() > until:
                self.expire(
                    f"late in {name}, after {seconds:g} s: another rank is missing or stuck"
                )
                return
