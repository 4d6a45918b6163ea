"""What a whole diffusion model has around its layers: embeddings of the step and the prompt.

Little work that changes few messages: it is left out of programs that are priced, and is in those
that networks of a checkpoint's weights are written from.
"""

from costmodels.program import Part, Pointwise, Tensor, Weight
from costmodels.program.emit import Emits, collective, concat_features, matmul, move, pointwise
from planner.lowering.work import RankWork, context_name
from planner.models import Embedding, Tower
from planner.strategies import tp

_NUMBER = 4
"""Bytes of numbers that would be wrong in 16 bits, such as that of a step."""
VECTORS = "modulations"
"""Shifts, scales and gates of a step, before a layer adds its own."""
TURN = Tensor("turn", (1, 1, 1), _NUMBER)
"""Number of the step that runs."""
STEP_INPUTS = ("time", "change", "scale")
"""Inputs that all forwards of a step share: a row each step, but for the scale of guidance."""


def row_name(width: int) -> str:
    """Name the row that modulates norms."""
    return f"conditioning{width}"


def condition_inputs(work: RankWork) -> list[Tensor]:
    """List what a step is told, and the prompt's rows before the model's own projection."""
    numerics = work.numerics
    if numerics is None:
        return []
    inputs = [_condition_input(work, spec) for spec in numerics.conditions]
    inputs.append(per_step_input(work, "change"))
    if work.share.passes * work.share.guidance > 1:
        inputs.append(scale_of(work))
    return [*inputs, *(_rows(work, spec) for spec in numerics.rows)]


def per_step_input(work: RankWork, name: str) -> Tensor:
    """Name an input that has a number for each step."""
    steps = int(work.workload.steps)
    return Tensor(name, (work.share.batch, steps, 1), _NUMBER)


def scale_of(work: RankWork) -> Tensor:
    """Name how far guidance goes beyond what is predicted without the prompt."""
    return Tensor("scale", (work.share.batch, 1, 1), _NUMBER)


def step_value(work: RankWork, name: str) -> Emits[Tensor]:
    """Emit the number of the step that runs, of an input that has one for each."""
    step_values = per_step_input(work, name)
    out = Tensor(f"{name}.now", (step_values.shape[0], 1, 1), _NUMBER)
    return (yield from move("turn", [step_values, TURN], out, axis="", degree=1))


def _condition_input(work: RankWork, spec: Embedding) -> Tensor:
    if spec.name in STEP_INPUTS:
        return per_step_input(work, spec.name)
    return Tensor(spec.name, (work.share.batch, 1, spec.features), _NUMBER if spec.waves else 2)


def rows_of(work: RankWork, stream: str) -> Embedding | None:
    """Find what is made of a stream's rows before any layer reads them."""
    numerics = work.numerics
    embeddings = () if numerics is None else numerics.rows
    return next((spec for spec in embeddings if spec.name == stream), None)


def _rows(work: RankWork, spec: Embedding) -> Tensor:
    tokens = work.workload.length(spec.name)
    return Tensor(f"input.{spec.name}", (work.share.batch, tokens, spec.features))


def conditions(work: RankWork, hidden: int) -> Emits[None]:
    """Emit the row of a step, what it is projected to once, and rows that are read by all layers.

    hidden : features of the latents' rows.
    """
    numerics = work.numerics
    if numerics is None:
        return
    row: Tensor | None = None
    for spec in numerics.conditions:
        value = _condition_input(work, spec)
        if spec.name in STEP_INPUTS:
            value = yield from step_value(work, spec.name)
        embedded_row = yield from embedded(spec, value, hidden, f"{spec.name}.row")
        row = (
            embedded_row
            if row is None
            else (yield from pointwise("residual", (row, embedded_row), "rows"))
        )
    if row is not None:
        yield from _named_row(work, row)
    for stream in work.model.streams:
        rows = rows_of(work, stream.name)
        if rows is not None and stream.static:
            name = context_name(work.model, stream.name, hidden)
            yield from embedded(rows, _rows(work, rows), hidden, name)


def _named_row(work: RankWork, row: Tensor) -> Emits[None]:
    """Emit the row under the name by which layers read it, and vectors that they all share."""
    numerics, hidden = work.numerics, int(row.shape[-1])
    assert numerics is not None
    if numerics.timed == "layers":
        yield from pointwise("silu", (row,), row_name(hidden))
        return
    yield from pointwise("cast", (row,), row_name(hidden))
    if numerics.timed == "rows":
        return
    active = yield from pointwise("silu", (row,), "time.active")
    weight = Weight(
        name="time.mod", rows=(Part(hidden),), columns=(Part(6 * hidden),), layered=False
    )
    yield from matmul(active, weight, VECTORS)


def embedded(spec: Embedding, given: Tensor, hidden: int, name: str) -> Emits[Tensor]:
    """Emit an embedding of so many features."""
    x, features = given, spec.features
    if spec.waves:
        features = spec.waves
        x = Tensor(f"{spec.name}.waves", (*given.shape[:-1], features))
        yield Pointwise(
            function="waves", inputs=(given,), outputs=(x,), size=features, factor=spec.factor
        )

    def weight(part: str, rows: int, columns: int) -> Weight:
        weight_name = f"{spec.name}.{part}" if part else spec.name
        return Weight(name=weight_name, rows=(Part(rows),), columns=(Part(columns),), layered=False)

    if not spec.activation:
        return (yield from matmul(x, weight("", features, hidden), name))
    if spec.epsilon:
        x = yield from _normed(spec, x, f"{spec.name}.before")
    width = spec.inner or hidden
    inner = yield from matmul(x, weight("up", features, width), f"{spec.name}.inner")
    active = yield from pointwise(spec.activation, (inner,), f"{spec.name}.active")
    down = weight("down", width, hidden)
    if not spec.epsilon:
        return (yield from matmul(active, down, name))
    out = yield from matmul(active, down, f"{spec.name}.made")
    h = yield from _normed(spec, out, f"{spec.name}.after")
    return (yield from pointwise("cast", (h,), name))


def _normed(spec: Embedding, x: Tensor, name: str) -> Emits[Tensor]:
    out = Tensor(name, x.shape)
    yield Pointwise(function="norm", inputs=(x,), outputs=(out,), epsilon=spec.epsilon)
    return out


def own_vectors(work: RankWork, tower: Tower, name: str) -> Emits[Tensor | None]:
    """Emit a layer's shifts, scales and gates, where it adds a row of its own to all layers'."""
    numerics = work.numerics
    if numerics is None or numerics.timed != "tables":
        return None
    shared = Tensor(VECTORS, (work.share.batch, 1, 6 * tower.hidden))
    return (yield from _offset(shared, f"{name}.mod"))


def _offset(x: Tensor, name: str) -> Emits[Tensor]:
    out = Tensor(name, x.shape, _NUMBER)
    yield Pointwise(function="offset", inputs=(x,), outputs=(out,))
    return out


def timed_rows(work: RankWork, x: Tensor) -> Emits[Tensor]:
    """Emit the latents' rows with that of the step added, where a model adds it to them."""
    numerics = work.numerics
    if numerics is None or numerics.timed != "rows":
        return x
    row = Tensor(row_name(int(x.shape[-1])), (x.shape[0], 1, x.shape[-1]))
    return (yield from pointwise("residual", (x, row), x.name))


def final_norm(work: RankWork, x: Tensor) -> Emits[Tensor]:
    """Emit the last norm, modulated by the step where the model's is."""
    numerics, hidden = work.numerics, int(x.shape[-1])
    if numerics is None or numerics.timed not in ("layers", "tables"):
        return (yield from pointwise("norm", (x,), "final"))
    row = Tensor(row_name(hidden), (x.shape[0], 1, hidden))
    if numerics.timed == "layers":
        weight = Weight(
            name="final.mod", rows=(Part(hidden),), columns=(Part(2 * hidden),), layered=False
        )
        vectors = yield from matmul(row, weight, "final.mod")
    else:
        doubled_row = yield from concat_features((row, row), "final.both")
        vectors = yield from _offset(doubled_row, "final.mod")
    return (yield from pointwise("modulated_norm", (x, vectors), "final"))


def latent_features(work: RankWork, x: Tensor) -> Emits[Tensor]:
    """Emit predictions whose features stand as those of the latents do."""
    numerics = work.numerics
    if numerics is None or numerics.points == 1:
        return x
    out = Tensor(f"{x.name}.latent", x.shape)
    return (yield from move("interleave", [x], out, axis="", degree=numerics.points))


def normed_across(
    work: RankWork, x: Tensor, heads: tuple[int, int], size: int, name: str
) -> Emits[Tensor]:
    """Emit the norm of all heads of queries together, and of keys, where the model has it.

    heads : of queries and keys that are here; their sums of squares are added up over ranks.
    """
    numerics = work.numerics
    if numerics is None or numerics.normed != "all":
        return x
    groups = sum(count > 0 for count in heads)
    sums = Tensor(f"{name}.squares", (*x.shape[:2], groups), _NUMBER)
    yield Pointwise(function="squares", inputs=(x,), outputs=(sums,), heads=heads, size=size)
    degree = work.share.tensor
    total_sums = yield from collective("all_reduce", sums, tp.AXIS, degree, f"{name}.sums")
    out = Tensor(name, x.shape)
    yield Pointwise(
        function="across_norm",
        inputs=(x, total_sums),
        outputs=(out,),
        heads=heads,
        size=size,
        place=degree,
    )
    return out
