"""Who drafts tokens for a language model: layers of its own, or a smaller model."""

from dataclasses import replace
from typing import Final

from planner.engines.tables import acceptances
from planner.models import Model, read_model
from planner.request.request import EXECUTOR, Request
from planner.request.workload import Speculation
from topology.base import InputError

OWN_LAYERS: Final = "mtp"
"""Stands for a model's own layers of multi-token prediction."""


def speculation_of(model: Model, request: Request) -> Speculation | None:
    """Find the draft of a request, with the usual acceptance where none is said; None without.

    Raises `InputError` if there is no such draft, or it writes other tokens than the model.
    """
    if request.speculative is None:
        return None
    if EXECUTOR in request.engines:
        raise InputError(
            f"speculative: got {request.speculative}, which planner validate does not run: wanted "
            "an engine of language models"
        )
    uses_own_layers = request.draft == OWN_LAYERS or (not request.draft and bool(model.draft))
    if uses_own_layers and not model.draft:
        raise InputError(
            f"draft: got {OWN_LAYERS}, and {model.name} has no such layers, wanted a model"
        )
    if not uses_own_layers and not request.draft:
        raise InputError(
            f"draft: got none, and {model.name} has no layers that predict tokens after the next "
            "one, wanted a smaller model of its vocabulary"
        )
    draft = _own_draft(model) if uses_own_layers else _draft(model, request.draft)
    default_acceptance = acceptances()[OWN_LAYERS if uses_own_layers else "draft"].value
    return Speculation(
        tokens=request.speculative,
        acceptance=default_acceptance if request.acceptance is None else request.acceptance,
        draft=draft,
        own=uses_own_layers,
        modules=model.draft[0].count if uses_own_layers else 1,
    )


def _own_draft(model: Model) -> Model:
    """Make a model of the layers that predict tokens after the next one, run one by one.

    They take the model's embedding and its head, which are not counted again.
    """
    layers = tuple(replace(block, count=1) for block in model.draft)
    name = f"{model.name}'s own layers"
    return replace(model, name=name, blocks=layers, order=(), draft=(), outer_parameters=0)


def _draft(model: Model, name: str) -> Model:
    """Read a model that drafts for another."""
    draft = read_model(name)
    if draft.kind != model.kind:
        raise InputError(f"draft: got {draft.name}, wanted a language model")
    if draft.vocabulary != model.vocabulary:
        raise InputError(
            f"draft: got {draft.name} of {draft.vocabulary:,} tokens, wanted one of the "
            f"{model.vocabulary:,} that {model.name} has"
        )
    return draft
