"""Attention data parallelism: ranks hold the whole attention, and share the experts.

Each has requests of its own, as replicas have, and keys and values of these alone: of heads that
tensor parallelism would have to repeat, and of latent attention, nothing is kept twice. At the
layers with experts the ranks meet [1]_. Weights of dense layers are copied over this axis.

References
----------
.. [1] docs.sglang.io "DP attention"; docs.vllm.ai serving/expert_parallel_deployment;
   nvidia.github.io/TensorRT-LLM features/parallel-strategy: attention data parallelism
"""

from collections.abc import Iterator
from dataclasses import replace

from costmodels.sizes import any_true
from planner.models import Model
from planner.strategies.base import Proposal, Share, Strategy

AXIS = "adp"


class AttentionData(Strategy):
    """Share out the requests, and then the experts."""

    axis = AXIS
    nesting = 2
    untried = ("pp", "ulysses", "ring", "allgather_kv")

    def suits(self, model: Model) -> bool:
        """Whether anything is shared: others are served as well by replicas."""
        return model.kind == "decoder" and model.has_experts

    def divide(self, share: Share, degree: int) -> Share:
        single = not any_true(share.batch != 1)
        batch = share.batch if single else share.batch // degree
        return replace(share, copies=degree, batch=batch)

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to other models, a batch above one that does not divide, and a cut sequence."""
        share, batch = proposal.share, proposal.workload.batch
        if proposal.model.kind != "decoder":
            yield f"adp{degree} is of language models, which keep keys and values of requests"
        if share.sequence:
            yield f"adp{degree} beside a sequence that is cut is not modelled"
        rank_count = degree * share.replicas
        if any_true((batch > 1) & (batch % rank_count != 0)):
            replica_text = f" x dp{share.replicas}" if share.replicas > 1 else ""
            yield (
                f"a batch of {proposal.workload.batch} does not divide by adp{degree}{replica_text}"
            )


STRATEGY = AttentionData()
