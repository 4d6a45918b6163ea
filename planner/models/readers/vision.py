"""Vision towers beside a language model: their weights are resident, their heads veto degrees."""

from planner.models.count import linear, perceptron
from planner.models.fields import HEADS, LAYERS, Fields


def vision_heads(fields: Fields) -> tuple[int, ...]:
    """Head counts that a tensor-parallel degree must divide too."""
    tower = _tower(fields)
    if tower is None or not tower.has("num_attention_heads", "num_heads"):
        return ()
    return (tower.integer("num_attention_heads", "num_heads", high=HEADS),)


def vision_parameters(fields: Fields) -> int:
    """Count the vision tower and its projection, 0 where the configuration lacks their sizes."""
    tower = _tower(fields)
    sized = ("hidden_size", "embed_dim"), ("depth", "num_hidden_layers")
    if tower is None or not all(tower.has(*names) for names in sized):
        return 0
    hidden = tower.integer("embed_dim", "hidden_size")
    layers = tower.integer("depth", "num_hidden_layers", high=LAYERS)
    return layers * _layer(tower, hidden) + _patches(tower, hidden) + _mergers(tower, hidden)


def _tower(fields: Fields) -> Fields | None:
    thinker = fields.table("thinker_config")
    return (thinker or fields).table("vision_config")


def _layer(tower: Fields, hidden: int) -> int:
    ratio = tower.number("mlp_ratio", low=1 / 64, high=64.0, default=4.0)
    width = tower.integer("intermediate_size", default=max(int(ratio * hidden), 1))
    gated = tower.text("hidden_act", default="gelu") == "silu"
    ffn = perceptron(hidden, width, hidden) + (linear(hidden, width) if gated else 0)
    return linear(hidden, 3 * hidden) + linear(hidden, hidden) + ffn + 4 * hidden


def _patches(tower: Fields, hidden: int) -> int:
    patch = tower.integer("patch_size", high=1024, default=14)
    channels = tower.integer("in_channels", "num_channels", "in_chans", high=1024, default=3)
    frames = tower.integer("temporal_patch_size", high=64, default=1)
    positions = tower.integer("num_position_embeddings", default=0, low=0)
    return linear(channels * frames * patch**2, hidden) + positions * hidden


def _mergers(tower: Fields, hidden: int) -> int:
    """Projections of square groups of patches to the language model's width."""
    if not tower.has("spatial_merge_size"):
        return 0
    wide = hidden * tower.integer("spatial_merge_size", high=64) ** 2
    out = tower.integer("out_hidden_size", "hidden_size", default=hidden)
    extra = len(tower.integers("deepstack_visual_indexes", high=LAYERS, default=()))
    return (1 + extra) * perceptron(wide, wide, out) + 2 * hidden + extra * 2 * wide
