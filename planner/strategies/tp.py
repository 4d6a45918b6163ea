"""Tensor parallelism: every layer's matrices are cut, heads and FFN columns over the ranks.

The projections into heads and FFN are cut by columns, those back by rows; the partial sums are
added by an all-reduce after each [1]_. A FFN whose width does not divide is padded with zeros,
which change no sum, to the next that does: some engines do so, others refuse [2]_.

References
----------
.. [1] Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
   Parallelism", 2019, arXiv:1909.08053
.. [2] vllm-project/vllm#16260: LMDeploy pads to a multiple of ranks and quantisation group, vLLM
   does not; SGLang pads on CPUs alone (python/sglang/srt/configs/update_config.py)
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil

from costmodels.program import Tensor
from costmodels.program.emit import Emits, collective
from planner.models import Heads, Model, Tower
from planner.request.plan import Plan
from planner.strategies.base import Proposal, Share, Strategy

AXIS = "tp"
VOCABULARY_PADDING = 64


class TensorParallel(Strategy):
    """Cut the weights of every layer over the ranks of tensor parallelism."""

    axis = AXIS
    nesting = 6

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, tensor=degree)

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to uneven heads, FFN widths, quantisation groups and vocabularies."""
        yield from dict.fromkeys(_model_objections(proposal, degree))


STRATEGY = TensorParallel()


def padded_widths(model: Model, plan: Plan) -> dict[int, tuple[int, int]]:
    """List FFN widths that do not divide by the ranks they are cut over, what to, and these."""
    degree, cut = plan.degree(AXIS), max(1, plan.expert_ranks // plan.ep)
    if degree == cut == 1:
        return {}
    feeds = [tower.ffn for tower in model.towers if tower.ffn is not None]
    widths = {(ffn.width, cut if ffn.experts else degree) for ffn in feeds}
    widths |= {(ffn.shared, degree) for ffn in feeds}
    return {
        width: (ceil(width / ranks) * ranks, ranks)
        for width, ranks in sorted(widths)
        if width % ranks
    }


def reduce(x: Tensor, share: Share, name: str) -> Emits[Tensor]:
    """Add up the partial sums of a row-cut product."""
    return (yield from collective("all_reduce", x, AXIS, share.tensor, name))


def _model_objections(proposal: Proposal, degree: int) -> Iterator[str]:
    model = proposal.model
    for block in model.blocks:
        for tower in block.towers:
            yield from _tower_objections(tower, degree, repeat=proposal.workload.habits.kv_repeat)
            cuts = _cuts(tower, degree)
            yield from parted_scales(proposal, cuts, degree, f"tp{degree}")
    for heads in model.vetoes:
        if heads % degree:
            yield f"another tower's {heads} heads do not divide by tp{degree}"
    padded = ceil(model.vocabulary / VOCABULARY_PADDING) * VOCABULARY_PADDING
    if model.tied_embeddings and padded % degree:
        yield (
            f"the vocabulary of {model.vocabulary}, shared by embedding and head and padded to "
            f"{padded}, does not divide by tp{degree}"
        )


def _tower_objections(tower: Tower, degree: int, *, repeat: bool) -> Iterator[str]:
    for heads, owner in _attentions(tower):
        key_value_text = f"{heads.key_value} key-value heads{owner}"
        if heads.query % degree:
            yield f"{heads.query} heads{owner} do not divide by tp{degree}"
        elif heads.key_value % degree and degree % heads.key_value:
            yield f"{key_value_text} neither divide by tp{degree} nor divide it"
        elif heads.key_value < degree and not repeat:
            yield f"{key_value_text} for tp{degree}, and they are not repeated"
    if tower.mixer == "mamba" and tower.heads.key_value % degree:
        yield f"{tower.heads.key_value} groups, normed by themselves, do not divide by tp{degree}"
    ffn = tower.ffn
    for width in () if ffn is None else (0 if ffn.experts else ffn.width, ffn.shared):
        yield from no_column(width, degree, f"tp{degree}")


def no_column(width: int, degree: int, ranks: str) -> Iterator[str]:
    """Object to a FFN that has fewer columns than ranks."""
    if 0 < width < degree:
        yield f"the FFN width {width} has no column for every rank of {ranks}"


Cut = tuple[str, str, int, str]
"""What is cut: in words, the part of a layer, its features, and along which side."""


def parted_scales(
    proposal: Proposal, cuts: Iterable[Cut], degree: int, ranks: str
) -> Iterator[str]:
    """Object to cuts through weights that share a scale: engines do not part it."""
    published = proposal.model.quantisation
    if degree == 1 or published is None or published.precision != proposal.workload.precision:
        return
    for subject, part, width, side in cuts:
        size = published.group if side == "rows" else published.block
        if size and published.covers(part) and width % (degree * size):
            unit = f"quantisation {'block' if published.block else 'group'} {size}"
            yield f"{subject} {width} over {ranks} is not a multiple of the {unit}"


def ffn_cuts(width: int, part: str) -> Iterator[Cut]:
    """Yield what is cut of a FFN, if it is there."""
    for side in ("rows", "columns") if width else ():
        yield "the FFN width", part, width, side


def _cuts(tower: Tower, degree: int) -> Iterator[Cut]:
    """Yield what tensor parallelism cuts; experts are spread over more ranks than its own.

    Heads of keys and values that are repeated are whole on every rank.
    """
    heads, ffn, latent = tower.heads, tower.ffn, tower.latent
    if latent is not None:
        yield "the attention output's width", "output", heads.query * latent.value_size, "rows"
        yield "the queries' width", "attention", heads.query * latent.score_size, "columns"
    elif tower.mixer == "attention":
        yield "the attention output's width", "output", heads.query_width, "rows"
        yield "the queries' width", "attention", heads.query_width, "columns"
        if heads.key_value >= degree:
            yield "the keys' width", "attention", heads.key_value_width, "columns"
    if ffn is not None:
        yield from ffn_cuts(0 if ffn.experts else ffn.width, "feed_forward")
        yield from ffn_cuts(ffn.shared, "shared")


def _attentions(tower: Tower) -> Iterator[tuple[Heads, str]]:
    """Yield the heads of each attention, and whose they are where that is not plain."""
    yield tower.heads, ""
    for cross in tower.cross:
        same_heads = cross.heads.query == tower.heads.query
        yield cross.heads, "" if same_heads else f" of cross attention to {cross.context}"
