"""Attention of every rank's rows to keys that are spread over ranks, each over its own: a decode.

A token has one row, which all ranks have; the cache stays where the prompt left it. Each rank looks
at its own rows, and the parts are merged by their log-sum-exps: one all-gather of a row a head,
however long the sequence is. So do vLLM's decode context parallelism [1]_ and Helix [2]_, and Meta
passes queries to the same end [3]_.

References
----------
.. [1] docs.vllm.ai serving/context_parallel_deployment
.. [2] Bhatia et al., "Helix Parallelism", 2025, arXiv:2507.07120, section 2.1
.. [3] Yang et al., "Context Parallelism for Scalable Million-Token Inference", 2024,
   arXiv:2411.01783, section 3.6
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodels.program import Attention, Pointwise, Tensor
from costmodels.program.emit import Emits, collective, concat_features, concat_rows, move
from planner.strategies.attention import (
    SUM_BYTES,
    attend_here,
    attention_over,
    queries_and_keys,
    query_spans,
    results_of,
)
from planner.strategies.base import Attend, AttentionCall


def attend_shards(axes: Sequence[tuple[str, int]]) -> Attend:
    """Make the attention over keys that are cut along `axes`, outermost first; here without any."""
    if not axes:
        return attend_here

    def attend(call: AttentionCall) -> Emits[list[Tensor]]:
        query, keys = yield from queries_and_keys(call)
        keys_values = yield from concat_rows(keys, f"{call.name}.kv")
        spans = tuple(span for entry in call.entries if entry.has_keys for span in entry.spans)
        local = yield from attention_over(call, query, keys_values, query_spans(call), spans)
        out = yield from merge_shards(local, axes)
        return (yield from results_of(call, out))

    return attend


def merge_shards(own: Attention, axes: Sequence[tuple[str, int]]) -> Emits[Tensor]:
    """Emit an attention over a rank's own keys, and the merge of those of all ranks."""
    name, lead = own.out.name, own.out.shape[:2]
    total = Tensor(f"{name}.lse", (*lead, own.heads), SUM_BYTES)
    own = replace(own, out=replace(own.out, name=f"{name}.own"), log_sum_exp=total)
    yield own
    part = Tensor(f"{name}.wide", own.out.shape, SUM_BYTES)
    yield Pointwise(function="cast", inputs=(own.out,), outputs=(part,))
    for number, (axis, degree) in enumerate(reversed(axes), 1):
        packed = yield from concat_features((part, total), f"{name}.{axis}")
        stacked = replace(packed, name=f"{name}.{axis}.mine", shape=(1, *packed.shape))
        yield from move("stack", [packed], stacked, axis=axis, degree=degree, view=True)
        gathered = yield from collective("all_gather", stacked, axis, degree, f"{name}.{axis}.all")
        is_last = number == len(axes)
        part = replace(own.out, name=name) if is_last else replace(part, name=f"{name}.{axis}.part")
        total = replace(total, name=f"{name}.{axis}.lse")
        yield Pointwise(
            function="merge_all", inputs=(gathered,), outputs=(part, total),
            heads=(own.heads, own.heads), size=own.value_size,
        )  # fmt: skip
    return part
