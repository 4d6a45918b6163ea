"""Which tensors of a published checkpoint a model's networks are made of."""

import re
from collections.abc import Mapping
from typing import Final, cast

from planner.export.tables import checkpoints
from planner.models import Model

KINDS: Final = ("weights", "gains", "biases")
EMBEDDING: Final = "model.embed_tokens"
LAYER: Final = re.compile(r"\{layer((?:\+\w+)+)\}")
Names = dict[str, list[str]]


def checkpoint_of(model: Model) -> dict[str, Mapping[str, object]]:
    """Return ``weights``, ``gains`` and ``biases`` by our names, and ``unused`` with the reasons.

    ``embeddings`` are by stream: what its inputs are looked up in. ``renamed`` : what parts of keys
    are called in another layout, and here.

    Layers behind those of another block are numbered from there: ``{layer+19}``. Empty where the
    tensors of the model's family are not known.
    """
    entry = _family_entry(model.family)
    if not entry:
        return {}
    layer_counts = {block.name: int(block.count) for block in model.blocks}
    tensor_names = {kind: dict(cast(Names, entry.get(kind, {}))) for kind in (*KINDS, "biased")}
    for name, modules in tensor_names.pop("biased").items():
        tensor_names["weights"][name] = [_tensor_of(module, "weight") for module in modules]
        tensor_names["biases"][name] = [_tensor_of(module, "bias") for module in modules]
    tensors: dict[str, Mapping[str, object]] = {
        kind: {
            name: [_with_layer_offset(key, layer_counts) for key in keys]
            for name, keys in names.items()
        }
        for kind, names in tensor_names.items()
    }
    unused = dict(cast("Mapping[str, str]", entry.get("unused", {})))
    if model.numerics is None:
        unused |= cast("Mapping[str, str]", entry.get("timing", {}))
    if model.kind == "decoder" and model.tied_embeddings and unused.pop(EMBEDDING, ""):
        tensors["weights"] = {**tensors["weights"], "head": [_tensor_of(EMBEDDING, "weight")]}
    embeddings = cast("Mapping[str, object]", entry.get("embeddings", {}))
    renamed = cast("Mapping[str, object]", entry.get("renamed", {}))
    return {**tensors, "embeddings": embeddings, "renamed": renamed, "unused": unused}


def computed() -> tuple[str, ...]:
    """List what networks compute with the tensors that are known here, by models' own names."""
    return tuple(str(entry["computes"]) for entry in checkpoints().values() if "computes" in entry)


def _family_entry(family: str) -> Mapping[str, object]:
    """Look a family up, with what it takes over from another."""
    entry = checkpoints().get(family, {})
    if "like" not in entry:
        return entry
    inherited = _family_entry(str(entry["like"]))
    merged = {**inherited, **entry}
    for key in (*KINDS, "biased", "embeddings", "unused"):
        merged[key] = {**cast(Names, inherited.get(key, {})), **cast(Names, entry.get(key, {}))}
    return merged


def _tensor_of(module: str, kind: str) -> str:
    """Name a tensor of a module, or a part of it.

    >>> _tensor_of("norm.linear#1/2", "bias")
    'norm.linear.bias#1/2'
    """
    name, mark, part = module.partition("#")
    return f"{name}.{kind}{mark}{part}"


def _with_layer_offset(key: str, layer_counts: Mapping[str, int]) -> str:
    """Write how many layers of other blocks stand ahead.

    >>> _with_layer_offset("blocks.{layer+dual+joint}.out", {"joint": 10})
    'blocks.{layer+10}.out'
    """

    def number(match: re.Match[str]) -> str:
        layers_ahead = sum(layer_counts.get(name, 0) for name in match[1][1:].split("+"))
        return f"{{layer+{layers_ahead}}}"

    return LAYER.sub(number, key)
