"""What a request says of a model's experts: copies of popular ones, and how tokens choose."""

import re
from dataclasses import replace
from typing import Final

from costmodels.expert_routing import Distribution, routing_of
from planner.models import Model, Tower
from planner.request.lengths import text_at
from planner.request.request import Request
from topology.base import InputError, number_in, shown

_MOST_BYTES: Final = 2**20
_TOKENS: Final = "the tokens that each expert took"
LAW: Final = re.compile("balanced|uniform|power_law.*")


def with_copies(model: Model, copies: int) -> Model:
    """Give each layer of experts so many copies of popular ones.

    Raises `InputError` if a model without experts is to have some.
    """
    if not copies:
        return model
    _check_experts("redundant_experts", copies, model)

    def doubled(tower: Tower) -> Tower:
        ffn = tower.ffn
        return replace(tower, ffn=replace(ffn, copies=copies)) if ffn and ffn.experts else tower

    blocks = (replace(block, towers=tuple(map(doubled, block.towers))) for block in model.blocks)
    return replace(model, blocks=tuple(blocks))


def distribution_of(request: Request, model: Model) -> Distribution:
    """Read how tokens choose their experts: by a law, or the tokens that each was seen to take.

    Raises `InputError` if there is no such law or file, the model has no experts, or not as many as
    were seen.
    """
    source = request.expert_distribution
    if not source:
        return source
    _check_experts("expert_distribution", source, model)
    law = (
        source
        if not isinstance(source, str) or LAW.fullmatch(source)
        else _tokens_by_expert(source)
    )
    for ffn in (tower.ffn for tower in model.towers):
        if ffn is not None and ffn.experts:
            try:
                routing_of(law, ffn.experts, ffn.active)
            except InputError as error:
                raise InputError(f"expert_{error}") from None
    return law


def _check_experts(name: str, value: object, model: Model) -> None:
    """Refuse to be told of experts that a model does not have."""
    if not model.has_experts:
        raise InputError(
            f"{name}: got {shown(value)}, and {model.name} has no experts, wanted none"
        )


def _tokens_by_expert(path: str) -> tuple[float, ...]:
    """Read the tokens of each expert, in order: numbers, with commas or blanks between them."""
    wanted = f"balanced, uniform, power_law, power_law_1.01, or a file of {_TOKENS}"
    text = text_at("expert_distribution", path, _MOST_BYTES, wanted)
    try:
        numbers = tuple(number_in(word) for word in text.replace(",", " ").split())
    except ValueError:
        numbers = ()
    if not numbers:
        got = f"got {shown(path)}, which is not of numbers"
        raise InputError(f"expert_distribution: {got}, wanted {_TOKENS}")
    return numbers
