"""A model as plain data: what `planner.read_model(...).to_dict()` and `planner models show` say."""

from dataclasses import asdict

from planner.models.architecture import Block, Model
from planner.models.count import active_parameters, block_parameters, parameters


def describe(model: Model) -> dict[str, object]:
    """Describe a model in numbers, text, lists and tables that JSON can hold.

    Examples
    --------
    >>> from planner.models.catalogue import read_model
    >>> shown = describe(read_model("mixtral-8x7b"))
    >>> shown["layers"], shown["heads"], shown["kv_heads"], shown["head_dim"], shown["ffn"]
    (32, 32, 8, 128, 14336)
    >>> f"{shown['parameters']:,}"
    '46,702,792,704'
    """
    heads = model.main.heads
    return {
        "name": model.name,
        "family": model.family,
        "kind": model.kind,
        "source": model.source,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "transformers": model.transformers,
        "layers": model.layers,
        "hidden": model.main.hidden,
        "heads": heads.query,
        "kv_heads": heads.key_value,
        "head_dim": heads.size,
        "ffn": _ffn_width(model),
        **_experts(model),
        "vocabulary": model.vocabulary,
        "context": model.context,
        "blocks": [_block(block) for block in model.blocks],
        "streams": [asdict(stream) for stream in model.streams],
        "latent": asdict(model.latent) if model.latent else None,
        "vae": asdict(model.vae) if model.vae else None,
        "encoders": [asdict(encoder) for encoder in model.encoders],
        "defaults": asdict(model.defaults),
        "vetoes": list(model.vetoes),
        "group": model.group,
        "assumed": list(model.assumed),
    }


def _ffn_width(model: Model) -> int:
    """Width of the main tower's FFN, of another block's where that has none."""
    if model.main.ffn is not None:
        return model.main.ffn.width
    towers = (tower for block in model.blocks for tower in block.towers)
    return max((tower.ffn.width for tower in towers if tower.ffn), default=0)


def _experts(model: Model) -> dict[str, object]:
    towers = (tower for block in model.blocks for tower in block.towers)
    mixtures = [tower.ffn for tower in towers if tower.ffn and tower.ffn.experts]
    if not mixtures:
        return {"experts": 0, "active_experts": 0}
    return {"experts": mixtures[-1].experts, "active_experts": mixtures[-1].active}


def _block(block: Block) -> dict[str, object]:
    return {
        "name": block.name,
        "layers": block.count,
        "parameters": block_parameters(block),
        "streams": [list(tower.streams) for tower in block.towers],
        "prelude": block.prelude,
    }
