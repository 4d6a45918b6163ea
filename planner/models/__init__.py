"""Models: what they are made of, from a catalogue or a user's files, and their tokens."""

from planner.models.architecture import (
    Block,
    Cross,
    Encoder,
    Ffn,
    Kind,
    Latent,
    Model,
    Modulation,
    Own,
    Stream,
    Tower,
    Vae,
    unsupported,
)
from planner.models.catalogue import (
    ALIASES,
    known_as,
    names,
    read_model,
    repositories,
)
from planner.models.mixers import DeltaRule, Heads, Indexer, Kept, LatentAttention, Mamba
from planner.models.tokens import grid, latent_frames, lengths, line_of

__all__ = [
    "ALIASES", "Block", "Cross", "DeltaRule", "Encoder", "Ffn", "Heads", "Indexer", "Kept", "Kind",
    "Latent", "LatentAttention", "Mamba", "Model", "Modulation", "Own", "Stream", "Tower", "Vae",
    "grid", "known_as", "latent_frames", "lengths", "line_of", "names", "read_model",
    "repositories", "unsupported",
]  # fmt: skip
