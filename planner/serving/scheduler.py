"""Iterations of an engine: who runs in each step, who waits, and when each token is there.

Requests are served in the order in which they come. A step takes the one token of every sequence
that decodes, and pieces of prompts up to the engine's budget. A pipeline has as many batches in
flight as places: each holds its share of the sequences, its steps pass one place after another,
and a place takes them in turn, so that a batch with a piece of a prompt holds up those behind it.
Steps in which nobody comes or goes are taken in one go, as their time is linear in the length of
the cache.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable

from planner.engines.engine import Scheduling
from planner.request.lengths import Load
from topology.base.values import dataclass

StepTimes = Callable[[float, float, float, float], list[float]]
"""Seconds of a step at every kind of place of a pipeline: of tokens of prompts, their context,
sequences that decode, and theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Engines that are alike: how they schedule, tokens of a cache, and their steps.

    kinds : of each place of the pipeline, one where there is none; as many batches are in flight.
    """

    ways: Scheduling
    capacity: int
    steps: StepTimes
    kinds: tuple[int, ...] = (0,)


class Sequence:
    """A request on its way; it changes as it is served.

    prompt : tokens to prefill, with those of its answer if it was preempted; `cached` of them are.
    left : tokens to write. batch : that it decodes in. ends : turn of its last token there.
    first, finish : seconds; -1 for not yet.
    """

    __slots__ = (
        "arrival", "batch", "cached", "ends", "finish", "first", "left", "number", "prompt",
    )  # fmt: skip

    def __init__(self, number: int, arrival: float, prompt: int, left: int) -> None:
        self.number, self.arrival, self.prompt, self.left = number, arrival, prompt, left
        self.cached, self.ends = 0, -1
        self.batch: Batch | None = None
        self.first = self.finish = -1.0


class Trail:
    """What an engine has done.

    sequences : in the order in which they ended. token_s : tokens cached times seconds.
    most_tokens : cached at any time, unfilled blocks included. prefilled : tokens. decoded : tokens
    too, or sequences of all steps where these may accept more than one of each.
    preempted : times that a sequence lost its cache.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.seconds = self.token_s = self.most_tokens = 0.0
        self.prefilled = self.decoded = self.preempted = 0


class Batch:
    """Sequences that run together, step by step; it changes as they come and go.

    ready : seconds at which its last step has left the last place. turn : steps in which it
    decoded. count : sequences that it holds. begun : those whose prompts have begun. running :
    those that decode, by the turn of their last token. admitted : in the order in which they began
    to. rows : how many decode. context : tokens cached of these.
    """

    __slots__ = ("admitted", "begun", "context", "count", "ready", "rows", "running", "turn")

    def __init__(self) -> None:
        self.ready = 0.0
        self.turn = self.rows = self.count = 0
        self.context = 0.0
        self.begun: list[Sequence] = []
        self.running: list[tuple[int, int, Sequence]] = []
        self.admitted: list[Sequence] = []

    def last_admitted(self) -> Sequence:
        """Take the sequence that began to decode last out of those that are running."""
        sequence = self.admitted.pop()
        while sequence.batch is not self:
            sequence = self.admitted.pop()
        self.running = [entry for entry in self.running if entry[2] is not sequence]
        heapq.heapify(self.running)
        return sequence


class Queue:
    """An engine with its cache and the requests that wait for it.

    prefix : share of each prompt that it has already.
    gain : tokens that a sequence grows by in a step, more than one where they are drafted; what it
        has left to write is counted in steps then.
    """

    def __init__(
        self, workers: Workers, load: Load, prefix: float = 0.0, gain: float = 1.0
    ) -> None:
        self.ways, self.capacity, self.steps = workers.ways, workers.capacity, workers.steps
        self.kinds, self.alike = workers.kinds, tuple(Counter(workers.kinds).items())
        self.load, self.prefix, self.gain = load, prefix, gain
        self.spare = self.ways.block - 1
        self.host = self.ways.host_s(0)
        self.row = self.ways.host_s(1) - self.host
        self.clock = self.now = 0.0
        # when the host and each place have done their last
        self.free = [0.0] * (len(self.kinds) + 1)
        self.batches = [Batch() for _ in self.kinds]
        self.waiting: deque[Sequence] = deque()
        self.sent = 0
        self.count = 0  # sequences in all batches
        self.used = 0.0  # tokens of the cache, as if the last block of each sequence were filled
        self.begun = 0  # prompts that have, in all batches
        self.unwritten = 0  # steps in which sequences of all batches have still to write
        self.trail = Trail()

    def run(self) -> Trail:
        """Serve all requests of the load."""
        for _ in range(min(self.load.concurrency, self.load.count)):
            self._send(0.0)
        while (batch := self._next()) is not None:
            self._serve(batch)
        self.trail.seconds = self.clock
        return self.trail

    def _serve(self, batch: Batch) -> None:
        """Run the next step of a batch, or all until somebody comes, ends or needs room."""
        while self.used + batch.rows * self.gain > self.capacity and batch.count and self.count > 1:
            self._preempt(batch)
        come = self.waiting and self.waiting[0].arrival <= self.now
        if pieces := self._pieces(batch) if come or batch.begun else []:
            self._step(batch, pieces)
        elif batch.rows:
            self._decode(batch)

    def _send(self, arrival: float) -> None:
        number, load = self.sent, self.load
        self.sent = number + 1
        prompt, output = load.prompts[number], load.outputs[number]
        steps_left = output if self.gain == 1.0 else 1 + math.ceil((output - 1) / self.gain)
        self.waiting.append(Sequence(number, arrival, prompt, steps_left))

    def _next(self) -> Batch | None:
        """Choose the batch that runs next, and take in who has come until then; none at the end."""
        arrivals = self.load.arrivals
        while True:
            at, batch = self._soonest()
            if arrivals is not None and self.sent < len(arrivals) and arrivals[self.sent] <= at:
                self._send(arrivals[self.sent])
                continue
            if batch is not None:
                self.now = batch.ready = at
            return batch

    def _soonest(self) -> tuple[float, Batch | None]:
        """Tell which batch may run its next step first, and when; never where none has any."""
        earliest, batch, empty_start, host_free = math.inf, None, -1.0, self.free[0]
        for candidate in self.batches:
            if candidate.count:
                start = host_free
            else:
                if empty_start < 0:
                    empty_start = self._begins()  # of any batch
                start = empty_start
            if candidate.ready > start:  # noqa: PLR1730  # `max` takes longer than all else here
                start = candidate.ready
            if start < earliest:
                earliest, batch = start, candidate
        return earliest, batch

    def _begins(self) -> float:
        """Tell when a batch that is empty may begin a prompt; never where it may not."""
        return max(self.free[0], self.waiting[0].arrival) if self._admits() else math.inf

    def _admits(self) -> bool:
        """Whether the engine has room for the next prompt, with what it keeps free for answers."""
        count, ways = self.count, self.ways
        if not self.waiting or count >= ways.rows:
            return False
        if not count:
            return True
        sequence = self.waiting[0]
        needed_tokens = self.used + sequence.prompt + ways.block + count
        if ways.kept:
            needed_tokens += ways.kept * (sequence.left + self.unwritten) * self.gain
        return needed_tokens <= self.capacity

    def _takes(self, batch: Batch) -> bool:
        """Whether a batch begins the next prompt: of who has come, up to its share of all."""
        if not self.waiting or self.waiting[0].arrival > self.now or not self._admits():
            return False
        return len(self.batches) == 1 or self._has_share(batch)

    def _has_share(self, batch: Batch) -> bool:
        """Whether a batch may hold one more, so that all have as many, or one more."""
        sequence_count = self.count + len(self.waiting)
        fair_share = sequence_count // len(self.batches)
        if batch.count < fair_share:
            return True
        missing = 0
        for candidate in self.batches:
            if candidate.count < fair_share:
                missing += fair_share - candidate.count
        return len(self.waiting) > missing

    def _pieces(self, batch: Batch) -> list[tuple[Sequence, int]]:
        """Choose what to prefill in the next step: sequences, and tokens of each."""
        room = self.ways.chunk - (batch.rows if self.ways.mixed else 0)
        pieces = []
        for sequence in batch.begun:
            take = min(sequence.prompt - sequence.cached, room)
            if take > 0:
                pieces.append((sequence, take))
                room -= take
        while room > 0 and self._takes(batch):
            sequence = self.waiting[0]
            prefix_tokens = self._hit(sequence) if self.prefix else 0
            remaining = sequence.prompt - max(prefix_tokens, sequence.cached)
            oversized = not self.ways.chunked and remaining > room
            if oversized and pieces:
                break
            self.waiting.popleft()
            sequence.cached = sequence.prompt - remaining
            batch.begun.append(sequence)
            batch.count += 1
            self.count += 1
            self.unwritten += sequence.left
            self.used += sequence.prompt + self.spare
            self.begun += 1
            if not remaining:
                self._takes_over(batch, sequence)
                continue
            take = remaining if oversized or remaining < room else room
            pieces.append((sequence, take))
            room -= take
        return pieces

    def _takes_over(self, batch: Batch, sequence: Sequence) -> None:
        """Let a sequence decode whose keys and values, and first token, came from elsewhere."""
        batch.begun.remove(sequence)
        self.begun -= 1
        if sequence.first < 0:
            sequence.first = self.now
        self._decodes(batch, sequence)

    def _hit(self, sequence: Sequence) -> int:
        """Count the tokens of a prompt that are in whole blocks of the cache."""
        block = self.ways.block
        return min(int(self.prefix * sequence.prompt) // block * block, sequence.prompt - 1)

    def _step(self, batch: Batch, pieces: list[tuple[Sequence, int]]) -> None:
        """Run one step with prompts in it."""
        tokens = context = 0
        for sequence, take in pieces:
            tokens += take
            context += take * sequence.cached
        rows = batch.rows if self.ways.mixed else 0
        length = batch.context / rows if rows else 0.0
        seconds = self.steps(tokens, context / tokens, rows, length)
        self._pass(batch, self.host + self.row * rows, seconds)
        self.trail.prefilled += tokens
        if rows:
            self._advance(batch, 1)
        for sequence, take in pieces:
            sequence.cached += take
            if sequence.cached == sequence.prompt:
                self._start(batch, sequence)

    def _pass(self, batch: Batch, host: float, seconds: list[float]) -> None:
        """Let a step of a batch pass the host and all places, at each behind the one before it."""
        free_at = self.free
        end_s = batch.ready
        if free_at[0] > end_s:  # noqa: PLR1730  # `max` takes longer than all else here
            end_s = free_at[0]
        free_at[0] = end_s = end_s + host
        for number, kind in enumerate(self.kinds, 1):
            if free_at[number] > end_s:  # noqa: PLR1730  # `max` takes longer than all else here
                end_s = free_at[number]
            free_at[number] = end_s = end_s + seconds[kind]
        batch.ready = end_s
        self._until(end_s)

    def _start(self, batch: Batch, sequence: Sequence) -> None:
        """Let a sequence decode whose prompt is done; its next token is there."""
        batch.begun.remove(sequence)
        self.begun -= 1
        if sequence.first < 0:
            sequence.first = batch.ready
        sequence.left -= 1
        self.unwritten -= 1
        self.trail.decoded += 1
        if not sequence.left:
            self.used -= sequence.prompt
            self._finish(batch, sequence)
            return
        self._decodes(batch, sequence)

    def _decodes(self, batch: Batch, sequence: Sequence) -> None:
        """Take a sequence to those that decode."""
        sequence.ends, sequence.batch = batch.turn + sequence.left, batch
        heapq.heappush(batch.running, (sequence.ends, sequence.number, sequence))
        batch.admitted.append(sequence)
        batch.rows += 1
        batch.context += sequence.prompt

    def _decode(self, batch: Batch) -> None:
        """Run steps without prompts: one, or all until somebody comes, ends or needs room."""
        turns = self._turns()
        if turns <= 1:
            rows = batch.rows
            seconds = self.steps(0.0, 0.0, rows, batch.context / rows)
            self._pass(batch, self.host + self.row * rows, seconds)
            self._advance(batch, 1)
            return
        active_batches = [each for each in self.batches if each.count]
        each = self._round(active_batches, (turns - 1) / 2 * self.gain)
        if (arrival := self._next_arrival()) < math.inf:
            turns = min(turns, max(1, math.ceil((arrival - batch.ready) / each)))
        self.free = [free + turns * each for free in self.free]
        for active in sorted(active_batches, key=lambda active: active.ready):
            active.ready += turns * each
            self._until(active.ready)
            self._advance(active, turns)

    def _round(self, batches: list[Batch], ahead: float) -> float:
        """Give the seconds of a step of every batch: of the slowest batch, or the busiest place.

        ahead : tokens by which their sequences will have grown.
        """
        host, slowest, busy = 0.0, 0.0, [0.0] * len(self.alike)
        for batch in batches:
            rows = batch.rows
            seconds = self.steps(0.0, 0.0, rows, batch.context / rows + ahead)
            host_s = self.host + self.row * rows
            host += host_s
            for kind, places in self.alike:
                busy[kind] += seconds[kind]
                host_s += places * seconds[kind]
            slowest = max(slowest, host_s)
        return max(slowest, host, *busy)

    def _next_arrival(self) -> float:
        """Tell when the next request comes by itself."""
        arrivals = self.load.arrivals
        return math.inf if arrivals is None or self.sent >= len(arrivals) else arrivals[self.sent]

    def _turns(self) -> int:
        """Count the rounds of all batches in which nobody comes, ends or needs room."""
        if self.begun or (len(self.batches) > 1 and self._admits()):
            return 1
        turns = int((self.capacity - self.used) // (self.count * self.gain))
        for each in self.batches:
            if each.count and each.running[0][0] - each.turn < turns:
                turns = each.running[0][0] - each.turn
        return turns

    def _until(self, clock: float) -> None:
        """Note that time has passed."""
        trail, used = self.trail, self.used
        if used > trail.most_tokens:  # noqa: PLR1730  # `max` takes longer than all else here
            trail.most_tokens = used
        if clock > self.clock:
            trail.token_s += used * (clock - self.clock)
            self.clock = clock

    def _advance(self, batch: Batch, turns: int) -> None:
        """Give every sequence that decodes as many tokens, and let go of those that are done."""
        steps, trail, running = turns * batch.rows, self.trail, batch.running
        batch.turn = turn = batch.turn + turns
        batch.context += steps * self.gain
        self.used = used = self.used + steps * self.gain
        self.unwritten -= steps
        trail.decoded += steps
        if used > trail.most_tokens:  # noqa: PLR1730  # `max` takes longer than all else here
            trail.most_tokens = used
        while running and running[0][0] == turn:
            _, _, sequence = heapq.heappop(running)
            self._drop(batch, sequence, sequence.prompt + sequence.left * self.gain)
            self._finish(batch, sequence)

    def _drop(self, batch: Batch, sequence: Sequence, tokens: float) -> None:
        """Take a sequence that decodes, and its tokens, out of the cache."""
        batch.context -= tokens
        self.used -= tokens
        batch.rows -= 1
        sequence.ends, sequence.batch = -1, None

    def _finish(self, batch: Batch, sequence: Sequence) -> None:
        sequence.finish = batch.ready
        self._leaves(batch)
        self.trail.sequences.append(sequence)
        if self.load.concurrency and self.sent < self.load.count:
            self._send(batch.ready)

    def _leaves(self, batch: Batch) -> None:
        """Count one sequence less."""
        batch.count -= 1
        self.count -= 1
        self.used -= self.spare

    def _preempt(self, batch: Batch) -> None:
        """Take the cache of the sequence that began last; it starts again, before all others."""
        if batch.begun:
            sequence = batch.begun.pop()
            self.begun -= 1
            self.used -= sequence.prompt
        else:
            sequence = batch.last_admitted()
            written = sequence.left - (sequence.ends - batch.turn)
            self._drop(batch, sequence, sequence.prompt + written * self.gain)
            sequence.prompt += round(written * self.gain)
            sequence.left -= written
        self.unwritten -= sequence.left
        self._leaves(batch)
        sequence.cached = 0
        self.waiting.appendleft(sequence)
        self.trail.preempted += 1
