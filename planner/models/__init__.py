"""Models: what they are made of, from a catalogue or a user's files, and their tokens."""

from planner.models.architecture import (
    Block,
    Cross,
    Encoder,
    Ffn,
    Kind,
    Model,
    Modulation,
    Own,
    Stream,
    Tower,
    unsupported,
)
from planner.models.catalogue import ALIASES, known_as, names, read_model, repositories
from planner.models.mixers import DeltaRule, Heads, LatentAttention, Mamba
from planner.models.tokens import grid, lengths, line_of

__all__ = [
    "ALIASES", "Block", "Cross", "DeltaRule", "Encoder", "Ffn", "Heads", "Kind",
    "LatentAttention", "Mamba", "Model", "Modulation", "Own", "Stream", "Tower", "grid",
    "known_as", "lengths", "line_of", "names", "read_model", "repositories", "unsupported",
]  # fmt: skip
