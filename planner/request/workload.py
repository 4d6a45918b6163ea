"""What is asked of a model, in tokens: the request after sizes became sequence lengths."""

from dataclasses import dataclass
from typing import Literal

from costmodels.program.ops import Size
from topology.catalogue import Precision

TextTower = Literal["usual", "once", "every_step"]
"""Usual is once, and with every step in a pipeline, whose stages it is cut into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Lengths and counts of one request; numbers, or arrays for a sweep.

    tokens : length of every stream. steps : denoising steps. passes : forwards a step.
    output_tokens : tokens to generate (decoders). pixels : height x width x frames to decode.
    line : tokens side by side across the picture, for models that convolve over them.
    text_tower : when a tower that does not depend on the step is run.
    kv_repeat : keys and values may be repeated where there are fewer heads than ranks.
    wide_collectives : collectives carry 32-bit numbers. scattered_inputs : replicated inputs are
    cut by a reduce-scatter, not by a slice.
    own : the model's own repository runs it, in eager PyTorch. slow_decoder : pictures are decoded
    as that does. gathered_rings : rings gather all keys and values first.
    """

    tokens: tuple[tuple[str, Size], ...]
    batch: Size = 1
    steps: Size = 1
    passes: int = 1
    output_tokens: Size = 0
    pixels: Size = 0
    frames: Size = 1
    line: Size = 0
    precision: Precision = "bf16"
    text_tower: TextTower = "once"
    kv_repeat: bool = True
    own: bool = False
    slow_decoder: bool = False
    wide_collectives: bool = False
    scattered_inputs: bool = False
    gathered_rings: bool = False

    def length(self, stream: str) -> Size:
        """Tokens of a stream."""
        return dict(self.tokens)[stream]
