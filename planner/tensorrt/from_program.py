"""From the program of a rank to the networks of its engines, one for every part that runs alone.

============  ===========================================================================
forward       one forward of a denoising step, from the latents to the prediction
combine       what follows the forwards of a step: exchange, guidance, step of the sampler
text_tower    towers that do not depend on the step, run once; gives keys and values
prefill       a decoder's prompt
decode        one token behind those that a cache holds
============  ===========================================================================

Branches of guidance and replicas never meet inside a forward: the ranks along those axes have
communicators of their own, so that such plans need no groups within an engine. Stages of a pipeline
have networks of their own, cut where the program sends: the runner passes on what they give.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product as combinations
from typing import Final

from costmodels.collectives.operations import REDUCING_OPS, ROOTED_OPS
from costmodels.program import (
    Attention,
    Collective,
    Convolve,
    Depthwise,
    HeadProduct,
    LinearAttention,
    Loop,
    Matmul,
    Op,
    Pointwise,
    Program,
    Rearrange,
    SendReceive,
    Tensor,
)
from costmodels.program.rows import Index
from planner.engines.tables import allowed
from planner.lowering.conditioning import TURN
from planner.models.architecture import Numerics
from planner.request.plan import Plan
from planner.strategies import pp
from planner.tensorrt.attention import attend, linear_attention, with_multi_device_attention
from planner.tensorrt.cache import FILLED, PARTS, PROMPTED, room_of, seen_rows, written_rows
from planner.tensorrt.draft import Draft
from planner.tensorrt.elementwise import pointwise
from planner.tensorrt.moves import rearrange
from planner.tensorrt.network import Dtype, EngineNetwork, LatentGrid, Layer, Value
from planner.tensorrt.products import depthwise, product
from topology.base import IllegalPlanError
from topology.base.values import dataclass

SENT_PREFIX: Final = "sent."
"""Ahead of the name of what a stage hands to the next one, which reads it by its name alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a program is written down.

    compute : type of what the program holds in 16 bits; fp32 for comparing numbers.
    precision : of the matrix products. layers : of every block, all where zero.
    multi_device : attention over keys that stay where they are, in place of AllGather-KV.
    reaches : largest activation of each product, by the weight's name and layer, if measured.
    numerics : of the model, where its networks compute it. latents : of it, where they stand.
    """

    compute: Dtype = "bf16"
    precision: str = "bf16"
    layers: int = 0
    multi_device: bool = False
    reaches: Mapping[str, float] = field(default_factory=dict)
    numerics: Numerics | None = None
    latents: LatentGrid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """Operations that become one network, the axes whose ranks meet there, and what it gives.

    stage : of a pipeline that they are of, if of one.
    """

    name: str
    items: Sequence[Op | Loop]
    axes: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, str], ...] = ()
    stage: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """A section while it is written: values by the program's names, inputs and outputs so far.

    given : what it may read that it does not make.
    """

    draft: Draft
    recipe: Recipe
    given: frozenset[str]
    spread: frozenset[str]
    values: dict[str, Value] = field(default_factory=dict)
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)


def networks_of(
    program: Program, recipe: Recipe, stage: int | None = None
) -> tuple[EngineNetwork, ...]:
    """Write down every network of a program, in the order in which they first run.

    stage : whose program it is, of a pipeline.

    Raises `IllegalPlanError` if ranks pass messages that no TensorRT layer passes.
    """
    for reason in allowed().messages(Plan(program.axes)):
        raise IllegalPlanError(reason)
    spread: frozenset[str] = frozenset()
    if recipe.multi_device:
        program, spread = with_multi_device_attention(program)
    inner = tuple(axis for axis in program.axes if axis[0] in allowed().meets)
    return tuple(
        _network(program, section, recipe, spread) for section in _sections(program, inner, stage)
    )


def _sections(
    program: Program, inner: tuple[tuple[str, int], ...], place: int | None
) -> Iterator[_Section]:
    for stage in program.stages:
        if stage.name == "text_tower":
            yield _Section(name=stage.name, items=stage.body, axes=inner)
        elif stage.name == "denoise":
            forward, *step_ops = stage.body
            assert isinstance(forward, Loop)
            name = "forward" if place is None else f"forward.stage{place}"
            yield _Section(name=name, items=forward.body, axes=inner, stage=place)
            guidance_axes = tuple(axis for axis in program.axes if axis[0] == "cfg")
            kept_names = [program.output.name, *([TURN.name] if _counts_steps(step_ops) else [])]
            step_outputs = tuple((f"next.{name}", name) for name in kept_names)
            yield _Section(name="combine", items=step_ops, axes=guidance_axes, outputs=step_outputs)
        elif stage.name == "prefill" or (stage.name == "decode" and stage.count):
            section_outputs = ((program.output.name, program.output.name),)
            full_section = _Section(
                name=stage.name, items=stage.body, axes=inner, outputs=section_outputs
            )
            yield full_section if place is None else _stage_section(full_section, program, place)


def _stage_section(full_section: _Section, program: Program, place: int) -> _Section:
    """Cut out what one stage of a pipeline does in its own turn; the last one predicts a token."""
    turn, _, *scores = full_section.items
    assert isinstance(turn, Loop)
    is_last_stage = place == dict(program.axes)[pp.AXIS] - 1
    return replace(
        full_section,
        name=f"{full_section.name}.stage{place}",
        items=(*turn.body, *scores),
        outputs=full_section.outputs if is_last_stage else (),
        stage=place,
    )


def _counts_steps(items: Sequence[Op | Loop]) -> bool:
    """Whether a step is counted."""
    return any(TURN in item.writes for item in items if not isinstance(item, Loop))


def indices(axes: Sequence[tuple[str, int]]) -> tuple[Index, ...]:
    """Place along the axes of every rank of a communicator.

    >>> indices((("ulysses", 2), ("tp", 2)))[1]
    {'ulysses': 0, 'tp': 1}
    """
    names = [name for name, _ in axes]
    rank_indices = combinations(*(range(degree) for _, degree in axes))
    return tuple(dict(zip(names, numbers, strict=True)) for numbers in rank_indices)


def _network(
    program: Program, section: _Section, recipe: Recipe, spread: frozenset[str]
) -> EngineNetwork:
    section_kind = section.name.partition(".")[0]
    decodes, room = section_kind == "decode", room_of(program) if section_kind in PARTS else 0
    samples = int(program.output.shape[0])
    filled = Value(FILLED, (samples, 1, 1), "fp32") if room else None
    draft = Draft(
        recipe.compute,
        indices(section.axes),
        precision=recipe.precision,
        reaches=recipe.reaches,
        numerics=recipe.numerics,
        latents=recipe.latents,
        room=room,
        filled=filled,
        moving=decodes,
    )
    if section_kind == "forward" and recipe.latents is not None and recipe.latents.prompt:
        draft = replace(draft, prompted=Value(PROMPTED, (samples, 1, 1), "fp32"))
    readable = {tensor.name for tensor in program.inputs} | {"predictions", TURN.name}
    sent = [item for item in section.items if isinstance(item, SendReceive)]
    if section.stage:
        readable |= {op.out.name for op in sent}
    writing = _Writing(draft=draft, recipe=recipe, given=frozenset(readable), spread=spread)
    for count_input in filter(None, (filled, draft.prompted)):
        writing.inputs[count_input.name] = count_input
        draft.taken[count_input.name] = 1
    _write_items(writing, section.items)
    if filled is not None and decodes:
        unit = draft.scalar(1.0, filled, "one")
        writing.outputs[f"next.{FILLED}"] = draft.elementwise("SUM", filled, unit, f"{FILLED}.next")
    for op in sent if section.stage != dict(program.axes).get(pp.AXIS, 1) - 1 else ():
        value = _value_of(writing, op.x)
        writing.outputs[f"{SENT_PREFIX}{op.out.name}"] = draft.cast(
            value, draft.dtype(op.out), SENT_PREFIX
        )
    for output_name, name in section.outputs:
        writing.outputs[output_name] = writing.values[name]
    used = _needed_names(draft.layers, [value.name for value in writing.outputs.values()])
    layers = tuple(layer for layer in draft.layers if layer.name in used)
    return EngineNetwork(
        name=section.name,
        axes=section.axes,
        inputs=tuple(value for name, value in writing.inputs.items() if name in used),
        outputs=tuple(writing.outputs.items()),
        layers=layers,
        constants={name: array for name, array in draft.constants.items() if name in used},
        tables={name: array for name, array in draft.tables.items() if name in used},
        unused=tuple(layer for layer in draft.layers if layer.name not in used),
        stage=section.stage,
    )


def _needed_names(layers: Sequence[Layer], wanted: Sequence[str]) -> set[str]:
    """Names of layers, inputs and tables that what is wanted depends on.

    A layer that nobody needs (what the last text tower hands on) is not written: the builder would
    drop it, and fails where it is a collective.
    """
    needed = set(wanted)
    for layer in reversed(layers):
        if any(out.name in needed for out in layer.outputs):
            needed |= {layer.name, *layer.inputs}
    return needed


def _write_items(writing: _Writing, items: Sequence[Op | Loop]) -> None:
    """Write operations, every turn of a loop on its own."""
    for item in items:
        if not isinstance(item, Loop):
            _write(writing, item)
            continue
        limit = writing.recipe.layers if item.layers else 0
        count = min(int(item.count), limit) if limit else int(item.count)
        for turn in range(item.first, item.first + count):
            if item.layers:
                writing.draft.scope["layer"] = turn
            _write_items(writing, item.body)
        writing.draft.scope.clear()


def _write(writing: _Writing, op: Op) -> None:
    """Write one operation, and check that it makes the shapes that it says."""
    match op:
        case Convolve():
            return
        case HeadProduct():
            raise IllegalPlanError("latent attention is written in no layers of TensorRT")
        case SendReceive(axis=pp.AXIS):
            return
        case SendReceive():
            raise IllegalPlanError(
                f"{op.axis} needs point-to-point messages between ranks, which TensorRT has not"
            )
        case Collective(axis=pp.AXIS):  # the runner has passed it on
            results = [_value_of(writing, op.x)]
        case Rearrange(move="store" | "load" | "append" | "collect"):
            results = _kept_values(writing, op)
        case _:
            results = _computed(writing, op, [_value_of(writing, tensor) for tensor in op.reads])
    for tensor, value in zip(op.writes, results, strict=True):
        shape = tuple(int(size) for size in tensor.shape)
        assert value.shape == shape, f"{tensor.name}: wrote {value.shape}, said {shape}"
        writing.values[tensor.name] = value


def _computed(  # noqa: PLR0911  # one case an operation
    writing: _Writing, op: Op, inputs: list[Value]
) -> list[Value]:
    draft = writing.draft
    match op:
        case Matmul():
            return [product(draft, op, inputs, draft.scope.get("layer", 0))]
        case Attention():
            degree = len(draft.indices) if op.out.name in writing.spread else 1
            return [attend(draft, op, inputs, degree)]
        case LinearAttention():
            return [linear_attention(draft, op, inputs)]
        case Depthwise():
            return [depthwise(draft, op, inputs[0], draft.scope.get("layer", 0))]
        case Pointwise():
            return pointwise(draft, op, inputs)
        case Rearrange():
            return rearrange(draft, op, inputs)
        case Collective():
            return [_collective(draft, op, inputs[0])]
    raise AssertionError(f"no layer for {type(op).__name__}")


def _collective(draft: Draft, op: Collective, x: Value) -> Value:
    """Write a collective among the ranks along its axis."""
    return draft.add(
        "collective",
        (x,),
        tuple(int(size) for size in op.out.shape),
        x.dtype,
        op.out.name,
        operation=op.kind,
        reduce="SUM" if op.kind in REDUCING_OPS else "NONE",
        root=op.root if op.kind in ROOTED_OPS else -1,
        axis=op.axis,
        ranks=op.degree,
    )


def _value_of(writing: _Writing, tensor: Tensor) -> Value:
    """Return a value made earlier, or an input of the program."""
    if tensor.name not in writing.values:
        assert tensor.name in writing.given, f"{tensor.name} is read before it is made"
        writing.values[tensor.name] = _input(writing, tensor, tensor.name)
    return writing.values[tensor.name]


def _input(writing: _Writing, tensor: Tensor, name: str) -> Value:
    shape = tuple(int(size) for size in tensor.shape)
    value = Value(name, shape, writing.draft.dtype(tensor))
    writing.inputs[name] = value
    writing.draft.taken[name] = 1
    return value


def _kept_values(writing: _Writing, op: Rearrange) -> list[Value]:
    """Turn what is kept between networks into their inputs and outputs."""
    kept_tensor = op.inputs[0]
    if writing.draft.room:
        return _cached_values(writing, op)
    if op.move == "collect":
        value = _value_of(writing, kept_tensor)
        writing.outputs["prediction"] = value
        return [Value("predictions", tuple(int(n) for n in op.outputs[0].shape), value.dtype)]
    if op.move == "store":
        value = _value_of(writing, kept_tensor)
        writing.outputs[writing.draft.name(op.outputs[0].name)] = value
        return [value]
    return [_input(writing, kept_tensor, writing.draft.name(kept_tensor.name))]


def _cached_values(writing: _Writing, op: Rearrange) -> list[Value]:
    """Write what is new into a cache that has room; behind what is there, all of it is seen."""
    draft, new = writing.draft, _value_of(writing, op.inputs[-1])
    cache_tensor = op.outputs[0] if op.move == "store" else op.inputs[0]
    caches = []
    for part, cache_kind in zip(op.parts, ("keys", "values"), strict=True):
        shape = (new.shape[0], part.units, draft.room, part.size)
        cache_part = replace(cache_tensor, name=f"{cache_tensor.name}.{cache_kind}", shape=shape)
        caches.append(_input(writing, cache_part, draft.name(cache_part.name)))
    new_caches = written_rows(draft, caches, new, op.parts)
    for old_cache, new_cache in zip(caches, new_caches, strict=True):
        writing.outputs[f"new.{old_cache.name}"] = new_cache
    return [new if op.move == "store" else seen_rows(draft, new_caches, op.outputs[0].name)]
