"""Iterations of an engine: who runs in each step, who waits, and when each token is there.

Requests are served in the order in which they come. A step takes the one token of every sequence
that decodes, and pieces of prompts up to the engine's budget. Steps in which nobody comes or goes
are taken in one go, as their time is linear in the length of the cache.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable

from planner.engines.engine import Scheduling
from planner.serving.load import Load

StepTime = Callable[[float, float, float, float], float]
"""Seconds of a step: tokens of prompts, their context, sequences that decode, and theirs."""


class Sequence:
    """A request on its way; it changes as it is served.

    prompt : tokens to prefill, with those of its answer if it was preempted; `cached` of them are.
    left : tokens to write. ends : turn of its last token. first, finish : seconds; -1 for not yet.
    """

    __slots__ = ("arrival", "cached", "ends", "finish", "first", "left", "number", "prompt")

    def __init__(self, number: int, arrival: float, prompt: int, left: int) -> None:
        self.number, self.arrival, self.prompt, self.left = number, arrival, prompt, left
        self.cached, self.ends = 0, -1
        self.first = self.finish = -1.0


class Trail:
    """What an engine has done.

    sequences : in the order in which they ended. row_s, token_s : sequences that decode, and
    tokens cached, times seconds. most_tokens : cached at any time, unfilled blocks included.
    prefilled, decoded : tokens. preempted : times that a sequence lost its cache.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.seconds = self.row_s = self.token_s = 0.0
        self.most_tokens = self.prefilled = self.decoded = self.preempted = 0


class Queue:
    """An engine with its cache and the requests that wait for it.

    Parameters
    ----------
    capacity : tokens that the cache holds. prefix : share of each prompt that it has already.
    """

    def __init__(
        self, ways: Scheduling, capacity: int, step: StepTime, load: Load, prefix: float = 0.0
    ) -> None:
        self.ways, self.capacity, self.step, self.load = ways, capacity, step, load
        self.prefix = prefix
        self.clock, self.turn = 0.0, 0
        self.sent = self.rows = 0
        self.waiting: deque[Sequence] = deque()
        self.begun: list[Sequence] = []
        self.running: list[tuple[int, int, Sequence]] = []
        self.admitted: list[Sequence] = []
        self.context = 0  # tokens cached of sequences that decode
        self.partly = 0  # tokens kept for prompts that have begun
        self.due = 0  # turns at which running sequences end, added up
        self.trail = Trail()

    def run(self) -> Trail:
        """Serve all requests of the load."""
        for _ in range(min(self.load.concurrency, self.load.count)):
            self._send(0.0)
        while self._receive():
            while self._used() + self.rows > self.capacity and self.rows + len(self.begun) > 1:
                self._preempt()
            pieces = self._pieces()
            if pieces:
                self._step(pieces)
            else:
                self._decode()
        self.trail.seconds = self.clock
        return self.trail

    def _send(self, arrival: float) -> None:
        number = self.sent
        self.sent += 1
        prompt, output = self.load.prompts[number], self.load.outputs[number]
        self.waiting.append(Sequence(number, arrival, prompt, output))

    def _receive(self) -> bool:
        """Take in who has come; where nobody is here, wait for the next."""
        arrivals = self.load.arrivals
        if arrivals is not None:
            if not self.waiting and not self.begun and not self.rows and self.sent < len(arrivals):
                self.clock = max(self.clock, arrivals[self.sent])
            while self.sent < len(arrivals) and arrivals[self.sent] <= self.clock:
                self._send(arrivals[self.sent])
        return bool(self.waiting or self.begun or self.rows)

    def _used(self) -> int:
        """Count tokens of the cache in use, as if the last block of each sequence were filled."""
        return self.context + self.partly + (self.ways.block - 1) * (self.rows + len(self.begun))

    def _fits(self, sequence: Sequence) -> bool:
        """Whether a prompt may begin, with what the engine keeps free for answers."""
        kept = sequence.left + self.due - self.turn * self.rows
        kept += sum(each.left for each in self.begun)
        wanted = sequence.prompt + self.ways.block + self.rows + self.ways.kept * kept
        return self._used() + wanted <= self.capacity or not (self.rows or self.begun)

    def _pieces(self) -> list[tuple[Sequence, int]]:
        """Choose what to prefill in the next step: sequences, and tokens of each."""
        room = self.ways.chunk - (self.rows if self.ways.mixed else 0)
        pieces = []
        for sequence in self.begun:
            take = min(sequence.prompt - sequence.cached, room)
            if take > 0:
                pieces.append((sequence, take))
                room -= take
        while self.waiting and room > 0 and self.rows + len(self.begun) < self.ways.rows:
            sequence = self.waiting[0]
            left = sequence.prompt - self._hit(sequence)
            whole = not self.ways.chunked and left > room
            if (whole and pieces) or not self._fits(sequence):
                break
            self.waiting.popleft()
            sequence.cached = sequence.prompt - left
            self.begun.append(sequence)
            self.partly += sequence.prompt
            take = left if whole else min(left, room)
            pieces.append((sequence, take))
            room -= take
        return pieces

    def _hit(self, sequence: Sequence) -> int:
        """Count the tokens of a prompt that are in whole blocks of the cache."""
        block = self.ways.block
        return min(int(self.prefix * sequence.prompt) // block * block, sequence.prompt - 1)

    def _step(self, pieces: list[tuple[Sequence, int]]) -> None:
        """Run one step with prompts in it."""
        tokens = sum(take for _, take in pieces)
        context = sum(take * sequence.cached for sequence, take in pieces) / tokens
        rows = self.rows if self.ways.mixed else 0
        self._spend(self.step(tokens, context, rows, self.context / rows if rows else 0.0))
        self.trail.prefilled += tokens
        if rows:
            self._advance(1)
        for sequence, take in pieces:
            sequence.cached += take
            if sequence.cached == sequence.prompt:
                self._start(sequence)

    def _start(self, sequence: Sequence) -> None:
        """Let a sequence decode whose prompt is done; its next token is there."""
        self.begun.remove(sequence)
        self.partly -= sequence.prompt
        if sequence.first < 0:
            sequence.first = self.clock
        sequence.left -= 1
        self.trail.decoded += 1
        if not sequence.left:
            self._finish(sequence)
            return
        sequence.ends = self.turn + sequence.left
        heapq.heappush(self.running, (sequence.ends, sequence.number, sequence))
        self.admitted.append(sequence)
        self.rows += 1
        self.due += sequence.ends
        self.context += sequence.prompt

    def _decode(self) -> None:
        """Run steps without prompts, until somebody comes, ends or needs room."""
        self._prune()
        turns = min(self.running[0][0] - self.turn, (self.capacity - self._used()) // self.rows)
        turns = max(turns, 1)
        length, arrivals = self.context / self.rows, self.load.arrivals
        if arrivals is not None and self.sent < len(arrivals):
            each = self.step(0.0, 0.0, self.rows, length)
            turns = min(turns, max(1, math.ceil((arrivals[self.sent] - self.clock) / each)))
        self._spend(turns * self.step(0.0, 0.0, self.rows, length + (turns - 1) / 2))
        self._advance(turns)

    def _spend(self, seconds: float) -> None:
        self.clock += seconds
        self.trail.row_s += self.rows * seconds
        used = self._used()
        self.trail.token_s += used * seconds
        self.trail.most_tokens = max(self.trail.most_tokens, used)

    def _advance(self, turns: int) -> None:
        """Give every sequence that decodes as many tokens, and let go of those that are done."""
        self.turn += turns
        self.context += turns * self.rows
        self.trail.decoded += turns * self.rows
        self.trail.most_tokens = max(self.trail.most_tokens, self._used())
        self._prune()
        while self.running and self.running[0][0] == self.turn:
            _, _, sequence = heapq.heappop(self.running)
            self.context -= sequence.prompt + sequence.left
            self._leave(sequence)
            self._finish(sequence)
            self._prune()

    def _prune(self) -> None:
        """Drop entries of sequences that were preempted since."""
        while self.running and self.running[0][2].ends != self.running[0][0]:
            heapq.heappop(self.running)

    def _leave(self, sequence: Sequence) -> None:
        self.rows -= 1
        self.due -= sequence.ends
        sequence.ends = -1

    def _finish(self, sequence: Sequence) -> None:
        sequence.finish = self.clock
        self.trail.sequences.append(sequence)
        if self.load.concurrency and self.sent < self.load.count:
            self._send(self.clock)

    def _preempt(self) -> None:
        """Take the cache of the sequence that began last; it starts again, before all others."""
        if self.begun:
            sequence = self.begun.pop()
            self.partly -= sequence.prompt
        else:
            sequence = self._last_admitted()
            written = sequence.left - (sequence.ends - self.turn)
            self.context -= sequence.prompt + written
            self._leave(sequence)
            sequence.prompt += written
            sequence.left -= written
        sequence.cached = 0
        self.waiting.appendleft(sequence)
        self.trail.preempted += 1

    def _last_admitted(self) -> Sequence:
        sequence = self.admitted.pop()
        while sequence.ends < 0:
            sequence = self.admitted.pop()
        return sequence
