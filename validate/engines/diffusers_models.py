"""The transformers of diffusers with random weights, and the inputs of one forward of each.

A transformer is made of the catalogue's configuration. Inputs have the shapes, types and masks
that the model's pipeline gives [1]_, one request without its guidance, and as many tokens as the
planner counts. PyTorch and diffusers are imported when they are needed, not before.

References
----------
.. [1] diffusers 0.42.1, ``pipelines/*/pipeline_*.py``, the arguments of ``self.transformer``
"""

import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from costmodels.program import ceil_div
from planner.models import known_as, read_model
from planner.models.tokens import latent_frames, lengths
from topology.base import InputError, unknown
from topology.base.values import dataclass
from validate.engines import files

Tensor = Any  # torch.Tensor
Config = Mapping[str, Any]
Arguments = dict[str, Any]

_UNLISTED_CONFIG: Final[dict[str, dict[str, Any]]] = {
    "cogvideox-5b": {"use_rotary_positional_embeddings": True},
    "hidream-i1": {"axes_dims_rope": (64, 32, 32), "max_resolution": (128, 128)},
    "cosmos-predict2-2b": {"extra_pos_embed_type": None},  # TOML has no None
    "cosmos-predict2-2b-image": {"extra_pos_embed_type": None},
    "cosmos-predict2.5-2b": {"extra_pos_embed_type": None},
    "sd3.5-large": {"pos_embed_max_size": 192},
    "sd3.5-medium": {"pos_embed_max_size": 384},
}
"""What a transformer's config.json says and the catalogue, which counts nothing by it, does not."""

_MODALITY_MARGIN: Final = 15000  # Cosmos 3: positions between the text and the video
_TIMESTEP: Final = 500.0


class Inputs(NamedTuple):
    """Arguments of one forward, and how many tokens of each stream are in them."""

    arguments: Arguments
    tokens: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a request after the autoencoder: `lines` and `columns` of latents, not tokens."""

    height: int
    width: int
    frames: int
    lines: int
    columns: int
    text: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Make the tensors of a request on a device, in the type of the weights unless told."""

    config: Config
    size: Size
    device: Any
    tokens: Mapping[str, int]

    def noise(self, *shape: int) -> Tensor:
        import torch  # noqa: PLC0415  # an optional package

        return torch.randn(shape, device=self.device, dtype=torch.float32).to(torch.bfloat16)

    def full(self, value: float, *shape: int, kind: str = "bfloat16") -> Tensor:
        import torch  # noqa: PLC0415  # an optional package

        return torch.full(shape, value, device=self.device, dtype=getattr(torch, kind))

    def count(self, start: int, stop: int, *, kind: str = "int64") -> Tensor:
        """Count from one number to another, as positions and timesteps of an input are."""
        import torch  # noqa: PLC0415  # an optional package

        return torch.arange(start, stop, device=self.device, dtype=getattr(torch, kind))

    def mask(self, count: int, valid: int, *, kind: str = "int64") -> Tensor:
        """Mark the first `valid` of `count` tokens of a prompt as real, the others as padding."""
        return (self.count(0, count) < valid)[None].to(self.full(0, 1, kind=kind).dtype)

    def grid(self, *sides: int, kind: str = "bfloat16") -> Tensor:
        """Give the coordinates of the places of a grid, a row each."""
        import torch  # noqa: PLC0415  # an optional package

        axes = [self.count(0, side, kind="float32") for side in sides]
        places = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        return places.reshape(-1, len(sides)).to(getattr(torch, kind))

    @property
    def places(self) -> int:
        """Count the places of the latents."""
        return self.size.frames * self.size.lines * self.size.columns

    @property
    def patches(self) -> int:
        """Count patches of 2 x 2 places."""
        return self.size.frames * (self.size.lines // 2) * (self.size.columns // 2)

    def latents(self, channels: int) -> Tensor:
        """Draw the latents of a video: batch, channels, frames, lines, columns."""
        return self.noise(1, channels, self.size.frames, self.size.lines, self.size.columns)

    def picture(self, channels: int) -> Tensor:
        """Draw the latents of a picture: batch, channels, lines, columns."""
        return self.noise(1, channels, self.size.lines, self.size.columns)


def families() -> tuple[str, ...]:
    """List the classes of transformers that can be run here."""
    return tuple(sorted(_FAMILIES))


def transformer_config(model: str) -> tuple[str, dict[str, Any]]:
    """Read the class of a catalogue model's transformer, and its configuration.

    >>> transformer_config("flux")[0]
    'FluxTransformer2DModel'
    """
    name = known_as(model)
    if not name:
        raise InputError(f"model: got {model!r}, wanted one of the catalogue")
    entry = tomllib.loads(files.catalogue_text(name))
    config = {**entry.get("config", {}), **_UNLISTED_CONFIG.get(name, {})}
    family = str(config.pop("_class_name", ""))
    if not family:
        raise InputError(f"model: got {name}, wanted one whose transformer diffusers has")
    if family not in _FAMILIES:
        raise unknown("class of transformer", family, families())
    return family, config


def shallow_config(config: Config, layers: int) -> dict[str, Any]:
    """Cut a configuration to a few layers of every kind, at full width."""
    depths = ("num_layers", "num_single_layers", "num_hidden_layers", "n_layers")
    cut_depths = {key: min(int(config[key]), layers) for key in depths if key in config}
    return {**config, **cut_depths}


def transformer(family: str, config: Config, device: object) -> Any:  # noqa: ANN401  # a module
    """Make a transformer with random weights in bf16, as ``from_pretrained`` would type them.

    Modules that the class keeps in float32 are; numbers that it does not save keep their type.
    """
    import diffusers  # noqa: PLC0415  # an optional package
    import torch  # noqa: PLC0415  # an optional package

    cls = getattr(diffusers, family)
    module = sys.modules[cls.__module__]
    if family == "CosmosTransformer3DModel" and not hasattr(module, "transforms"):  # no torchvision
        module.transforms = SimpleNamespace(  # type: ignore[attr-defined]
            InterpolationMode=SimpleNamespace(NEAREST="nearest"),
            functional=SimpleNamespace(resize=_resize),
        )
    parameters = inspect.signature(cls.__init__).parameters
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = cls(**{key: value for key, value in config.items() if key in parameters})
    finally:
        torch.set_default_dtype(default_dtype)
    fp32_modules = cls._keep_in_fp32_modules or ()
    for name, parameter in model.named_parameters():
        is_fp32 = any(part in name.split(".") for part in fp32_modules)
        parameter.data = parameter.data.to(torch.float32 if is_fp32 else torch.bfloat16)
    return model.eval().requires_grad_(requires_grad=False)


def _resize(mask: Tensor, size: list[int], *, interpolation: str) -> Tensor:
    """Do what Cosmos asks of torchvision: resize its padding mask."""
    import torch  # noqa: PLC0415  # an optional package

    return torch.nn.functional.interpolate(mask, size=size, mode=interpolation)


def inputs(
    model: str, config: Config, device: object, *, height: int, width: int, frames: int = 1
) -> Inputs:
    """Make the arguments of one forward of a catalogue model's transformer.

    model : a catalogue name. config : of its transformer, perhaps narrowed. device : of PyTorch.
    height, width, frames : pixels and frames of the request.

    Raises InputError if the size is none of the model's, or the tokens are not those that the
    planner counts.
    """
    spec = read_model(model)
    latent = spec.latent
    assert latent is not None
    expected_tokens = {
        stream: int(count) for stream, count in lengths(spec, height, width, frames).items()
    }
    steps = (latent.spatial * latent.patch_height, latent.spatial * latent.patch_width)
    if latent.rounds == "down":
        lines = height // steps[0] * latent.patch_height
        columns = width // steps[1] * latent.patch_width
    else:
        lines = int(ceil_div(height, latent.spatial))
        columns = int(ceil_div(width, latent.spatial))
    size = Size(
        height=height,
        width=width,
        frames=int(latent_frames(latent, frames)),
        lines=lines,
        columns=columns,
        text=expected_tokens["text"],
    )
    family = _FAMILIES[transformer_config(model)[0]]
    maker = Maker(config=config, size=size, device=device, tokens=expected_tokens)
    main_stream = next(stream for stream in expected_tokens if stream in ("image", "video"))
    tokens = {**expected_tokens, main_stream: family.count(maker)}
    if tokens != expected_tokens:
        raise InputError(f"{model}: got {tokens} tokens, wanted {expected_tokens}")
    arguments = family.make(maker)
    if family.text:
        arguments["encoder_hidden_states"] = maker.noise(1, size.text, config[family.text])
    return Inputs(arguments, tokens)


def _flux(maker: Maker) -> Arguments:
    return {
        "hidden_states": maker.noise(1, maker.patches, maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP / 1000, 1),
        "guidance": maker.full(3.5, 1, kind="float32") if maker.config["guidance_embeds"] else None,
        "pooled_projections": maker.noise(1, maker.config["pooled_projection_dim"]),
        "txt_ids": maker.full(0, maker.size.text, 3),
        "img_ids": maker.grid(1, maker.size.lines // 2, maker.size.columns // 2),
    }


def _flux2(maker: Maker) -> Arguments:
    rows, columns = maker.size.lines // 2, maker.size.columns // 2
    guided = maker.config.get("guidance_embeds", True)
    return {
        "hidden_states": maker.noise(1, maker.patches, maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP / 1000, 1),
        "guidance": maker.full(4.0, 1, kind="float32") if guided else None,
        "txt_ids": maker.grid(1, 1, 1, maker.size.text, kind="int64")[None],
        "img_ids": maker.grid(1, rows, columns, 1, kind="int64")[None],
    }


def _wan(maker: Maker) -> Arguments:
    by_token = maker.config["in_channels"] == 48  # Wan 2.2 5B: `expand_timesteps`
    shape = (1, maker.patches) if by_token else (1,)
    return {
        "hidden_states": maker.latents(maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP, *shape, kind="float32" if by_token else "int64"),
    }


def _qwen_image(maker: Maker) -> Arguments:
    return {
        "hidden_states": maker.noise(1, maker.patches, maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP / 1000, 1),
        "encoder_hidden_states_mask": None,  # a lone prompt has no padding
        "img_shapes": [[(1, maker.size.lines // 2, maker.size.columns // 2)]],
    }


def _sd3(maker: Maker) -> Arguments:
    return {
        "hidden_states": maker.picture(maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP, 1, kind="float32"),
        "pooled_projections": maker.noise(1, maker.config["pooled_projection_dim"]),
    }


def _cogvideox(maker: Maker) -> Arguments:
    config = maker.config
    rotation = maker.full(0.5, maker.patches, config["attention_head_dim"], kind="float32")
    rotates = config.get("use_rotary_positional_embeddings", False)
    return {
        "hidden_states": maker.latents(config["in_channels"]).transpose(1, 2).contiguous(),
        "timestep": maker.full(_TIMESTEP, 1, kind="int64"),
        "image_rotary_emb": (rotation, rotation.clone()) if rotates else None,
    }


def _ltx(maker: Maker) -> Arguments:
    return {
        "hidden_states": maker.noise(1, maker.places, maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP, 1, kind="float32"),
        "encoder_attention_mask": maker.mask(maker.size.text, maker.size.text // 2),
        "num_frames": maker.size.frames,
        "height": maker.size.lines,
        "width": maker.size.columns,
        "rope_interpolation_scale": (8 / 25, 32, 32),
    }


def _ltx2(maker: Maker) -> Arguments:
    text, sound = maker.size.text, maker.tokens["audio"]
    mask = maker.mask(text, text)  # learned registers stand for the padding
    step = maker.full(_TIMESTEP, 1, kind="float32")
    return {
        "hidden_states": maker.noise(1, maker.places, maker.config["in_channels"]),
        "audio_hidden_states": maker.noise(1, sound, maker.config["audio_in_channels"]),
        "audio_encoder_hidden_states": maker.noise(1, text, maker.config["caption_channels"]),
        "timestep": step,
        "sigma": step,
        "encoder_attention_mask": mask,
        "audio_encoder_attention_mask": mask,
        "num_frames": maker.size.frames,
        "height": maker.size.lines,
        "width": maker.size.columns,
        "fps": 24.0,
        "audio_num_frames": sound,
    }


def _mochi(maker: Maker) -> Arguments:
    text = maker.size.text
    return {
        "hidden_states": maker.latents(maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP, 1, kind="float32"),
        "encoder_attention_mask": maker.mask(text, text, kind="bool"),  # cuts the rest
    }


def _z_image(maker: Maker) -> Arguments:
    return {
        "x": list(maker.picture(maker.config["in_channels"]).unsqueeze(2).unbind(0)),
        "t": maker.full(_TIMESTEP / 1000, 1, kind="float32"),
        "cap_feats": [maker.noise(maker.size.text, maker.config["cap_feat_dim"])],
    }


def _hunyuan(maker: Maker) -> Arguments:
    text, guided = maker.size.text, maker.config["guidance_embeds"]
    return {
        "hidden_states": maker.latents(maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP, 1),
        "encoder_attention_mask": maker.mask(text, text // 2),
        "pooled_projections": maker.noise(1, maker.config["pooled_projection_dim"]),
        "guidance": maker.full(6.0 * 1000, 1) if guided else None,
    }


def _hunyuan15(maker: Maker) -> Arguments:
    config, words = maker.config, maker.size.text - 256 - 729
    return {
        "hidden_states": maker.latents(config["in_channels"]),
        "image_embeds": maker.full(0, 1, 729, config["image_embed_dim"]),  # there is no picture
        "timestep": maker.full(_TIMESTEP, 1),
        "encoder_hidden_states": maker.noise(1, words, config["text_embed_dim"]),
        "encoder_attention_mask": maker.mask(words, words // 2),
        "encoder_hidden_states_2": maker.noise(1, 256, config["text_embed_2_dim"]),
        "encoder_attention_mask_2": maker.mask(256, 0),  # nothing to write in the picture
    }


def _cosmos3(maker: Maker) -> Arguments:
    """Pack text and video into one sequence, without sound and actions."""
    import torch  # noqa: PLC0415  # an optional package

    size, text, count = maker.size, maker.size.text, _whole_patches(maker)
    rows, columns = int(ceil_div(size.lines, 2)), int(ceil_div(size.columns, 2))
    words = maker.count(0, text, kind="float32")[None].expand(3, -1)
    places = maker.grid(size.frames, rows, columns, kind="float32").T.contiguous()
    places[0] += text + _MODALITY_MARGIN
    video_indexes = maker.count(text, text + count)
    return {
        "input_ids": maker.count(0, text) % maker.config["vocab_size"],
        "text_indexes": maker.count(0, text),
        "position_ids": torch.cat([words, places], dim=1),
        "und_len": text,
        "sequence_length": text + count,
        "vision_tokens": [maker.latents(maker.config["latent_channel"])],
        "vision_token_shapes": [(size.frames, rows, columns)],
        "vision_sequence_indexes": video_indexes,
        "vision_mse_loss_indexes": video_indexes.clone(),
        "vision_timesteps": maker.full(_TIMESTEP, count, kind="float32"),
        "vision_noisy_frame_indexes": [maker.count(0, size.frames)],
    }


def _whole_patches(maker: Maker) -> int:
    """Count patches of 2 x 2 places, those that are cut off at an edge too."""
    return maker.size.frames * int(ceil_div(maker.size.lines, 2) * ceil_div(maker.size.columns, 2))


def _cosmos(maker: Maker) -> Arguments:
    """Predict2 from a video's first frames (17 channels) or a prompt alone, and Predict2.5."""
    size, config = maker.size, maker.config
    conditioned = config["in_channels"] == 17
    projected = config.get("use_crossattn_projection", False)
    width = config["crossattn_proj_in_channels"] if projected else config["text_embed_dim"]
    by_frame = conditioned and not projected
    shape = (1, 1, size.frames, 1, 1) if by_frame else (1,)
    condition = maker.full(0, 1, 1, size.frames, size.lines, size.columns)
    return {
        "hidden_states": maker.latents(16),
        "timestep": maker.full(0.5, *shape),
        "encoder_hidden_states": maker.noise(1, size.text, width),
        "fps": 16 if by_frame else None,
        "condition_mask": condition if conditioned else None,
        "padding_mask": maker.full(0, 1, 1, size.height, size.width),
    }


def _pixart(maker: Maker) -> Arguments:
    return {
        "hidden_states": maker.picture(maker.config["in_channels"]),
        "encoder_attention_mask": maker.mask(maker.size.text, maker.size.text // 2),
        "timestep": maker.full(_TIMESTEP, 1, kind="int64"),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def _lumina2(maker: Maker) -> Arguments:
    return {
        "hidden_states": maker.picture(maker.config["in_channels"]),
        "timestep": maker.full(_TIMESTEP / 1000, 1, kind="float32"),
        "encoder_attention_mask": maker.mask(maker.size.text, maker.size.text),  # cuts the rest
    }


def _hidream(maker: Maker) -> Arguments:
    config, words = maker.config, maker.size.text // 3  # T5's, Llama's last, Llama's of the layer
    features, layers = config["caption_channels"], max(config["llama_layers"]) + 1
    return {
        "hidden_states": maker.picture(config["in_channels"]),
        "timesteps": maker.full(_TIMESTEP, 1, kind="float32"),
        "encoder_hidden_states_t5": maker.noise(1, words, features[0]),
        "encoder_hidden_states_llama3": maker.noise(layers, 1, words, features[1]),
        "pooled_embeds": maker.noise(1, config["text_emb_dim"]),
    }


def _sana(maker: Maker) -> Arguments:
    return {
        "hidden_states": maker.picture(maker.config["in_channels"]),
        "encoder_attention_mask": maker.mask(maker.size.text, maker.size.text // 2),
        "timestep": maker.full(_TIMESTEP, 1, kind="float32"),
    }


class Family(NamedTuple):
    """A class of transformers: what makes its arguments but the prompt, and its latents' tokens.

    text : field of its configuration that says how wide a prompt's features are; empty where
    `make` gives the prompt too.
    """

    make: Callable[[Maker], Arguments]
    text: str = ""
    count: Callable[[Maker], int] = lambda made: made.patches


def _places(maker: Maker) -> int:
    return maker.places


def _padded_patches(maker: Maker) -> int:
    return int(ceil_div(maker.patches, 32)) * 32


_FAMILIES: Final = {
    "CogVideoXTransformer3DModel": Family(_cogvideox, "text_embed_dim"),
    "Cosmos3OmniTransformer": Family(_cosmos3, count=_whole_patches),
    "CosmosTransformer3DModel": Family(_cosmos),
    "Flux2Transformer2DModel": Family(_flux2, "joint_attention_dim"),
    "FluxTransformer2DModel": Family(_flux, "joint_attention_dim"),
    "HiDreamImageTransformer2DModel": Family(_hidream),
    "HunyuanVideo15Transformer3DModel": Family(_hunyuan15, count=_places),
    "HunyuanVideoTransformer3DModel": Family(_hunyuan, "text_embed_dim"),
    "LTX2VideoTransformer3DModel": Family(_ltx2, "caption_channels", _places),
    "LTXVideoTransformer3DModel": Family(_ltx, "caption_channels", _places),
    "Lumina2Transformer2DModel": Family(_lumina2, "cap_feat_dim"),
    "MochiTransformer3DModel": Family(_mochi, "text_embed_dim"),
    "PixArtTransformer2DModel": Family(_pixart, "caption_channels"),
    "QwenImageTransformer2DModel": Family(_qwen_image, "joint_attention_dim"),
    "SD3Transformer2DModel": Family(_sd3, "joint_attention_dim"),
    "SanaTransformer2DModel": Family(_sana, "caption_channels", _places),
    "WanTransformer3DModel": Family(_wan, "text_dim"),
    "ZImageTransformer2DModel": Family(_z_image, count=_padded_patches),
}
