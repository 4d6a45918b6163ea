"""Models: what they are made of, from a catalogue or a user's files.

`planner.models.tokens` turns the size of a request into the lengths of a model's streams.
"""

from planner.models.catalogue import ALIASES, known_as, names, read_model

__all__ = ["ALIASES", "known_as", "names", "read_model"]
