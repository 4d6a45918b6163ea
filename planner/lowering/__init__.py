"""Lowering: from a model, a request and a plan to the program of one rank."""

from planner.lowering.program import decode_step, lower, unsupported
from planner.lowering.work import WEIGHT_BYTES, share_of

__all__ = ["WEIGHT_BYTES", "decode_step", "lower", "share_of", "unsupported"]
