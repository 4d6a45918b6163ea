"""Two pools of workers: some run prompts, others decode; keys and values go from one to the other.

Each worker is an engine with a queue of its own, as in `planner.serving.scheduler`. A request goes
to the prefill worker with the fewest tokens of prompts before it; when its prompt is done, its keys
and values are sent to the decode worker with the fewest sequences, which takes it in between steps.
"""

import heapq
import math
from collections.abc import Callable

from planner.request.lengths import Load
from planner.serving.scheduler import Batch, Queue, Sequence, Trail, Workers

Sending = Callable[[int, int], float]
"""Seconds from the end of a prompt until its keys and values are there: its tokens, and those of it
that its last step ran."""


class PoolQueue(Queue):
    """A worker that is handed requests one by one.

    starts : seconds at which its next step may begin; never where it has nothing to run.
    given : what it has been given that it may not be done with. leaving : seconds at which it is,
    and how much of that.
    """

    def __init__(self, workers: Workers, prefix: float = 0.0, gain: float = 1.0) -> None:
        nobody = Load(prompts=[], outputs=[])
        super().__init__(workers, nobody, prefix, gain)
        self.starts = math.inf
        self.given = 0
        self.leaving: list[tuple[float, int]] = []

    def given_at(self, now: float) -> int:
        """Count what it is not done with at a time, which may be before the end of a step."""
        while self.leaving and self.leaving[0][0] <= now:
            self.given -= heapq.heappop(self.leaving)[1]
        return self.given

    def step(self) -> list[Sequence]:
        """Run the next step; return whom it ends."""
        done_before = len(self.trail.sequences)
        if (batch := self._next()) is not None:
            self._serve(batch)
        self._look()
        return self.trail.sequences[done_before:]

    def _look(self) -> None:
        """Note when this worker of a pool may begin its next step."""
        self.starts, _ = self._soonest()


class PrefillQueue(PoolQueue):
    """A worker that runs prompts alone; it is given their tokens.

    last : tokens of the last step of each prompt, by number of the request.
    """

    def __init__(self, workers: Workers, prefix: float) -> None:
        super().__init__(workers, prefix)
        self.last: dict[int, int] = {}

    def accept(self, sequence: Sequence) -> None:
        """Put a request into a worker's queue."""
        self.waiting.append(sequence)
        self.given += sequence.prompt
        self._look()

    def alone(self, prompt: int) -> float:
        """Give the seconds of a prompt that finds nobody else, or of its first step."""
        fresh_tokens = prompt - self._hit(Sequence(0, 0.0, prompt, 1))
        seconds = self.steps(min(fresh_tokens, self.ways.chunk), 0.0, 0.0, 0.0)
        return self.host + sum(seconds[kind] for kind in self.kinds)

    def _step(self, batch: Batch, pieces: list[tuple[Sequence, int]]) -> None:
        self.last.update((sequence.number, take) for sequence, take in pieces)
        super()._step(batch, pieces)

    def _finish(self, batch: Batch, sequence: Sequence) -> None:
        heapq.heappush(self.leaving, (batch.ready, sequence.prompt))
        super()._finish(batch, sequence)


class DecodeQueue(PoolQueue):
    """A worker that decodes sequences; of prompts it runs those of who lost their cache.

    horizon : seconds before which nobody comes but who is known to. again : whether the first token
    comes of its first step, which runs the last one of the prompt again. fresh : sequences that are
    before theirs.
    """

    def __init__(self, workers: Workers, gain: float, *, again: bool) -> None:
        super().__init__(workers, gain=gain)
        self.horizon = math.inf
        self.again = again
        self.fresh: list[Sequence] = []

    def accept(self, number: int, arrival: float, prompt: int, output: int) -> None:
        """Queue a sequence whose keys and values arrive at a time, in the order of times."""
        steps_left = math.ceil((output - 1) / self.gain) + self.again
        sequence = Sequence(number, arrival, prompt, steps_left)
        sequence.cached = prompt
        position = len(self.waiting)
        while position and self.waiting[position - 1].arrival > arrival:
            position -= 1
        self.waiting.insert(position, sequence)
        self.given += 1
        self._look()

    def _next_arrival(self) -> float:
        waiting = self.waiting[0].arrival if self.waiting else math.inf
        return min(self.horizon, waiting) if waiting > self.now else self.horizon

    def _takes_over(self, batch: Batch, sequence: Sequence) -> None:
        if self.again and sequence.first < 0:
            self.fresh.append(sequence)
        super()._takes_over(batch, sequence)

    def _turns(self) -> int:
        return 1 if self.fresh else super()._turns()

    def _pass(self, batch: Batch, host: float, seconds: list[float]) -> None:
        super()._pass(batch, host, seconds)
        for sequence in self.fresh:
            sequence.first = batch.ready
        self.fresh.clear()

    def _finish(self, batch: Batch, sequence: Sequence) -> None:
        heapq.heappush(self.leaving, (batch.ready, 1))
        super()._finish(batch, sequence)


class Pools:
    """Workers of both kinds and the requests between them; it changes as they are served.

    coming : seconds at which requests come that have not yet. handed : those whose prompts are
    done. soonest : seconds that a prompt takes at least.
    """

    def __init__(
        self, prefills: list[PrefillQueue], decodes: list[DecodeQueue], send: Sending, load: Load
    ) -> None:
        self.prefills, self.decodes, self.send, self.load = prefills, decodes, send, load
        self.coming = list(load.arrivals or [0.0] * min(load.concurrency, load.count))
        self.begun = 0
        self.handed: dict[int, Sequence] = {}
        self.soonest = prefills[0].alone(min(load.prompts))
        self.ended: list[Sequence] = []

    def run(self) -> Trail:
        """Serve all requests of the load."""
        while True:
            next_arrival = self.coming[0] if self.coming else math.inf
            prefill = min(self.prefills, key=_start_time)
            decode = min(self.decodes, key=_start_time)
            next_time = min(next_arrival, prefill.starts, decode.starts)
            if next_time == math.inf:
                return self._trail()
            if next_arrival == next_time:
                self._begin(heapq.heappop(self.coming))
            elif prefill.starts == next_time:
                for sequence in prefill.step():
                    self._hand_over(sequence, prefill.last.pop(sequence.number))
            else:
                other_starts = (queue.starts for queue in self.decodes if queue is not decode)
                decode.horizon = min(next_arrival, prefill.starts, *other_starts) + self.soonest
                for sequence in decode.step():
                    self._end(sequence)

    def _begin(self, arrival: float) -> None:
        """Give the next request to a prefill worker."""
        worker = min(self.prefills, key=lambda queue: queue.given_at(arrival))
        worker.accept(Sequence(self.begun, arrival, self.load.prompts[self.begun], 1))
        self.begun += 1

    def _hand_over(self, sequence: Sequence, last_tokens: int) -> None:
        """Send the keys and values of a prompt that is done to a decode worker."""
        number, output = sequence.number, self.load.outputs[sequence.number]
        self.handed[number] = sequence
        if output == 1:
            self._end(sequence)
            return
        arrival = sequence.finish + self.send(sequence.prompt, last_tokens)
        worker = min(self.decodes, key=lambda queue: queue.given_at(sequence.finish))
        worker.accept(number, arrival, sequence.prompt, output)

    def _end(self, sequence: Sequence) -> None:
        """Note that a request is done; a client sends its next one."""
        request = self.handed.pop(sequence.number)
        request.first, request.finish = sequence.first, sequence.finish
        self.ended.append(request)
        if self.load.concurrency and self.begun + len(self.coming) < self.load.count:
            heapq.heappush(self.coming, sequence.finish)

    def _trail(self) -> Trail:
        """Add up what all workers have done; the cache is that of the decode workers."""
        trail = Trail()
        decoded = [each.trail for each in self.decodes]
        all_trails = [*decoded, *(each.trail for each in self.prefills)]
        trail.sequences = self.ended
        trail.seconds = max(each.clock for each in (*self.prefills, *self.decodes))
        trail.token_s = sum(each.token_s for each in decoded)
        trail.most_tokens = max(each.most_tokens for each in decoded)
        trail.prefilled = sum(each.prefilled for each in all_trails)
        trail.decoded = sum(each.decoded for each in all_trails)
        trail.preempted = sum(each.preempted for each in decoded)
        return trail


def _start_time(worker: PoolQueue) -> float:
    return worker.starts
