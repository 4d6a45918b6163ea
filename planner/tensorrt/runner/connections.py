"""Ranks find each other and hear what every other says, within a time limit, over TCP.

Rank 0 listens; the others come to it. Every word is said by all ranks in the same order.
"""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, cast

from planner.tensorrt.runner.errors import LateError, RunError

RETRY_S: Final = 0.05
LONGEST: Final = 2**24
"""Bytes of a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """A rank's end: connections to all others on rank 0, else one to rank 0."""

    rank: int
    world: int
    limit_s: float
    lines: dict[int, socket.socket] = field(default_factory=dict)

    def say(self, what: str, value: object) -> list[object]:
        """Say a word, and hear what each rank said, in order.

        Raises `LateError`, naming the ranks that said nothing in time.
        """
        deadline = time.monotonic() + self.limit_s
        if self.rank:
            _send(self.lines[0], [what, value])
            answer = _word(_receive(self.lines[0], deadline, "rank 0", what), 0, what)
            if not isinstance(answer, list):
                raise RunError(f"{what}: rank 0 gave no list")
            return answer
        words: list[object] = [value]
        for rank in range(1, self.world):
            reply = _receive(self.lines[rank], deadline, f"rank {rank}", what)
            words.append(_word(reply, rank, what))
        for rank in range(1, self.world):
            _send(self.lines[rank], [what, words])
        return words

    def close(self) -> None:
        """Close the connections to other ranks."""
        for line in self.lines.values():
            line.close()


def _word(message: Sequence[object], rank: int, topic: str) -> object:
    if message[0] != topic:
        raise RunError(f"rank {rank} is at {message[0]!r} while this one is at {topic!r}")
    return message[1]


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of this host, which the system gives to nobody else; rank 0 may listen at it.

    Both allow the address to be used again, and this one never listens.
    """
    with socket.socket() as port_socket:
        port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port_socket.bind(("127.0.0.1", 0))
        yield int(port_socket.getsockname()[1])


def join(rank: int, world: int, address: tuple[str, int], limit_s: float, plan: str) -> Connections:
    """Connect all ranks with one another.

    address : host and port of rank 0.
    plan : what they are here for; ranks with another plan are refused.

    Raises `LateError` if a rank does not come in time; rank 0 names those that are missing.
    """
    connections = Connections(rank=rank, world=world, limit_s=limit_s)
    deadline = time.monotonic() + limit_s
    try:
        if rank:
            connections.lines[0] = _reach(address, deadline)
            _send(connections.lines[0], ["hello", [rank, plan]])
        elif world > 1:
            _await(connections, address, deadline, plan)
        connections.say("joined", rank)
    except RunError:
        connections.close()
        raise
    return connections


def _reach(address: tuple[str, int], deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() > deadline:
                address_text = f"{address[0]}:{address[1]}"
                raise LateError(f"rank 0 is not at {address_text}: {error}") from None
            time.sleep(RETRY_S)


def _await(connections: Connections, address: tuple[str, int], deadline: float, plan: str) -> None:
    try:
        server = socket.create_server(address)
    except OSError as error:
        raise RunError(f"rank 0 cannot listen at {address[0]}:{address[1]}: {error}") from None
    with server:
        while len(connections.lines) < connections.world - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                line, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, connections.world)) - set(connections.lines))
                lateness = f"did not come in {connections.limit_s:g} s"
                raise LateError(f"ranks {', '.join(map(str, missing))} {lateness}") from None
            _welcome(connections, line, deadline, plan)


def _welcome(connections: Connections, line: socket.socket, deadline: float, plan: str) -> None:
    greeting = _word(_receive(line, deadline, "a rank", "hello"), -1, "hello")
    if not isinstance(greeting, list) or len(greeting) != 2:
        raise RunError(f"a stranger came: {str(greeting)[:40]!r}")
    rank, their_plan = cast("tuple[int, str]", tuple(greeting))
    if their_plan != plan:
        line.close()
        raise RunError(f"rank {rank} runs another plan: {their_plan}, wanted {plan}")
    if rank in connections.lines or not 0 < rank < connections.world:
        line.close()
        raise RunError(f"rank {rank} came twice, or is none of {connections.world}")
    connections.lines[rank] = line


def _send(line: socket.socket, word: object) -> None:
    raw = json.dumps(word).encode()
    try:
        line.sendall(len(raw).to_bytes(4) + raw)
    except OSError as error:
        raise RunError(f"another rank hung up: {error}") from None


def _receive(line: socket.socket, deadline: float, sender: str, topic: str) -> list[object]:
    count = int.from_bytes(_take(line, 4, deadline, sender, topic))
    if count > LONGEST:
        raise RunError(f"{sender} said {count} bytes at {topic}")
    raw = _take(line, count, deadline, sender, topic)
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, list) or len(message) != 2:
        raise RunError(f"{sender} said no word at {topic}")
    return message


def _take(line: socket.socket, count: int, deadline: float, sender: str, topic: str) -> bytes:
    raw = b""
    while len(raw) < count:
        line.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            received = line.recv(count - len(raw))
        except TimeoutError:
            raise LateError(f"{sender} is late at {topic}") from None
        except OSError as error:
            raise RunError(f"{sender} is gone at {topic}: {error}") from None
        if not received:
            raise RunError(f"{sender} is gone at {topic}")
        raw += received
    return raw
