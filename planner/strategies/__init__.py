"""The strategies that plans are made of. This tuple is the registry."""

from planner.strategies.allgather_kv import AllGatherKV
from planner.strategies.base import SequenceStrategy, Strategy
from planner.strategies.data import Data
from planner.strategies.guidance import Guidance
from planner.strategies.pipeline import Pipeline
from planner.strategies.ring import Ring
from planner.strategies.tensor import TensorParallel
from planner.strategies.ulysses import Ulysses

SEQUENCE: tuple[SequenceStrategy, ...] = (Ring(), AllGatherKV(), Ulysses())
STRATEGIES: tuple[Strategy, ...] = (Data(), Pipeline(), Guidance(), *SEQUENCE, TensorParallel())

__all__ = ["SEQUENCE", "STRATEGIES", "SequenceStrategy", "Strategy"]
