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
        until = time.monotonic() + self.limit_s
        if self.rank:
            _send(self.lines[0], [what, value])
            answer = _word(_receive(self.lines[0], until, "rank 0", what), 0, what)
            if not isinstance(answer, list):
                raise RunError(f"{what}: rank 0 gave no list")
            return answer
        heard: list[object] = [value]
        for rank in range(1, self.world):
            said = _receive(self.lines[rank], until, f"rank {rank}", what)
            heard.append(_word(said, rank, what))
        for rank in range(1, self.world):
            _send(self.lines[rank], [what, heard])
        return heard

    def close(self) -> None:
        """Close the connections to other ranks."""
        for line in self.lines.values():
            line.close()


def _word(said: Sequence[object], rank: int, what: str) -> object:
    if said[0] != what:
        raise RunError(f"rank {rank} is at {said[0]!r} while this one is at {what!r}")
    return said[1]


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of this host, which the system gives to nobody else; rank 0 may listen at it.

    Both allow the address to be used again, and this one never listens.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def join(rank: int, world: int, address: tuple[str, int], limit_s: float, plan: str) -> Connections:
    """Connect all ranks with one another.

    address : host and port of rank 0.
    plan : what they are here for; ranks with another plan are refused.

    Raises `LateError` if a rank does not come in time; rank 0 names those that are missing.
    """
    connections = Connections(rank=rank, world=world, limit_s=limit_s)
    until = time.monotonic() + limit_s
    try:
        if rank:
            connections.lines[0] = _reach(address, until)
            _send(connections.lines[0], ["hello", [rank, plan]])
        elif world > 1:
            _await(connections, address, until, plan)
        connections.say("joined", rank)
    except RunError:
        connections.close()
        raise
    return connections


def _reach(address: tuple[str, int], until: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address, timeout=max(0.1, until - time.monotonic()))
        except OSError as error:
            if time.monotonic() > until:
                where = f"{address[0]}:{address[1]}"
                raise LateError(f"rank 0 is not at {where}: {error}") from None
            time.sleep(RETRY_S)


def _await(connections: Connections, address: tuple[str, int], until: float, plan: str) -> None:
    try:
        server = socket.create_server(address)
    except OSError as error:
        raise RunError(f"rank 0 cannot listen at {address[0]}:{address[1]}: {error}") from None
    with server:
        while len(connections.lines) < connections.world - 1:
            server.settimeout(max(0.01, until - time.monotonic()))
            try:
                line, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, connections.world)) - set(connections.lines))
                late = f"did not come in {connections.limit_s:g} s"
                raise LateError(f"ranks {', '.join(map(str, missing))} {late}") from None
            _welcome(connections, line, until, plan)


def _welcome(connections: Connections, line: socket.socket, until: float, plan: str) -> None:
    said = _word(_receive(line, until, "a rank", "hello"), -1, "hello")
    if not isinstance(said, list) or len(said) != 2:
        raise RunError(f"a stranger came: {str(said)[:40]!r}")
    rank, theirs = cast("tuple[int, str]", tuple(said))
    if theirs != plan:
        line.close()
        raise RunError(f"rank {rank} runs another plan: {theirs}, wanted {plan}")
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


def _receive(line: socket.socket, until: float, who: str, what: str) -> list[object]:
    count = int.from_bytes(_take(line, 4, until, who, what))
    if count > LONGEST:
        raise RunError(f"{who} said {count} bytes at {what}")
    raw = _take(line, count, until, who, what)
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, list) or len(said) != 2:
        raise RunError(f"{who} said no word at {what}")
    return said


def _take(line: socket.socket, count: int, until: float, who: str, what: str) -> bytes:
    raw = b""
    while len(raw) < count:
        line.settimeout(max(0.01, until - time.monotonic()))
        try:
            more = line.recv(count - len(raw))
        except TimeoutError:
            raise LateError(f"{who} is late at {what}") from None
        except OSError as error:
            raise RunError(f"{who} is gone at {what}: {error}") from None
        if not more:
            raise RunError(f"{who} is gone at {what}")
        raw += more
    return raw
