"""What a program sends along each axis of its plan: messages of a size, and how often."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.collectives import collective_time
from costmodels.program import Communication, Program, turns
from topology.catalogue import Fabric


@dataclass(frozen=True, slots=True)
class Message:
    """A collective of `message_bytes`, run `times` times."""

    kind: str
    message_bytes: float
    times: int


Traffic = Mapping[str, tuple[Message, ...]]


def traffic_of(program: Program) -> Traffic:
    """Count the messages of a program along each axis."""
    counts: dict[str, Counter[tuple[str, float]]] = {}
    for stage in program.stages:
        for op, loops in stage.nested():
            if isinstance(op, Communication):
                size = float(np.max(op.message_bytes))
                counts.setdefault(op.axis, Counter())[op.kind, size] += turns(loops)
    return {
        axis: tuple(Message(kind, size, times) for (kind, size), times in messages.items())
        for axis, messages in counts.items()
    }


def seconds_on(messages: tuple[Message, ...], fabric: Fabric) -> float:
    """Add up the time of messages on one group's links.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> once = seconds_on((Message("all_reduce", 2.0**20, 1),), node)
    >>> seconds_on((Message("all_reduce", 2.0**20, 3),), node) == 3 * once
    True
    """
    return sum(m.times * collective_time(m.kind, m.message_bytes, fabric) for m in messages)
