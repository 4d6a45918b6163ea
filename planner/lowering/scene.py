"""Everything a block needs to know to be lowered for one rank."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from costmodels.program.emit import Emits
from costmodels.program.ops import Span, Tensor
from planner.models.architecture import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import SEQUENCE, STRATEGIES
from planner.strategies.base import Attend, Meeting, Share
from planner.strategies.linear import attend_here
from planner.strategies.sequence import span_of

WEIGHT_BYTES: Final = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625}
"""Bytes a weight; NVFP4 has 4 bits and one 8-bit scale for every 16 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The model, the request, this rank's share and how its ranks meet in attention.

    memory : what a layer does with keys and values: ``load`` those of streams that were run ahead,
    ``store`` its own for later, or ``append`` its own to those stored.
    """

    model: Model
    workload: Workload
    share: Share
    spans: Mapping[str, Span]
    attend: Attend
    memory: Literal["load", "store", "append"] = "load"

    @property
    def weight_itemsize(self) -> float:
        return WEIGHT_BYTES[self.workload.precision]

    def cached(self, stream: str) -> bool:
        """Whether the keys and values of a stream are computed once, ahead of the steps."""
        tower = self.workload.text_tower
        once = tower == "once" or (tower == "usual" and self.share.stages == 1)
        return self.memory == "load" and once and stream in self.model.reuses


def share_of(workload: Workload, plan: Plan) -> Share:
    """Divide a request along the axes of a plan."""
    share = Share(batch=workload.batch, passes=workload.passes)
    known = {strategy.name: strategy for strategy in STRATEGIES}
    for name, degree in plan.axes:
        share = known[name].divide(share, degree)
    return share


def make_scene(model: Model, workload: Workload, plan: Plan) -> Scene:
    """Put together what lowering needs; the plan is taken to be legal."""
    share = share_of(workload, plan)
    spans = {
        stream.name: span_of(model, stream, workload.length(stream.name), share)
        for stream in model.streams
    }
    return Scene(model=model, workload=workload, share=share, spans=spans, attend=_meeting(share))


def _meeting(share: Share) -> Attend:
    """Nest the exchanges, the outermost axis innermost; keys that are all here need none."""
    known = {strategy.name: strategy for strategy in SEQUENCE}
    exchange: Attend = attend_here
    for name, degree in share.sequence:
        exchange = partial(known[name].attend, degree=degree, inner=exchange)

    def attend(meeting: Meeting) -> Emits[list[Tensor]]:
        cut = any(span.axes for entry in meeting.entries if entry.answers for span in entry.spans)
        result = yield from (exchange if cut else attend_here)(meeting)
        return result

    return attend


def renamed(x: Tensor, name: str) -> Tensor:
    """Return the same tensor under another name."""
    return replace(x, name=name)


def context_widths(model: Model, stream: str) -> list[int]:
    """Widths at which towers read a stream that stays the same at every layer, each once."""
    towers = [tower for block in model.blocks for tower in block.towers]
    return list(dict.fromkeys(c.width for t in towers for c in t.cross if c.context == stream))


def context_name(model: Model, stream: str, width: int) -> str:
    """Name such a stream as an input; the width is told where it is not the first."""
    first = context_widths(model, stream)[0]
    return f"context.{stream}" if width == first else f"context.{stream}.{width}"
