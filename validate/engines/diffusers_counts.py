"""Count what diffusers launches in eager PyTorch: ``python -m validate.engines.diffusers_counts``.

Each transformer runs once without numbers, on tensors that have shapes alone, and every kernel
that PyTorch would launch is noted with the place in the code that asks for it. What the kernels of
a place move, and the cycles they take beyond, are divided by the bytes of the functions that stand
for the place in the planner's program. The result is the ``[habits.eager]`` tables of an engine.

Kernels of the products are counted for the host's sake only; those beyond the program's own (it
has one product where the code has three) go to the place of attention, and so do concatenations
less the copies that the program has.
"""

import math
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, Literal, NamedTuple

from costmodels.kernels.tables import pointwise_record
from costmodels.program import Loop, Matmul, Pointwise, Rearrange
from planner.lowering import lower
from planner.request.plan import Plan
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from topology.base.values import dataclass
from topology.catalogue import find_hardware
from validate.engines import diffusers_models as models
from validate.engines import files
from validate.plans import system

Place = Literal["attention", "feed_forward", "norm", "residual"]
Frame = tuple[str, str, str]
"""Class, function and line of code."""

FUNCTIONS: Final[Mapping[Place, tuple[str, ...]]] = {
    "attention": ("rotary",),
    "feed_forward": ("gelu", "silu", "silu_gated", "relu2"),
    "norm": ("norm", "modulated_norm"),
    "residual": ("residual", "gated_residual"),
}
"""Functions of programs that stand for a place."""
_FALLBACK_PLACES: Final[Mapping[Place, Place]] = {
    "attention": "norm",
    "feed_forward": "residual",
    "norm": "residual",
    "residual": "norm",
}
_PRODUCTS: Final = frozenset(("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm"))
_ATTENTION: Final = "attention"
_SHORT_ROW: Final = 512
_HALF_BYTES: Final = 2  # bytes
_MIN_SHARE: Final = 0.01
_GPU: Final = "h200-sxm"  # whose kernels were measured
_COPY_BYTES: Final = 4.0
"""Bytes that a copy of a 16-bit number moves."""


@cache
def _rates() -> tuple[float, float]:
    """Cycles of all multiprocessors and bytes of a stream a second, to weigh one by the other."""
    device = find_hardware(_GPU).device
    cycles = device.multiprocessors.value * device.clock.value
    return cycles, device.memory_bandwidth.value * pointwise_record(device, None).memory_efficiency


class Operand(NamedTuple):
    """A tensor as a kernel sees it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of what is there once, however often it is broadcast."""
        stored_sizes = (
            size for size, stride in zip(self.shape, self.strides, strict=True) if stride
        )
        return math.prod(stored_sizes) * self.itemsize

    @property
    def contiguous(self) -> bool:
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch: of which operation, on what, asked for where."""

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """What kernels take: bytes that they stream, cycles beyond, launches."""

    bytes: float = 0.0
    cycles: float = 0.0
    kernels: float = 0.0

    def __add__(self, other: "KernelWork") -> "KernelWork":
        return KernelWork(
            bytes=self.bytes + other.bytes,
            cycles=self.cycles + other.cycles,
            kernels=self.kernels + other.kernels,
        )

    def less(self, other: "KernelWork") -> "KernelWork":
        """Take away what is priced elsewhere: cycles first, then bytes of as much time."""
        cycles = min(self.cycles, other.cycles)
        rate, bandwidth = _rates()
        equal_bytes = (other.cycles - cycles) / rate * bandwidth
        return KernelWork(
            bytes=max(0.0, self.bytes - equal_bytes),
            cycles=self.cycles - cycles,
            kernels=max(0.0, self.kernels - other.kernels),
        )


def place_of(frames: Sequence[Frame]) -> Place:
    """Say which part of a block asks for a kernel; `frames` are innermost first.

    >>> place_of([("RMSNorm", "forward", ""), ("FluxAttnProcessor", "__call__", "")])
    'attention'
    >>> place_of([("WanTransformerBlock", "forward", "x = (x.float() + y * gate)")])
    'residual'
    """
    if any(re.search(r"Attention|AttnProcessor|rotary", f"{c}.{f}") for c, f, _ in frames):
        return "attention"
    if any(
        re.search(r"FeedForward|SwiGLU|MLP|^GELU|Expert|MoE|GLUMBConv", c) for c, _, _ in frames
    ):
        return "feed_forward"
    line = next((line for c, _, line in frames if "Block" in c), "")
    in_block = bool(frames) and "Block" in frames[0][0]
    if in_block and not re.search(r"norm|scale|shift", line.replace("scale_shift_table", "")):
        return "residual"
    if in_block and "gate" in line and "norm" not in line:
        return "residual"
    return "norm"


def kind_of(kernel: Kernel) -> str:
    """Name the kind of a kernel in ``kinds.toml``; empty for one that streams."""
    inputs, out = kernel.inputs, (kernel.outputs or kernel.inputs)[0]
    wide = out.itemsize > _HALF_BYTES
    match kernel.name:
        case "native_layer_norm":
            return "layer_row"
        case "rms_norm":
            return "rms_row"
        case "mean" | "sum" | "amax":
            return "short_rows" if inputs[0].shape and inputs[0].shape[-1] <= _SHORT_ROW else ""
        case "cat" | "stack":
            whole_rows = kernel.name == "cat" and inputs[0].shape[-1:] == out.shape[-1:]
            return "" if whole_rows else f"interleave_{32 if wide else 16}"
        case "_to_copy" | "clone" | "copy_":
            return _kind_of_copy([tensor for tensor in inputs if tensor.elements > 1] or [out], out)
        case _:
            return _kind_of_function(
                [tensor for tensor in inputs if tensor.elements > 1], out, inputs
            )


def _kind_of_copy(inputs: Sequence[Operand], out: Operand) -> str:
    source, flat = inputs[-1], all(tensor.contiguous for tensor in (*inputs, out))
    if source.dtype == out.dtype:
        return "" if flat else "copy_strided"
    if flat:
        return "widen" if out.itemsize > source.itemsize else ""
    return "widen_strided" if out.itemsize > _HALF_BYTES else "narrow_strided"


def _kind_of_function(operands: Sequence[Operand], out: Operand, inputs: Sequence[Operand]) -> str:
    if "complex" in out.dtype or not operands:
        return ""
    if len({tensor.dtype for tensor in inputs if tensor.shape}) > 1:
        return "mixed"
    if all(tensor.contiguous and tensor.shape == out.shape for tensor in (*operands, out)):
        return ""
    return "broadcast_32" if out.itemsize > _HALF_BYTES else "broadcast_16"


def work_of(kernel: Kernel, cycles: Mapping[str, float]) -> KernelWork:
    """Say what a kernel takes; `cycles` are those of kinds."""
    if kernel.name in _PRODUCTS or kernel.name == _ATTENTION or _makes_mask(kernel):
        return KernelWork(kernels=1)
    outputs = kernel.outputs[:1] if kernel.name == "native_layer_norm" else kernel.outputs
    tensors = kernel.inputs if kernel.name == "copy_" else (*kernel.inputs, *outputs)
    moved_bytes = float(sum(tensor.bytes for tensor in tensors))
    elements = max((tensor.elements for tensor in (*kernel.inputs, *kernel.outputs)), default=0)
    kind = kind_of(kernel)
    if not kind:
        return KernelWork(bytes=moved_bytes, kernels=1)
    if kind.endswith("_row"):
        elements //= kernel.inputs[0].shape[-1]
    spent_cycles = elements * cycles[kind]
    rate, bandwidth = _rates()
    if spent_cycles / rate < moved_bytes / bandwidth:
        return KernelWork(bytes=moved_bytes, kernels=1)
    return KernelWork(cycles=spent_cycles, kernels=1)


def _makes_mask(kernel: Kernel) -> bool:
    """Whether a kernel works on a mask of queries by keys: priced with the attention."""
    shapes = [tensor.shape for tensor in (*kernel.inputs, *kernel.outputs)]
    return any(len(shape) > 2 and shape[-1] == shape[-2] for shape in shapes)


class Known(NamedTuple):
    """What a program has: bytes and operations by function, and of products and copies."""

    functions: Mapping[str, tuple[float, float]]
    copies: tuple[float, float]
    products: float


def program_counts(model: str, height: int, width: int, frames: int, removed: int = 0) -> Known:
    """Count what one forward has in the planner's program for one GPU.

    removed : layers that the transformer is run without, of those that it has most of.
    """
    options = {"height": height, "width": width, "engine": "diffusers", "runtime": "torch-eager"}
    if frames > 1:
        options["frames"] = frames
    scenario = resolve(request_of(model, 1, options))
    max_count = max(block.count for block in scenario.model.blocks)
    blocks = (
        replace(block, count=max_count - removed) if block.count == max_count else block
        for block in scenario.model.blocks
    )
    cut_model = replace(scenario.model, blocks=tuple(blocks))
    program = lower(cut_model, scenario.workload, Plan(()))
    step = next(stage for stage in program.stages if stage.name == "denoise")
    forward = next(loop for loop in step.body if isinstance(loop, Loop))
    functions: dict[str, tuple[float, float]] = {}
    copied_bytes = copies = products = 0.0
    for op, loops in forward.nested():
        count = math.prod(float(loop.count) for loop in loops[1:])
        if isinstance(op, Pointwise):
            total_bytes, calls = functions.get(op.function, (0.0, 0.0))
            functions[op.function] = total_bytes + count * float(op.traffic), calls + count
        elif isinstance(op, Rearrange) and not op.view:
            copied_bytes, copies = copied_bytes + count * float(op.traffic), copies + count
        elif isinstance(op, Matmul):
            products += count
    return Known(functions, (copied_bytes, copies), products)


def table(kernels: Iterable[Kernel], program: Known) -> dict[str, tuple[float, float, float]]:
    """Divide the work of every place over the functions that stand for it.

    Returns by function bytes and cycles, over the bytes that go in and out, and kernels a call.
    """
    cycle_texts: Mapping[str, str] = tomllib.loads(files.kinds_text())["cycles"]
    cycles = {name: float(text) for name, text in cycle_texts.items()}
    places: dict[Place, KernelWork] = dict.fromkeys(FUNCTIONS, KernelWork())
    products = 0
    for kernel in kernels:
        products += kernel.name in _PRODUCTS
        if kernel.name not in _PRODUCTS and kernel.name != _ATTENTION:
            places[kernel.place] += work_of(kernel, cycles)
    extra = KernelWork(kernels=max(0.0, products - program.products))
    moved_bytes, copies = program.copies
    copy_work = KernelWork(
        cycles=moved_bytes / _COPY_BYTES * cycles["copy_strided"], kernels=copies
    )
    places["attention"] = places["attention"].less(copy_work) + extra
    for place, candidates in FUNCTIONS.items():
        if not any(name in program.functions for name in candidates):
            places[_FALLBACK_PLACES[place]] += places.pop(place)
    rows = {}
    for place, work in places.items():
        names = [name for name in FUNCTIONS[place] if name in program.functions]
        moved_bytes = sum(program.functions[name][0] for name in names)
        calls = sum(program.functions[name][1] for name in names)
        for name in names:
            shares = work.bytes / moved_bytes, work.cycles / moved_bytes, work.kernels / calls
            rows[name] = max(shares[0], _MIN_SHARE), shares[1], max(shares[2], _MIN_SHARE)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A request of a model that is counted, and where.

    layers : of each kind at most, of those whose shapes depend on numbers: they run on a CPU,
    without their products. 0 for all of them, on tensors without numbers.
    """

    model: str
    height: int
    width: int
    frames: int = 1
    layers: int = 0


SAMPLES: Final[Mapping[str, Sample]] = {
    "any": Sample(model="flux.1-dev", height=1024, width=1024),
    "flux2": Sample(model="flux.2-klein-4b", height=1024, width=1024),
    "wan": Sample(model="wan2.1-14b", height=480, width=832, frames=49),
    "wan2.2-5b": Sample(model="wan2.2-5b", height=704, width=1280, frames=121),
    "qwen-image": Sample(model="qwen-image", height=1024, width=1024),
    "sd3": Sample(model="sd3.5-large", height=1024, width=1024),
    "sd3.5-medium": Sample(model="sd3.5-medium", height=1024, width=1024),
    "ltx": Sample(model="ltx-video", height=512, width=704, frames=161),
    "ltx2": Sample(model="ltx-2", height=512, width=768, frames=121),
    "cogvideox": Sample(model="cogvideox-5b", height=480, width=720, frames=49),
    "cogvideox-2b": Sample(model="cogvideox-2b", height=480, width=720, frames=49),
    "mochi": Sample(model="mochi-1", height=480, width=848, frames=13, layers=2),
    "z-image": Sample(model="z-image", height=1024, width=1024),
    "hunyuanvideo": Sample(model="hunyuanvideo", height=544, width=960, frames=33),
    "hunyuanvideo-1.5": Sample(
        model="hunyuanvideo-1.5", height=240, width=416, frames=21, layers=2
    ),
    "cosmos3": Sample(model="cosmos3-nano", height=720, width=1280, frames=93),
    "cosmos": Sample(model="cosmos-predict2-2b", height=704, width=1280, frames=33),
    "cosmos-predict2.5-2b": Sample(model="cosmos-predict2.5-2b", height=704, width=1280, frames=33),
    "pixart": Sample(model="pixart-sigma", height=1024, width=1024),
    "sana": Sample(model="sana-1.6b", height=1024, width=1024),
    "lumina2": Sample(model="lumina2", height=512, width=512, layers=2),
}
"""What is counted for a family, or for a model whose code does otherwise."""


def launched_kernels(sample: Sample) -> list[Kernel]:
    """Run a transformer without its numbers and note its kernels."""
    import torch  # noqa: PLC0415  # an optional package

    from validate.torch.noted_kernels import noted_kernels  # noqa: PLC0415  # imports PyTorch

    family, config = models.transformer_config(sample.model)
    if sample.layers:
        config = models.shallow_config(config, sample.layers)
    device = torch.device("cpu" if sample.layers else "meta")
    size = {"height": sample.height, "width": sample.width, "frames": sample.frames}
    model_inputs = models.inputs(sample.model, config, device, **size)
    model = models.transformer(family, config, device)
    with torch.no_grad():
        return [
            Kernel(
                name=name,
                inputs=tuple(Operand(*operand) for operand in inputs),
                outputs=tuple(Operand(*operand) for operand in outputs),
                place=place_of(frames),
            )
            for name, inputs, outputs, frames in noted_kernels(
                lambda: model(**model_inputs.arguments)
            )
        ]


def rows_of(sample: Sample) -> dict[str, tuple[float, float, float]]:
    """Count a sample and divide it over the functions of its program."""
    depth = int(models.transformer_config(sample.model)[1].get("num_layers", 0))
    removed = depth - sample.layers if sample.layers else 0
    program = program_counts(sample.model, sample.height, sample.width, sample.frames, removed)
    return table(launched_kernels(sample), program)


def text_of(name: str, rows: Mapping[str, tuple[float, float, float]]) -> Iterator[str]:
    """Write a table of an engine's file; functions that are as fused ones are left out.

    >>> list(text_of("sd3", {"norm": (1.0, 0.32, 4.6), "gelu": (1.0, 0.0, 1.0)}))
    ['[habits.eager.sd3]', 'norm = { traffic = 1.00, cycles = 0.320, kernels = 4.6 }']
    """
    yield f'[habits.eager."{name}"]' if "." in name else f"[habits.eager.{name}]"
    for function, (traffic, cycles, kernels) in rows.items():
        if (round(traffic, 2), round(cycles, 3), round(kernels, 1)) == (1.0, 0.0, 1.0):
            continue
        numbers = (
            f"traffic = {traffic:.2f}, cycles = {cycles:.3f}, kernels = {max(kernels, 0.1):.1f}"
        )
        yield f"{function} = {{ {numbers} }}"


def main(names: Sequence[str]) -> int:
    """Print the tables of some families, or of all."""
    for name in names or SAMPLES:
        for line in text_of(name, rows_of(SAMPLES[name])):
            system.complain(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
