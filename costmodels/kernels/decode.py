r"""Decode attention of a serving engine: one new query a request, over keys and values it kept.

An item is the keys of one request and one head of keys; the queries that share them go along, and
each on its own where more heads share them than the kernel takes together. Items are spread over
multiprocessors, and the keys of few items are cut over idle ones:

.. math::
    t = floor + \mathrm{overlapped}(compute, memory) + passes\, new, \qquad
    compute = \max(items\, (item + keys\, load) / SMs,\ item + cut\, load + merge)

beside the traffic of the cache, the queries and the result, which takes a while to get to the pace
of memory. `new` is the traffic of what the step adds: queries, keys and values that are rotated,
written to the cache and read again.

References
----------
T. Dao et al., "Flash-Decoding for long-context inference", 2023. The formula is our own; fitted by
`validate.fit.engine_kernels`.
"""

from typing import Final

from costmodels.kernels.common import Shape, overlapped_time, stream_seconds
from costmodels.kernels.parameters import DecodeParameters
from costmodels.sizes import Real, ceil, larger, smaller, where
from topology.catalogue import Device

CACHES: Final = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""Bytes of a number in the cache, by its precision."""
_TILE_QUERIES: Final = 64.0  # queries that share keys and are multiplied together
QUERIES: Final = 8.0  # of one request that are still decoded, as where tokens are guessed ahead
_FEWEST_KEYS: Final = 256.0  # fewest keys that are worth a multiprocessor of their own
_NEW_BYTES: Final = 2.0  # bytes of a number that the step adds


def decode_time(fitted: DecodeParameters, device: Device, sizes: Shape, cache: str) -> Real:
    """Evaluate the formula for a `cache` of one of the `CACHES`: shape of the broadcast sizes."""
    slots, bandwidth = device.multiprocessors.value, device.memory_bandwidth.value
    sharing_heads = ceil(sizes.heads / sizes.kv_heads)
    tiles = where(
        sharing_heads > fitted.shared,
        sharing_heads,
        ceil(sharing_heads * sizes.queries / _TILE_QUERIES),
    )
    key_heads = sizes.batch * sizes.kv_heads
    items = key_heads * tiles
    row = 2.0 * sizes.head_dim * CACHES[cache]
    keys = sizes.keys * row / fitted.load_bandwidth
    shortest_cut = smaller(sizes.keys, _FEWEST_KEYS) * row / fitted.load_bandwidth
    merge = where(sizes.keys > _FEWEST_KEYS, fitted.merge, 0.0)
    spread_time = items * (fitted.item + keys) / slots
    lone_item_time = fitted.item + smaller(keys, larger(shortest_cut, items * keys / slots)) + merge
    query_numbers = sizes.batch * sizes.queries * sizes.heads * sizes.head_dim
    new_numbers = 2.0 * sizes.batch * sizes.queries * sizes.kv_heads * sizes.head_dim
    memory = (key_heads * sizes.keys * row + 2.0 * _NEW_BYTES * query_numbers) / bandwidth
    stream = stream_seconds(memory / fitted.memory_efficiency, fitted.ramp)
    busy = overlapped_time(larger(spread_time, lone_item_time), stream)
    return (
        fitted.floor + busy + fitted.passes * _NEW_BYTES * (query_numbers + new_numbers) / bandwidth
    )
