"""Rows of a rank's own: requests of other lengths, and a sequence that does not divide.

Ranks of attention data parallelism meet at the layers with experts, which take the rows of all.
Gathered by a collective these take as long as rows of the mean rank, since each link passes on all
but one rank's, of whatever size: vLLM and TensorRT-LLM gather by a broadcast from every rank,
SGLang adds up [1]_. Sent by a kernel of their own they take as long as those of the rank that has
most. Replicas never meet.

Ulysses Anything cuts what does not divide into pieces, the first of which have a row more; a
message takes as long as the largest, and heads are padded [2]_. All other plans pad the sequence,
so that their ranks do the same.

References
----------
.. [1] vLLM, vllm/distributed/device_communicators/pynccl.py: ``all_gatherv``; TensorRT-LLM,
   ``allgather`` with ``sizes``; SGLang, python/sglang/srt/layers/dp_attention.py: ``SUM_LEN``
.. [2] diffusers, src/diffusers/hooks/context_parallel.py: ``PartitionAnythingSharder``;
   src/diffusers/models/attention_dispatch.py: ``_maybe_pad_qkv_head``
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from costmodels.price import Target, kernel_of
from costmodels.program import Communication, Loop, Op
from planner.lowering import lower_places
from planner.lowering.work import rank_work
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.scenario import Scenario, lengths_of
from planner.strategies import adp, uaa
from topology.base.values import dataclass

Places = Sequence[Loop]
"""A stage at every place of a pipeline; one for all where they do the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """What a rank works on.

    tokens : of its requests, or of its piece. own : its rows. together : of each of the ranks that
    it meets, where they were even. most : of the one of them that has most.
    """

    tokens: int
    own: Workload
    together: Workload
    most: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """What the ranks of a plan work on.

    axis : along which those meet that have unequal rows. rows : of the ranks in turn along it,
    replica by replica; one of all where these have as many.
    """

    axis: str
    rows: Sequence[OwnRows]

    @property
    def even(self) -> bool:
        """Whether all ranks have as many rows."""
        return len(self.rows) == 1

    def number(self, plan: Plan, rank: int) -> int:
        """Say which rows a rank has."""
        if self.even:
            return 0
        return plan.index_of(rank)[uaa.AXIS] if self.axis == uaa.AXIS else plan.replica_of(rank)

    def held(self, plan: Plan, rank: int) -> int | None:
        """Count the tokens of a rank; None where all ranks have as many."""
        return None if self.even else self.rows[self.number(plan, rank)].tokens

    def stages(self, scenario: Scenario, plan: Plan, target: Target) -> list[list[Places]]:
        """Write down for each stage what is done with each of the rows, in as many turns."""
        mean_stages = _place_stages(scenario, plan, scenario.workload)
        if self.even:
            return [[places] for places in mean_stages]
        stages_with = cache(partial(_place_stages, scenario, plan))

        @cache
        def joined(rows: OwnRows) -> list[Places]:
            stage_places = zip(
                mean_stages, *map(stages_with, (rows.own, rows.together, rows.most)), strict=True
            )
            return [
                [
                    replace(_joined(loops, self.axis, target), count=even.count)
                    for even, *loops in zip(*places, strict=True)
                ]
                for places in stage_places
            ]

        return [list(places) for places in zip(*map(joined, self.rows), strict=True)]


def sequences_of(scenario: Scenario, plan: Plan) -> Sequences:
    """Say what each rank has of the requests, or of a sequence."""
    sequences = _dealt_requests(scenario, plan) or _cut_pieces(scenario, plan)
    if sequences and len({rows.own for rows in sequences.rows}) > 1:
        return sequences
    workload = scenario.workload
    return Sequences(
        axis="", rows=[OwnRows(tokens=0, own=workload, together=workload, most=workload)]
    )


def evened(scenario: Scenario, plan: Plan) -> Scenario | None:
    """Ask for sequences that leave no rank fewer rows; None where all are so.

    Requests are as long as the mean, and what is cut as long as it is at most where it divides.
    """
    if not sequences_of(scenario, plan).even and plan.degree(uaa.AXIS) == 1:
        request = replace(scenario.request, lengths="", arrivals="", spread=None)
        return replace(scenario, request=request, lengths=None, trace=())
    spans = rank_work(scenario.model, scenario.workload, plan).spans
    remainders = {name: int(span.tokens) - int(span.divided) for name, span in spans.items()}
    if not any(remainders.values()) or any(not span.divided for span in spans.values()):
        return None
    workload = scenario.workload
    tokens = tuple((name, int(count) - remainders[name]) for name, count in workload.tokens)
    return replace(scenario, workload=replace(workload, tokens=tokens))


def _dealt_requests(scenario: Scenario, plan: Plan) -> Sequences | None:
    """Deal requests out to the ranks that have some of their own; of several, each has the mean."""
    if scenario.model.kind != "decoder" or plan.replicas == 1:
        return None
    lengths, workload = lengths_of(scenario), scenario.workload
    if not (lengths.rows or lengths.spread):
        return None
    requests_each = max(1, int(workload.batch) // plan.replicas)
    requests = lengths.dealt(plan.replicas * requests_each)
    means = [_mean_request(requests[replica :: plan.replicas]) for replica in range(plan.replicas)]
    rows, group_size = list[OwnRows](), plan.degree(adp.AXIS)
    for start in range(0, plan.replicas, group_size):
        group_means = means[start : start + group_size]
        mean_request, longest_request = _mean_request(group_means), max(group_means)
        rows += [
            OwnRows(
                tokens=sum(rank_request),
                own=_workload_of(scenario, rank_request),
                together=_workload_of(scenario, mean_request),
                most=_workload_of(scenario, longest_request),
            )
            for rank_request in group_means
        ]
    return Sequences(axis=adp.AXIS, rows=rows)


def _mean_request(requests: Sequence[tuple[int, int]]) -> tuple[int, int]:
    prompts, outputs = (
        round(sum(tokens) / len(requests)) for tokens in zip(*requests, strict=True)
    )
    return prompts, outputs


def _workload_of(scenario: Scenario, tokens: tuple[int, int]) -> Workload:
    """Ask for a prompt and an answer of so many tokens, of which as large a part is cached."""
    workload, (prompt, output) = scenario.workload, tokens
    output, cached = output if workload.output_tokens else 0, 0
    if workload.prefixed:
        prompt = max(2, prompt)
        cached = min(max(1, int(scenario.request.prefix_hit * prompt)), prompt - 1)
    names = tuple((stream, prompt) for stream, _ in workload.tokens)
    return replace(workload, tokens=names, output_tokens=output, cached=cached)


def _cut_pieces(scenario: Scenario, plan: Plan) -> Sequences | None:
    """Cut what does not divide as Ulysses Anything does."""
    degree, workload = plan.degree(uaa.AXIS), scenario.workload
    if degree == 1 or plan.sequence_ranks > degree:
        return None
    spans = rank_work(scenario.model, workload, plan).spans
    cut_tokens = {name: int(span.tokens) for name, span in spans.items() if span.axes}
    if min(cut_tokens.values(), default=0) < degree:
        return None
    rows = []
    for index in range(degree):
        piece_tokens = {
            name: count // degree + (index < count % degree) for name, count in cut_tokens.items()
        }
        even_tokens = {
            name: degree * piece
            for name, piece in piece_tokens.items()
            if degree * piece < cut_tokens[name]
        }
        tokens = tuple((name, even_tokens.get(name, count)) for name, count in workload.tokens)
        piece_workload = replace(workload, tokens=tokens)
        rows.append(
            OwnRows(
                tokens=sum(piece_tokens.values()),
                own=piece_workload,
                together=workload,
                most=workload,
            )
        )
    return Sequences(axis=uaa.AXIS, rows=rows)


def _place_stages(scenario: Scenario, plan: Plan, workload: Workload) -> list[Places]:
    programs = lower_places(scenario.model, workload, plan)
    return [*zip(*(program.stages for program in programs), strict=True)]


def _joined(loops: Sequence[Loop], axis: str, target: Target) -> Loop:
    """Take what is done to the rows of all ranks along an axis from where they are together.

    They are so from the message that gathers them to the one that takes them apart.

    loops : with a rank's own rows, with those together, and with most.
    """
    gathered: set[str] = set()

    def joined(loops: Sequence[Loop]) -> Loop:
        bodies = zip(*(loop.body for loop in loops), strict=True)
        return replace(loops[0], body=tuple(map(chosen, bodies)))

    def chosen(items: Sequence[Op | Loop]) -> Op | Loop:
        own_op, together_op, most_op = items
        if isinstance(own_op, Loop):
            return joined([item for item in items if isinstance(item, Loop)])
        assert not isinstance(most_op, Loop)
        is_meeting = isinstance(own_op, Communication) and own_op.axis == axis
        reads_gathered = any(tensor.name in gathered for tensor in own_op.reads)
        change = gathered.update if is_meeting != reads_gathered else gathered.difference_update
        change(tensor.name for tensor in own_op.writes)
        if is_meeting and kernel_of(most_op, target) is not None:
            return most_op
        return together_op if is_meeting or reads_gathered else own_op

    return joined(loops)
