"""Ulysses Anything: Ulysses over any number of heads and tokens.

The last ranks have fewer rows and heads, and the others set the pace; here what they lack is
padded, and left out again [1]_. An engine has to be asked for it. Where all divides it is
Ulysses, so that it is recommended where that does not divide, or run.

References
----------
.. [1] ``ulysses_anything`` in diffusers, src/diffusers/models/_modeling_parallel.py; Cache-DiT,
   docs/user_guide/CONTEXT_PARALLEL.md
"""

from collections.abc import Iterator

from planner.models import Model
from planner.strategies.base import Proposal
from planner.strategies.sequence import sequence_objections
from planner.strategies.ulysses import Ulysses, head_counts

AXIS = "uaa"


class UlyssesAnything(Ulysses):
    """Cut the sequence and the heads as far as they go."""

    axis = AXIS
    excludes = ("ulysses",)

    def suits(self, model: Model) -> bool:
        """Whether lists of plans have it: none, as it stands in for `ulysses` in one of these."""
        del model
        return False

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to keys that fewer heads share, where heads do not divide."""
        yield from sequence_objections(proposal, degree, AXIS, padded=True)
        model, tensor = proposal.model, proposal.share.tensor
        if model.kind != "diffusion":
            yield f"uaa{degree}: {model.name} denoises nothing"
        for query, key_value in sorted(set(head_counts(proposal))):
            local_heads = query // tensor
            if local_heads % degree and (key_value != query or local_heads < degree):
                yield f"{query} heads over {key_value} of keys and values for uaa{degree}"


STRATEGY = UlyssesAnything()
