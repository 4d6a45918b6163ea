"""Linear attention on one rank, and what its ranks exchange when the rows are cut.

Its state is a sum over keys, so that ranks with different rows need not see each other's keys:
they can add up their states, which are the same size however long the sequence is, as vLLM-Omni
does for SANA-Video [1]_. xDiT's ring sends keys and values round and sums as they arrive [2]_.

References
----------
.. [1] vLLM-Omni, vllm_omni/diffusion/models/sana_video/transformer_sana_video.py
.. [2] xDiT, xfuser/core/long_ctx_attention/ring/ring_flash_attn.py, for SANA
"""

from costmodels.program.emit import Emits, concat_rows, split_features
from costmodels.program.ops import LinearAttention, Tensor
from planner.strategies.base import Meeting
from planner.strategies.softmax import ask, release, softmax

STATE_BYTES = 4
"""Bytes of a number of the state, which is kept in 32 bits."""


def attend_here(meeting: Meeting) -> Emits[list[Tensor]]:
    """Emit attention over the rows that are here: where every exchange ends."""
    if not meeting.linear:
        result = yield from softmax(meeting)
        return result
    query, answers = yield from ask(meeting)
    both = yield from concat_rows(answers, f"{meeting.name}.kv")
    state = yield from summed(meeting, both, f"{meeting.name}.state")
    result = yield from read(meeting, query, state)
    return result


def summed(meeting: Meeting, both: Tensor, name: str) -> Emits[Tensor]:
    """Emit the state of keys and values that lie side by side in `both`."""
    width = meeting.key_value.units * meeting.size
    key, value = yield from split_features(
        both, (width, width), (f"{both.name}.k", f"{both.name}.v")
    )
    shape = (both.shape[0], meeting.key_value_heads, meeting.size, meeting.size + 1)
    out = Tensor(name, shape, STATE_BYTES)
    yield LinearAttention(
        part="sum", inputs=(key, value), out=out, heads=meeting.key_value_heads, size=meeting.size
    )
    return out


def read(meeting: Meeting, query: Tensor, state: Tensor) -> Emits[list[Tensor]]:
    """Emit what the queries find in a state; one result for every entry that asks."""
    out = Tensor(f"{meeting.name}.out", query.shape, query.itemsize)
    yield LinearAttention(
        part="read", inputs=(query, state), out=out, heads=meeting.heads, size=meeting.size
    )
    result = yield from release(meeting, out)
    return result
