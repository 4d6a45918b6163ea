"""Every family's inputs go through its transformer, narrow and shallow, on a CPU."""

import warnings
from typing import Any

import pytest

from validate.engines import diffusers_models as models

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers")

TWO = {"num_attention_heads": 2}
NARROW: dict[str, dict[str, Any]] = {
    "flux.1-dev": TWO,
    "flux.1-schnell": TWO,
    "flux.2-klein-4b": TWO,
    "wan2.1-1.3b": {**TWO, "ffn_dim": 64},
    "wan2.1-14b": {**TWO, "ffn_dim": 64},
    "wan2.2-5b": {**TWO, "ffn_dim": 64},
    "qwen-image": TWO,
    "sd3.5-large": {**TWO, "caption_projection_dim": 128},
    "sd3.5-medium": {**TWO, "caption_projection_dim": 128, "dual_attention_layers": [0]},
    "cogvideox-5b": TWO,
    "cogvideox-2b": TWO,
    "ltx-video": {**TWO, "cross_attention_dim": 128},
    "ltx-2": {
        **TWO,
        "cross_attention_dim": 256,
        "audio_num_attention_heads": 2,
        "audio_cross_attention_dim": 128,
    },
    "mochi-1": TWO,
    "z-image": {"dim": 256, "n_heads": 2, "n_kv_heads": 2, "n_refiner_layers": 1},
    "hunyuanvideo": {**TWO, "num_refiner_layers": 1},
    "hunyuanvideo-1.5": {**TWO, "num_refiner_layers": 1},
    "cosmos3-nano": {
        **TWO,
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_key_value_heads": 1,
        "vocab_size": 100,
    },
    "cosmos-predict2-2b": TWO,
    "cosmos-predict2-2b-image": TWO,
    "cosmos-predict2.5-2b": {**TWO, "crossattn_proj_in_channels": 64},
    "pixart-sigma": {**TWO, "cross_attention_dim": 144},
    "lumina2": {**TWO, "hidden_size": 192, "num_kv_heads": 1, "num_refiner_layers": 1},
    "hidream-i1": {**TWO, "caption_channels": [64, 64], "llama_layers": [0, 0]},
    "sana-1.6b": {
        **TWO,
        "num_cross_attention_heads": 2,
        "cross_attention_head_dim": 32,
        "cross_attention_dim": 64,
    },
}
BLOCKS = {  # of the main stream, and which argument or output of it has how many tokens
    "LTX2VideoTransformer3DModel": "transformer_blocks",
    "ZImageTransformer2DModel": "layers",
    "Lumina2Transformer2DModel": "layers",
    "Cosmos3OmniTransformer": "layers",
    "WanTransformer3DModel": "blocks",
    "HiDreamImageTransformer2DModel": "double_stream_blocks",
}


def _rows(values: object) -> set[int]:
    """Lengths of the sequences among a block's arguments."""
    if isinstance(values, torch.Tensor):
        return {int(size) for size in values.shape[:-1]} if values.dim() > 1 else set()
    if isinstance(values, dict):
        return _rows(list(values.values()))
    if isinstance(values, list | tuple):
        return set().union(*map(_rows, values))
    return set()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.filterwarnings("ignore")
def test_inputs_run_and_have_the_planners_tokens(name: str) -> None:
    family, config = models.transformer_config(name)
    config = {**models.shallow_config(config, 1), **NARROW[name]}
    pictures = "image" in name or "2DModel" in family
    size = {"height": 64, "width": 128, "frames": 1 if pictures else 9}
    if name == "mochi-1":
        size["frames"] = 13
    if name == "hidream-i1":
        size["height"] = 128  # what is not square is padded to the largest picture
    model = models.transformer(family, config, "cpu")
    made = models.inputs(name, config, "cpu", **size)
    seen: set[int] = set()
    blocks = getattr(model, BLOCKS.get(family, "transformer_blocks"))

    def look(_: object, arguments: object, named: object) -> None:
        seen.update(_rows(arguments), _rows(named))

    blocks[0].register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad():
        sample = model(**made.arguments, return_dict=False)[0]
    sample = sample[0] if isinstance(sample, list | tuple) else sample
    assert torch.isfinite(sample).all()
    text = made.tokens["text"]
    main = next(count for stream, count in made.tokens.items() if stream in ("image", "video"))
    assert main in seen or main + text in seen
    if family != "HiDreamImageTransformer2DModel":  # its text comes in three parts
        assert text in seen or main + text in seen


def test_the_families_are_those_of_the_catalogue_that_diffusers_has() -> None:
    ran = {models.transformer_config(name)[0] for name in NARROW}
    assert ran == set(models.families())
    assert all(hasattr(diffusers, family) for family in ran)
