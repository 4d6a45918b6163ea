"""Lowering: from a model, a request and a plan to the program of one rank."""

from planner.lowering.program import (
    alike_places,
    cuts_of_requests,
    decode_steps,
    lower,
    lower_places,
    lower_steps,
    one_turn,
)
from planner.lowering.work import Chunk, share_of

__all__ = [
    "Chunk", "alike_places", "cuts_of_requests", "decode_steps", "lower", "lower_places",
    "lower_steps", "one_turn", "share_of",
]  # fmt: skip
