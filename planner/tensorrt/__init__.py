"""TensorRT: the networks of a plan's engines, and the order in which they run."""

from planner.tensorrt.from_program import Recipe
from planner.tensorrt.network import SCHEMA, Dtype, EngineNetwork, arrays_of, counts, document_of
from planner.tensorrt.products import REACH
from planner.tensorrt.schedule import latents_of, spreads_attention, written
from planner.tensorrt.sizes import again_bytes, buffer_bytes, buffer_size, engine_size, enqueue

__all__ = [
    "REACH", "SCHEMA", "Dtype", "EngineNetwork", "Recipe", "again_bytes", "arrays_of",
    "buffer_bytes", "buffer_size", "counts", "document_of", "engine_size", "enqueue", "latents_of",
    "spreads_attention", "written",
]  # fmt: skip
