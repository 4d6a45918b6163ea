"""Ring Attention whose queries travel, for a prompt that is cached for the most part.

Few queries look at many keys then: these stay on their ranks, queries pass once round, and all that
they found is sent home in one all-to-all and merged [1]_. What travels grows with the new tokens of
a prompt, where a ring's keys and values grow with all of it.

References
----------
.. [1] Yang et al., "Context Parallelism for Scalable Million-Token Inference", 2024,
   arXiv:2411.01783: pass-Q beside pass-KV
"""

from collections.abc import Iterator, Sequence

from costmodels.program import Pointwise, Tensor
from costmodels.program.emit import Emits, collective, concat_features, concat_rows, move
from planner.models import Model
from planner.strategies.attention import (
    SUM_BYTES,
    Keys,
    keys_apart,
    partial_attention,
    queries_and_keys,
    results_of,
)
from planner.strategies.base import Attend, AttentionCall, Proposal
from planner.strategies.ring import RingAttention, passed_on

AXIS = "ring_q"


class RingOfQueries(RingAttention):
    """Cut the sequence; pass queries round the ring inside attention."""

    axis = AXIS
    excludes = ("allgather_kv", "ring")

    def suits(self, model: Model) -> bool:
        """Leave it to whoever judges a ring to try this one in its place."""
        del model
        return False

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object as a ring does, to prompts that are all new, and to rows that are few."""
        yield from super().objections(proposal, degree)
        if not proposal.workload.prefixed:
            yield "ring_q passes queries: for prompts of which some is cached (prefix_hit)"
        if any(tower.latent is not None for tower in proposal.model.towers):
            yield "rows of latent attention are fewer than its queries, which ring_q passes"

    def attend(self, call: AttentionCall, degree: int, inner: Attend) -> Emits[list[Tensor]]:
        """Emit `degree` partial attentions, the queries' way round, and the results' way home."""
        del inner  # a ring is the innermost exchange: its partial attentions are its own
        query, keys = yield from queries_and_keys(call)
        cut, uncut = keys_apart(call, keys, AXIS)
        assert not uncut.tensors
        keys_values = yield from concat_rows(cut.tensors, f"{call.name}.kv")
        partials: list[tuple[Tensor, Tensor]] = []
        for step in range(degree):
            next_query = yield from passed_on(
                query, f"{call.name}.queries", step, degree, self.axis
            )
            local_keys = Keys([keys_values], cut.spans)
            partial = yield from partial_attention(call, query, local_keys, (AXIS, step), asks=True)
            partials.append(partial)
            query = next_query
        out = yield from _merged(call, partials, degree)
        return (yield from results_of(call, out))


STRATEGY = RingOfQueries()


def _merged(
    call: AttentionCall, partials: Sequence[tuple[Tensor, Tensor]], degree: int
) -> Emits[Tensor]:
    """Emit the results' way home, and the merge of those of all ranks by their sums."""
    outs, totals = zip(*partials, strict=True)
    out = yield from _sent_home(outs, f"{call.name}.found", degree)
    total = yield from _sent_home(totals, f"{call.name}.sums", degree)
    wide_out = Tensor(f"{out.name}.wide", out.shape, SUM_BYTES)
    yield Pointwise(function="cast", inputs=(out,), outputs=(wide_out,))
    packed = yield from concat_features((wide_out, total), f"{call.name}.every")
    merged = Tensor(f"{call.name}.out", outs[0].shape, outs[0].itemsize)
    sums = Tensor(f"{call.name}.lse", totals[0].shape, SUM_BYTES)
    yield Pointwise(
        function="merge_all", inputs=(packed,), outputs=(merged, sums),
        heads=(call.heads, call.heads), size=call.value_size,
    )  # fmt: skip
    return merged


def _sent_home(tensors: Sequence[Tensor], name: str, degree: int) -> Emits[Tensor]:
    """Emit what gives each rank that which its queries found on all of them."""
    packed = Tensor(f"{name}.by_rank", (degree, *tensors[0].shape), tensors[0].itemsize)
    yield from move("homeward", tensors, packed, axis=AXIS, degree=degree)
    return (yield from collective("all_to_all", packed, AXIS, degree, name))
