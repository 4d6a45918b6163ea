"""Which ways to spread experts over the ranks that share them are legal.

Groups have experts of their own, and each expert is cut over the ranks of its group as tensor
parallelism cuts a FFN.
"""

from collections.abc import Iterator

from planner.models import Ffn
from planner.request.plan import Plan
from planner.strategies.base import Proposal
from planner.strategies.tp import ffn_cuts, no_column, parted_scales


def experts_objections(proposal: Proposal, plan: Plan) -> Iterator[str]:
    """Yield what stands against how a plan spreads the experts of a model."""
    model, groups, ranks = proposal.model, plan.ep, plan.expert_ranks
    if groups > 1 and not model.has_experts:
        yield f"ep{groups}: {model.name} has no experts"
        return
    if ranks % groups:
        yield f"ep{groups} does not divide the {ranks} ranks of adp x tp"
        return
    names = [name for name, _ in plan.axes]
    if "tp" in names and "adp" in names[names.index("tp") :]:
        yield "adp stands outside tp: its ranks hold the whole attention, cut by tp"
    for ffn in dict.fromkeys(t.ffn for t in model.towers if t.ffn is not None and t.ffn.experts):
        yield from dict.fromkeys(_spread(proposal, ffn, plan))


def _spread(proposal: Proposal, ffn: Ffn, plan: Plan) -> Iterator[str]:
    if ffn.experts % plan.ep:
        yield f"{ffn.experts} experts do not divide by ep{plan.ep}"
    cut = plan.expert_ranks // plan.ep
    ranks = f"the {cut} ranks of an expert" if plan.ep > 1 or plan.degree("adp") > 1 else f"tp{cut}"
    yield from no_column(ffn.width, cut, ranks)
    yield from parted_scales(proposal, ffn_cuts(ffn.width, "experts"), cut, ranks)
