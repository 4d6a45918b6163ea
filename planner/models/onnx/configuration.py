"""From recognised layers to the configuration of a class that a reader knows.

A graph does not say what it is called. A decoder is one whose integers choose rows of an embedding;
transformers of diffusion models are told apart by how their layers look at text, by their FFNs and
by what makes tokens of latents.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

from planner.models.onnx.blocks import AttentionLayer
from planner.models.onnx.graph import Graph, Linear
from topology.base import InputError
from topology.base.values import dataclass

Config = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration, the places of products that it speaks of, and what no graph says."""

    config: Config
    places: frozenset[int]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Diffusion:
    """What the ends of a diffusion model's transformer say.

    image, text : products that make tokens of latents, where no convolution does, and of the
    prompt. last : the product behind all layers. conditions : products of one row a sample.
    """

    graph: Graph
    layers: Sequence[AttentionLayer]
    image: Linear | None
    text: Linear | None
    last: Linear | None
    conditions: tuple[Linear, ...]

    @property
    def first(self) -> AttentionLayer:
        return self.layers[0]

    @property
    def prompt(self) -> int:
        """Features of a row of the prompt; 0 where no product reads it."""
        return self.text.inputs if self.text else 0

    def common(self) -> Config:
        """Return the fields that nearly all classes have."""
        entering, leaving = self.channels()
        return {
            "num_attention_heads": self.first.heads,
            "attention_head_dim": self.first.size,
            "in_channels": entering,
            "out_channels": leaving,
        }

    def channels(self) -> tuple[int, int]:
        """Count features of a token that enter, and that leave."""
        if self.graph.patches:
            entering = self.graph.patches[0].inputs
            return entering, (self.last.outputs if self.last else 0) // self.covered
        entering = self.image.inputs if self.image else 0
        return entering, self.last.outputs if self.last else entering

    @property
    def covered(self) -> int:
        """Latents that one token covers."""
        return prod(self.graph.patches[0].kernel) if self.graph.patches else 1

    def conditioned(self, dimensions: int) -> list[Linear]:
        """List products that read an input of so many dimensions, of one row a sample."""
        return [linear for linear in self.conditions if _reads(self.graph, linear, dimensions)]


def configuration_of(graph: Graph, layers: Sequence[AttentionLayer], where: str) -> Found:
    """Name the class of a graph, with the fields of its configuration.

    Raises `InputError` if its layers are those of no class that is read.
    """
    if graph.embeddings and not graph.patches:
        return _decoder(graph, layers, where)
    ends = _ends(graph, layers)
    kinds = [layer.kind for layer in layers]
    build = _CLASSES.get(
        (_layer_pattern(kinds), len(graph.patches[0].kernel) if graph.patches else 0)
    )
    if build is not None:
        return Found(config=build(ends), places=_named_places(ends))
    kind_counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    raise InputError(
        f"{where}: layers of no class that is read ({kind_counts}); wanted those of FLUX, SD3, "
        "Qwen-Image, Wan, PixArt, LTX-Video or a dense decoder: give its config.json"
    )


def _layer_pattern(kinds: Sequence[str]) -> str:
    """Say in a word how layers follow one another."""
    if set(kinds) == {"joint"}:
        return "joint"
    count = kinds.count("joint")
    if set(kinds) == {"joint", "parallel"} and kinds[:count] == ["joint"] * count:
        return "joint, then parallel"
    half = len(kinds) // 2
    return "self and cross" if list(kinds) == ["self", "cross"] * half else "other"


def _ends(graph: Graph, layers: Sequence[AttentionLayer]) -> _Diffusion:
    placed = frozenset[int]().union(*(layer.places for layer in layers))
    outer_products = [
        linear for place, linear in sorted(graph.linears.items()) if place not in placed
    ]
    token_products = [linear for linear in outer_products if linear.dimensions != 2]
    input_products = [linear for linear in token_products if _reads(graph, linear, 3)]
    output_shape = next(iter(graph.outputs.values()), ())
    image = None if graph.patches else _image_product(graph, input_products, output_shape)
    text = next((linear for linear in input_products if linear is not image), None)
    trailing = [linear for linear in token_products if linear.place > max(placed)]
    return _Diffusion(
        graph=graph,
        layers=layers,
        image=image,
        text=text,
        last=trailing[-1] if trailing else None,
        conditions=tuple(linear for linear in outer_products if linear.dimensions == 2),
    )


def _reads(graph: Graph, linear: Linear, dimensions: int) -> bool:
    """Whether a product reads an input of so many dimensions as it is given; tokens have 3."""
    return any(len(graph.inputs.get(str(name), ())) == dimensions for name in linear.made)


def _image_product(
    graph: Graph, candidates: Sequence[Linear], output_shape: Sequence[int]
) -> Linear | None:
    """Find the product of those tokens that there are as many of as leave the model."""
    for linear in candidates:
        sizes = next(graph.inputs[str(name)] for name in linear.made if str(name) in graph.inputs)
        if len(output_shape) == 3 and sizes[1] == output_shape[1] and sizes[1]:
            return linear
    return candidates[0] if candidates else None


def _named_places(ends: _Diffusion) -> frozenset[int]:
    """Give places of products that make tokens, read the prompt, end the model, tell the time."""
    products = (ends.image, ends.text, ends.last, *ends.conditions)
    places = frozenset(linear.place for linear in products if linear is not None)
    prompt = {ends.text.place} if ends.text else set()
    return places | {
        linear.place for linear in ends.graph.linears.values() if linear.made == prompt
    }


def _flux(ends: _Diffusion) -> Config:
    joint_layers = [layer for layer in ends.layers if layer.kind == "joint"]
    shared_fields = {
        **ends.common(),
        "num_layers": len(joint_layers),
        "num_single_layers": len(ends.layers) - len(joint_layers),
        "joint_attention_dim": ends.prompt,
        "guidance_embeds": len(ends.conditioned(1)) > 1,
    }
    feeds = ends.first.feeds
    if feeds and feeds[0].gated:
        return {
            "_class_name": "Flux2Transformer2DModel",
            **shared_fields,
            "mlp_ratio": feeds[0].width / ends.first.hidden,
            "timestep_guidance_channels": _features(ends.conditioned(1)),
        }
    return {
        "_class_name": "FluxTransformer2DModel",
        **shared_fields,
        "pooled_projection_dim": _features(ends.conditioned(2)),
    }


def _sd3(ends: _Diffusion) -> Config:
    return {
        "_class_name": "SD3Transformer2DModel",
        **ends.common(),
        "num_layers": len(ends.layers),
        "patch_size": ends.graph.patches[0].kernel[-1],
        "joint_attention_dim": ends.prompt,
        "caption_projection_dim": ends.text.outputs if ends.text else 0,
        "pooled_projection_dim": _features(ends.conditioned(2)),
        **({"qk_norm": "rms_norm"} if ends.first.normed else {}),
    }


def _qwen(ends: _Diffusion) -> Config:
    return {
        "_class_name": "QwenImageTransformer2DModel",
        **ends.common(),
        "out_channels": ends.channels()[1] // 4,
        "num_layers": len(ends.layers),
        "patch_size": 2,
        "joint_attention_dim": ends.prompt,
    }


def _wan(ends: _Diffusion) -> Config:
    feeds = ends.layers[1].feeds
    return {
        "_class_name": "WanTransformer3DModel",
        **ends.common(),
        "num_layers": len(ends.layers) // 2,
        "ffn_dim": feeds[0].width if feeds else 0,
        "patch_size": list(ends.graph.patches[0].kernel),
        "text_dim": ends.prompt,
        "freq_dim": _features(ends.conditioned(1)),
    }


def _pixart(ends: _Diffusion) -> Config:
    patch = ends.graph.patches[0].kernel[-1]
    return {**_ltx(ends), "_class_name": "PixArtTransformer2DModel", "patch_size": patch}


def _ltx(ends: _Diffusion) -> Config:
    return {
        "_class_name": "LTXVideoTransformer3DModel",
        **ends.common(),
        "num_layers": len(ends.layers) // 2,
        "cross_attention_dim": ends.layers[1].context,
        "caption_channels": ends.prompt,
    }


def _features(products: Sequence[Linear]) -> int:
    """Count the features that the first of some products reads; 0 where there is none."""
    return products[0].inputs if products else 0


_CLASSES: Final[Mapping[tuple[str, int], Callable[[_Diffusion], Config]]] = {
    ("joint, then parallel", 0): _flux,
    ("joint", 2): _sd3,
    ("joint", 0): _qwen,
    ("self and cross", 3): _wan,
    ("self and cross", 2): _pixart,
    ("self and cross", 0): _ltx,
}
"""By how layers follow one another, and dimensions of the convolution that makes tokens."""


def _decoder(graph: Graph, layers: Sequence[AttentionLayer], where: str) -> Found:
    """Configure a dense decoder, whose layers are alike."""
    reason = _dense_refusal(graph, layers)
    if reason:
        raise InputError(f"{where}: {reason}: give its config.json")
    first_layer, (rows, hidden) = layers[0], next(iter(graph.embeddings.values()))
    (feed,) = first_layer.feeds
    heads = [linear for linear in graph.linears.values() if linear.outputs == rows]
    tied = not heads or any(head.weight in graph.embeddings for head in heads)
    kind = "qwen3" if first_layer.normed else "llama"
    config: Config = {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": len(layers),
        "num_attention_heads": first_layer.heads,
        "num_key_value_heads": first_layer.key_value,
        "head_dim": first_layer.size,
        "intermediate_size": feed.width,
        "vocab_size": rows,
        "hidden_act": feed.activation,
        "tie_word_embeddings": tied,
    }
    assumption = "a token sees all before it, a context has any length: a graph says neither"
    return Found(
        config=config,
        places=frozenset(head.place for head in heads),
        assumed=(f"a decoder like {kind}: {assumption}",),
    )


def _dense_refusal(graph: Graph, layers: Sequence[AttentionLayer]) -> str:
    """Say why layers are not those of a dense decoder; empty where they are."""
    layer_shapes = {
        (layer.kind, layer.hidden, layer.heads, layer.key_value, layer.size, len(layer.feeds))
        for layer in layers
    }
    if "TopK" in graph.counts:
        return "experts that a TopK chooses are not read from graphs"
    if len(layer_shapes) > 1:
        return f"decoder layers of {len(layer_shapes)} makes are not read from graphs"
    if layers[0].kind != "self" or len(layers[0].feeds) != 1:
        return f"a decoder layer of {layers[0].kind} attention and {len(layers[0].feeds)} FFNs"
    if not layers[0].feeds[0].gated:
        return "decoder layers whose FFN is not gated are not read from graphs"
    return ""
