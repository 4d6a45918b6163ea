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

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from costmodels.program import Tensor
from costmodels.program.emit import Emits, collective
from planner.models import Heads, Model, Tower
from planner.strategies.base import Proposal, Share, Strategy

AXIS = "tp"
VOCABULARY_PADDING = 64


class TensorParallel(Strategy):
    """Cut every layer's weights."""

    axis = AXIS
    nesting = 6

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, tensor=degree)

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to uneven heads, FFN widths, quantisation groups and vocabularies."""
        yield from dict.fromkeys(_model_objections(proposal, degree))


STRATEGY = TensorParallel()


def padded_widths(model: Model, degree: int) -> dict[int, int]:
    """FFN widths that do not divide by `degree`, and what they are padded to."""
    widths = {w for t in model.towers if t.ffn is not None for w in (t.ffn.width, t.ffn.shared)}
    return {w: ceil(w / degree) * degree for w in sorted(widths) if w % degree}


def reduce(x: Tensor, share: Share, name: str) -> Emits[Tensor]:
    """Add up the partial sums of a row-cut product."""
    return (yield from collective("all_reduce", x, AXIS, share.tensor, name))


def _model_objections(proposal: Proposal, degree: int) -> Iterator[str]:
    model = proposal.model
    for block in model.blocks:
        for tower in block.towers:
            yield from _tower_objections(tower, degree, repeat=proposal.workload.habits.kv_repeat)
            yield from _parted_scales(proposal, tower, degree)
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
    for heads, whose in _attentions(tower):
        many = f"{heads.key_value} key-value heads{whose}"
        if heads.query % degree:
            yield f"{heads.query} heads{whose} do not divide by tp{degree}"
        elif heads.key_value % degree and degree % heads.key_value:
            yield f"{many} neither divide by tp{degree} nor divide it"
        elif heads.key_value < degree and not repeat:
            yield f"{many} for tp{degree}, and they are not repeated"
    ffn = tower.ffn
    for width in () if ffn is None else (ffn.width, ffn.shared):
        if 0 < width < degree:
            yield f"the FFN width {width} has no column for every rank of tp{degree}"


def _parted_scales(proposal: Proposal, tower: Tower, degree: int) -> Iterator[str]:
    """Object to cuts through weights that share a scale: engines do not part it."""
    published = proposal.model.quantisation
    if degree == 1 or published is None or published.precision != proposal.workload.precision:
        return
    for what, part, width, how in _cut(tower, degree):
        size = published.group if how == "rows" else published.block
        if size and published.covers(part) and width % (degree * size):
            unit = f"quantisation {'block' if published.block else 'group'} {size}"
            yield f"{what} {width} over tp{degree} is not a multiple of the {unit}"


def _cut(tower: Tower, degree: int) -> Iterator[tuple[str, str, int, str]]:
    """Yield what tensor parallelism cuts: words, part of a layer, features, and along which side.

    Heads of keys and values that are repeated are whole on every rank.
    """
    heads, ffn, latent = tower.heads, tower.ffn, tower.latent
    if latent is not None:
        yield "the attention output's width", "attention", heads.query * latent.value_size, "rows"
        yield "the queries' width", "attention", heads.query * latent.score_size, "columns"
    elif tower.mixer == "attention":
        yield "the attention output's width", "attention", heads.query_width, "rows"
        yield "the queries' width", "attention", heads.query_width, "columns"
        if heads.key_value >= degree:
            yield "the keys' width", "attention", heads.key_value_width, "columns"
    if ffn is not None:
        part = "experts" if ffn.experts else "feed_forward"
        for width, place in ((ffn.width, part), (ffn.shared, "shared")):
            for how in ("rows", "columns") if width else ():
                yield "the FFN width", place, width, how


def _attentions(tower: Tower) -> Iterator[tuple[Heads, str]]:
    """Yield the heads of each attention, and whose they are where that is not plain."""
    yield tower.heads, ""
    for cross in tower.cross:
        own = cross.heads.query == tower.heads.query
        yield cross.heads, "" if own else f" of cross attention to {cross.context}"
