"""The vision tower beside a language model: resident weights, and heads that veto degrees."""

from planner.models.fields import CONTEXT, HEADS, LAYERS, Fields
from planner.models.readers.count import linear, perceptron

_HIDDEN = ("embed_dim", "hidden_size", "vt_hidden_size")
_LAYERS = ("depth", "num_hidden_layers", "vt_num_hidden_layers")
_HEADS = ("num_attention_heads", "num_heads", "vt_num_attention_heads")


def vision_heads(fields: Fields) -> tuple[int, ...]:
    """List the head counts that a tensor-parallel degree must divide too."""
    tower = _tower(fields)
    if tower is None or not tower.has(*_HEADS):
        return ()
    return (tower.integer(*_HEADS, high=HEADS),)


def vision_parameters(fields: Fields, text: int) -> int:
    """Count the tower and its projection to `text` features.

    0 where the configuration lacks its sizes.
    """
    tower = _tower(fields)
    if tower is None or not (tower.has(*_HIDDEN) and tower.has(*_LAYERS)):
        return 0
    hidden, layers = tower.integer(*_HIDDEN), tower.integer(*_LAYERS, high=LAYERS)
    return (
        layers * _layer(tower, hidden)
        + _patches(tower, hidden)
        + _mergers(tower, hidden, text)
        + _shuffle_projections(tower, hidden, text)
    )


def _tower(fields: Fields) -> Fields | None:
    thinker = fields.table("thinker_config")
    return (thinker or fields).table("vision_config")


def _layer(tower: Fields, hidden: int) -> int:
    ratio = tower.number("mlp_ratio", low=1 / 64, high=64.0, default=4.0)
    default_width = max(int(ratio * hidden), 1)
    width = tower.integer("intermediate_size", "vt_intermediate_size", default=default_width)
    gated = tower.text("hidden_act", default="gelu") == "silu"
    gated = gated or tower.text("model_type", default="") == "gemma4_vision"
    ffn = perceptron(hidden, width, hidden) + (linear(hidden, width) if gated else 0)
    return linear(hidden, 3 * hidden) + linear(hidden, hidden) + ffn + 4 * hidden


def _patches(tower: Fields, hidden: int) -> int:
    patch = tower.integer("patch_size", high=1024, default=14)
    channels = tower.integer("in_channels", "num_channels", "in_chans", high=1024, default=3)
    frames = tower.integer("temporal_patch_size", high=64, default=1)
    positions = tower.integer("num_position_embeddings", default=0, low=0)
    sides = 2 * tower.integer("position_embedding_size", default=0, low=0)
    rows = tower.integer("init_pos_emb_height", low=0, high=CONTEXT, default=0)
    columns = tower.integer("init_pos_emb_width", low=0, high=CONTEXT, default=0)
    positions += sides + rows * columns
    return linear(channels * frames * patch**2, hidden) + positions * hidden


def _mergers(tower: Fields, hidden: int, text: int) -> int:
    """Count the projections of square groups of patches to the language model's width."""
    kernel = tower.integers("merge_kernel_size", low=1, high=64, default=(1,))
    if not tower.has("spatial_merge_size", "merge_kernel_size"):
        return 0
    merged_width = hidden * tower.integer("spatial_merge_size", high=64, default=kernel[-1]) ** 2
    output_width = tower.integer("out_hidden_size", default=text)
    extra = len(tower.integers("deepstack_visual_indexes", high=LAYERS, default=()))
    return (
        (1 + extra) * perceptron(merged_width, merged_width, output_width)
        + 2 * hidden
        + extra * 2 * merged_width
    )


def _shuffle_projections(tower: Fields, hidden: int, text: int) -> int:
    """Count Llama 4's projections of patches that were shuffled together, then to the text."""
    if not tower.has("pixel_shuffle_ratio"):
        return 0
    ratio = tower.number("pixel_shuffle_ratio", low=1 / 64, high=1.0)
    inner = tower.integer("projector_input_dim")
    output_width = tower.integer("projector_output_dim", "vision_output_dim", default=inner)
    return perceptron(int(hidden / ratio**2), inner, output_width, bias=False) + linear(
        output_width, text
    )
