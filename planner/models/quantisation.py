"""How a checkpoint stores its weights: GPTQ, AWQ, FP8, MXFP4, NVFP4 and their kin, as published."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal

from planner.models.fields import Fields
from topology.base.values import dataclass
from topology.catalogue import Precision

Part = Literal["attention", "output", "feed_forward", "experts", "shared"]
PARTS: Final[tuple[Part, ...]] = ("attention", "output", "feed_forward", "experts", "shared")
"""Attention's projections before it, and the one after it; feed-forwards; experts."""
METHODS: Final[dict[str, Precision]] = {
    "gptq": "int4", "gptq_marlin": "int4", "awq": "int4", "awq_marlin": "int4",
    "auto-round": "int4", "intel/auto-round": "int4", "auto_round": "int4",
    "fp8": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8", "mxfp4": "mxfp4", "nvfp4": "nvfp4",
    "w8a8_int8": "int8", "smoothquant": "int8",
}  # fmt: skip
"""Precision of products by ``quant_method``, where it has one alone."""
ALGORITHMS: Final[dict[str, Precision]] = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8", "FP8_BLOCK_SCALES": "fp8",
    "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "INT4_AWQ": "int4", "W4A16": "int4", "MXFP4": "mxfp4",
    "W4A16_MXFP4": "mxfp4", "W4A16_NVFP4": "nvfp4", "MXFP8": "fp8", "W8A8_SQ_PER_CHANNEL": "int8",
    "INT8_SQ": "int8",
}  # fmt: skip
"""The same by ``quant_algo`` of modelopt."""
_UNCONVERTED_KEYS: Final = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
_MODULE_PARTS: Final[dict[str, tuple[Part, ...]]] = {
    r"\b(o_proj|out_proj|wo)\b": ("output",),
    r"\b(q|k|v|qkv|q_a|q_b|kv_a|kv_b|in)_proj": ("attention",),
    r"attn|attention": ("attention", "output"),
    r"(?<!shared_)(?<!shared)experts": ("experts",),
    r"shared_expert": ("shared",),
    r"mlp|feed_forward|ffn": ("feed_forward",),
}
"""Parts that a module's name stands for; the first pattern that is in it counts."""
_PARTS_BY_WEIGHT: Final[tuple[Part, ...]] = (
    "experts", "feed_forward", "shared", "attention", "output",
)  # fmt: skip
_LAYER: Final = re.compile(r"(?<![a-z0-9])(\d+)(?![a-z0-9])")
_SMALL_MODULES: Final = re.compile(
    r"router|\bgate\b(?!\|)|norm|conv1d|indexer|lm_head|embed|visual|vision|mtp|nextn"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How weights are stored.

    method : as the checkpoint names it. precision : of the products. group : inputs that share a
    scale, which a cut along them must not part; 0 where none do. block : outputs that share one.
    kept : parts that stay in 16 bits; embedding, head, norms and routers always do.
    others : parts that are stored in another precision, and which.
    cache : precision of keys and values that the checkpoint brings scales for; empty for none.
    """

    method: str
    precision: Precision
    group: int = 0
    block: int = 0
    kept: tuple[Part, ...] = ()
    others: tuple[tuple[Part, Precision], ...] = ()
    cache: str = ""

    def covers(self, part: str) -> bool:
        """Whether the weights of a part are stored in the usual way, with its groups and blocks."""
        return part in PARTS and part not in self.kept and part not in dict(self.others)

    def precision_of(self, part: str) -> Precision | Literal[""]:
        """Name the precision of a part's products; empty for 16 bits."""
        if self.covers(part):
            return self.precision
        return next((precision for name, precision in self.others if name == part), "")

    @property
    def words(self) -> str:
        """Say in a line what is stored how.

        >>> Quantisation(method="awq", precision="int4", group=128).words
        'int4 (awq), groups of 128'
        """
        size = f", groups of {self.group}" if self.group else ""
        if self.block:
            size = f", blocks of {self.block} x {self.group}"
        method_name = self.precision if self.precision == self.method else None
        parts_by_precision = {
            name: [part for part, part_precision in self.others if part_precision == name]
            for _, name in self.others
        }
        return "".join([
            (method_name or f"{self.precision} ({self.method})") + size,
            *(f", {_in_words(parts)} in {name}" for name, parts in parts_by_precision.items()),
            f", {_in_words(self.kept)} in 16 bits" if self.kept else "",
        ])  # fmt: skip


def _in_words(parts: Sequence[Part]) -> str:
    """Write parts of a layer.

    >>> _in_words(["attention", "output", "shared"]), _in_words(["output", "feed_forward"])
    ('attention, shared', "attention's output, feed-forward")
    """
    names = [part.replace("_", "-") for part in parts if part != "output"]
    if "output" in parts and "attention" not in parts:
        names.insert(0, "attention's output")
    elif "attention" in parts and "output" not in parts:
        names[0] = "attention but its output"
    return ", ".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scheme:
    """A way to store the weights of some modules; no names for all linear layers."""

    precision: Precision
    group: int
    block: int
    modules: tuple[str, ...] = ()


def read_quantisation(fields: Fields, layers: int) -> Quantisation | None:
    """Read a ``quantization_config``; None of one that says nothing of weights.

    Raises `InputError` if it is of a method or a number of bits that is not known here.
    """
    method = fields.text("quant_method", default="").lower()
    if not method and not fields.has("bits", "quant_algo", "config_groups"):
        return None
    method = method or ("gptq" if fields.has("bits") else "modelopt")
    unquantised, cache = _unquantised_parts(fields, layers), _cache(fields)
    has_groups = method.replace("_", "-") == "compressed-tensors" or fields.has("config_groups")
    modelopt = method.startswith("modelopt")
    if has_groups or (modelopt and fields.text("quant_algo").upper() == "MIXED_PRECISION"):
        schemes = list(_groups(fields)) if has_groups else _by_module(fields)
        combined = _combined(schemes, method, unquantised, layers)
        return replace(combined, cache=cache) if combined else None
    if modelopt:
        precision = _algorithm(fields)
    elif method in METHODS:
        precision = METHODS[method]
    elif method == "bitsandbytes":
        precision = "int4" if fields.boolean("load_in_4bit", default=False) else "int8"
    else:
        method_names = ", ".join([*METHODS, "bitsandbytes", "compressed-tensors", "modelopt"])
        raise fields.refused("quant_method", method, f"one of {method_names}")
    bits = fields.integer("bits", "w_bit", high=64, default=0)
    if precision == "int4" and bits not in (0, 4):
        raise fields.refused("bits", bits, "4, the only weights alone that are priced")
    rows, columns = _sizes(fields, precision)
    return Quantisation(
        method=method, precision=precision, group=rows, block=columns, kept=unquantised, cache=cache
    )


def _sizes(fields: Fields, precision: Precision) -> tuple[int, int]:
    """Give inputs and outputs that share a scale.

    MXFP4's groups of 32 do not count: engines pad its experts to whole groups a rank.
    """
    blocks = fields.integers("weight_block_size", "block_structure", low=1, default=())
    if blocks:
        return blocks[-1], blocks[0]
    group = max(fields.integer("group_size", "q_group_size", low=-1, default=0), 0)
    if precision == "nvfp4":
        return group or 16, 0
    return (0 if precision in ("mxfp4", "fp8", "int8") else group), 0


def _algorithm(fields: Fields) -> Precision:
    name = fields.text("quant_algo").upper()
    if name not in ALGORITHMS:
        raise fields.refused("quant_algo", name, f"one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def _groups(fields: Fields) -> Iterator[_Scheme]:
    """Read compressed-tensors' groups of modules, those that say something of weights."""
    groups = fields.table("config_groups")
    for name in groups.values if groups else ():
        group = groups.table(name) if groups else None
        weights = group.table("weights") if group else None
        if group is None or weights is None:
            continue
        form = group.text("format", default=fields.text("format", default=""))
        precision = _weights_precision(
            weights, form, alone=group.table("input_activations") is None
        )
        rows, columns = _sizes(weights, precision)
        targets = group.texts("targets", default=("Linear",))
        all_linear = any(target in ("Linear", "FusedMoE") for target in targets)
        modules = () if all_linear else targets
        yield _Scheme(precision=precision, group=rows, block=columns, modules=modules)


def _by_module(fields: Fields) -> list[_Scheme]:
    """Read modelopt's list of modules with an algorithm each."""
    modules = fields.table("quantized_layers")
    names_by_scheme: dict[tuple[Precision, int, int], list[str]] = {}
    for name in modules.values if modules else ():
        module = modules.table(name) if modules else None
        if module is not None:
            precision = _algorithm(module)
            names_by_scheme.setdefault((precision, *_sizes(module, precision)), []).append(name)
    return [
        _Scheme(precision=precision, group=rows, block=columns, modules=tuple(names))
        for (precision, rows, columns), names in names_by_scheme.items()
    ]


def _combined(
    schemes: Sequence[_Scheme], method: str, unquantised: tuple[Part, ...], layers: int
) -> Quantisation | None:
    """Give each part of a layer the scheme of most layers; that of the experts is the usual one."""
    part_schemes: dict[Part, _Scheme] = {}
    covered_layers = [_layers_of(scheme.modules, layers) for scheme in schemes]
    for part in PARTS:
        counts = [
            len(layers_by_part[part]) if s.modules else 0.5
            for s, layers_by_part in zip(schemes, covered_layers, strict=True)
        ]
        if part not in unquantised and max(counts, default=0):
            part_schemes[part] = schemes[counts.index(max(counts))]
    usual_scheme = next(
        (part_schemes[part] for part in _PARTS_BY_WEIGHT if part in part_schemes), None
    )
    if usual_scheme is None:
        return None
    return Quantisation(
        method=method,
        precision=usual_scheme.precision,
        group=usual_scheme.group,
        block=usual_scheme.block,
        kept=tuple(part for part in PARTS if part not in part_schemes),
        others=tuple(
            (part, scheme.precision)
            for part, scheme in part_schemes.items()
            if scheme.precision != usual_scheme.precision
        ),
    )


def _weights_precision(weights: Fields, form: str, *, alone: bool) -> Precision:
    bits = weights.integer("num_bits", high=64)
    floating = weights.text("type", default="int") == "float"
    if bits == 4 and floating:
        return "mxfp4" if "mxfp4" in form else "nvfp4"
    if bits == 4:
        return "int4"
    if bits == 8 and (floating or not alone):
        return "fp8" if floating else "int8"
    raise weights.refused("num_bits", bits, "4, or 8 of weights and inputs")


def _cache(fields: Fields) -> str:
    cache_scheme = fields.values.get("kv_cache_scheme")
    algorithm = (
        cache_scheme
        if isinstance(cache_scheme, str)
        else fields.text("kv_cache_quant_algo", default="")
    )
    if algorithm.upper() == "FP8":
        return "fp8"
    scheme = None if isinstance(cache_scheme, str) else fields.table("kv_cache_scheme")
    return "fp8" if scheme and scheme.values.get("num_bits") == 8 else ""


def _unquantised_parts(fields: Fields, layers: int) -> tuple[Part, ...]:
    """List the parts that most layers keep in 16 bits, by names of modules that are left out."""
    layers_by_part = _layers_of(
        (name for key in _UNCONVERTED_KEYS for name in fields.texts(key, default=())), layers
    )
    return tuple(part for part in PARTS if len(layers_by_part[part]) > layers / 2)


def _layers_of(names: Iterable[str], layers: int) -> dict[Part, set[int]]:
    """Collect the layers of which names of modules name each part; all where they name none."""
    layers_by_part: dict[Part, set[int]] = {part: set() for part in PARTS}
    for name in names:
        if _SMALL_MODULES.search(name):
            continue
        numbers = set(map(int, _LAYER.findall(name))) or set(range(layers))
        for part in next(
            (parts for pattern, parts in _MODULE_PARTS.items() if re.search(pattern, name)), ()
        ):
            layers_by_part[part] |= numbers
    return layers_by_part
