"""Models: what they are made of, from a catalogue or a user's files, and their tokens."""

from planner.models.architecture import (
    Block,
    Cross,
    Embedding,
    Encoder,
    Exports,
    Ffn,
    Kind,
    Model,
    Modulation,
    Numerics,
    Stream,
    Tower,
    unsupported,
)
from planner.models.catalogue import known_as, names, read_model
from planner.models.mixers import DeltaRule, Heads, LatentAttention, Mamba
from planner.models.tokens import grid, latent_frames, lengths, line_of, sides_made

__all__ = [
    "Block", "Cross", "DeltaRule", "Embedding", "Encoder", "Exports", "Ffn", "Heads", "Kind",
    "LatentAttention", "Mamba", "Model", "Modulation", "Numerics", "Stream", "Tower", "grid",
    "known_as", "latent_frames", "lengths", "line_of", "names", "read_model", "sides_made",
    "unsupported",
]  # fmt: skip
