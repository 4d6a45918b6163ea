"""One rank of diffusers: ``python -m validate.engines.diffusers_rank --job FILE --output DIR``.

It takes the jobs of `validate.torch.worker`, and writes rows as it does: what differs is who runs a
case. A step is one forward of the transformer, with random weights.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from costmodels.kernel_names import class_of
from planner.models import read_model
from planner.request.plan import Plan
from planner.strategies import parse_plan
from topology.base import ModelError
from validate.engines import diffusers_models as models
from validate.launch import Place, begin
from validate.plans import system
from validate.plans.cases import Case
from validate.plans.job import Job
from validate.plans.measured import Measured, failed, line
from validate.plans.rank import run_rank

LIMIT_S: Final = 180.0
"""Longest that a case may take: making the weights, compiling, and seconds of repeats."""
LONG_S: Final = 20.0
"""What a case takes at least; none is begun where less is left."""
_BUDGET_S: Final = 1.5  # of repeats


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank; returns the exit code."""
    return run_rank("python -m validate.engines.diffusers_rank", work, argv)


def work(place: Place, job: Job, output: Path) -> int:
    """Run the cases of a job; returns how many were run."""
    import torch  # noqa: PLC0415  # an optional package

    from validate.torch.rendezvous import meet  # noqa: PLC0415

    deadline = time.monotonic() + job.seconds
    progress = begin(place)
    on_gpu = job.device == "cuda"
    device = torch.device("cuda", place.local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    rendezvous = meet(place, progress, device)
    case_count = 0
    for number, case in enumerate(job.cases):
        times_left = rendezvous.say(f"{number}: time left", deadline - time.monotonic())
        if cast(float, times_left[0]) <= LONG_S:
            break
        progress.phase(f"case {number + 1} ({case.key})", LIMIT_S)
        row = measure(case, device)
        case_count += 1
        if not place.rank:
            system.append_line(output / "results.jsonl", line(job.named(row)))
        if row.status != "done" and place.world > 1:
            raise ModelError(f"{case.key}: {row.note}")  # what other ranks wait for is lost
    progress.end()
    with suppress(RuntimeError):
        torch.distributed.destroy_process_group()
    rendezvous.leave()
    return case_count


def measure(case: Case, device: Any) -> Measured:  # noqa: ANN401  # of PyTorch
    """Make the weights, run a case and say what it took; a failure is a row with its reason.

    Sizes that are left out are the model's usual ones.
    """
    try:
        return _timed_row(case, device)
    except Exception as error:  # noqa: BLE001  # whatever an engine raises is its answer
        return failed(case, " ".join(f"{type(error).__name__}: {error}".split())[:400])


def _timed_row(case: Case, device: Any) -> Measured:  # noqa: ANN401
    import torch  # noqa: PLC0415  # an optional package

    from validate.torch.timing import clock_of, repeat, repeats_for  # noqa: PLC0415

    _clean(device)
    family, config = models.transformer_config(case.model)
    defaults = read_model(case.model).defaults
    torch.manual_seed(0)
    model_inputs = models.inputs(
        case.model,
        config,
        device,
        height=case.height or defaults.height,
        width=case.width or defaults.width,
        frames=case.frames or defaults.frames,
    )
    model = models.transformer(family, config, device)
    _spread(model, parse_plan(case.plan))
    _clean(device)  # whole weights, before they were cut, are no part of the peak
    compiled = _compile(model) if case.mode == "compile" else ""
    output: list[object] = []

    def forward() -> None:
        output[:] = [model(**model_inputs.arguments, return_dict=False)[0]]

    clock = clock_of(device)
    with torch.no_grad():
        first_s = repeat(forward, 1, clock).wall
        warm_s = min(repeat(forward, 1, clock).wall for _ in range(2))
        times = repeat(forward, repeats_for(_slowest_times([warm_s])[0], _BUDGET_S), clock)
        step_times = sorted(_slowest_times(times.each))
        row = Measured(
            case=case,
            status="done" if _is_finite(output) else "wrong",
            note=f"compiled: {compiled}" if compiled else "",
            step_s=step_times[len(step_times) // 2],
            mean_s=sum(step_times) / len(step_times),
            wall_s=times.wall,
            low_s=step_times[0],
            high_s=step_times[-1],
            repeats=len(step_times),
            compile_s=first_s if compiled else 0.0,
        )
        return _with_classes(_with_memory(row, device), forward, clock.wait)


def _spread(model: Any, plan: Plan) -> None:  # noqa: ANN401  # a module of diffusers
    """Cut the transformer over the ranks of a plan."""
    degrees = {f"{axis}_degree": degree for axis, degree in plan.axes}
    if not degrees:
        return
    import diffusers  # noqa: PLC0415  # an optional package

    if "ring_degree" in degrees:
        model.set_attention_backend("_native_cudnn")
    if "tp_degree" in degrees:
        config: Any = diffusers.TensorParallelConfig(**degrees)
    else:
        config = diffusers.ContextParallelConfig(**degrees)
    model.enable_parallelism(config=config)


def _compile(model: Any) -> str:  # noqa: ANN401  # a module of diffusers
    """Compile each block as diffusers recommends, and say by which list of classes."""
    if getattr(model, "_repeated_blocks", None):
        model.compile_repeated_blocks()
        return "repeated blocks"
    classes = [name for name in type(model).__dict__["_no_split_modules"] if name.endswith("Block")]
    for module in model.modules():
        if type(module).__name__ in classes:
            module.compile()
    return "blocks that are not split"


def _slowest_times(seconds: Sequence[float]) -> list[float]:
    """Give the slowest rank's times, and every rank the same ones."""
    import torch  # noqa: PLC0415  # an optional package
    import torch.distributed as dist  # noqa: PLC0415

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return list(seconds)
    place = "cuda" if dist.get_backend() == "nccl" else "cpu"
    values = torch.tensor(list(seconds), device=place, dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [float(value) for value in values.tolist()]


def _with_classes(row: Measured, run: Callable[[], None], wait: Callable[[], None]) -> Measured:
    """Add up what the kernels of one forward take, by the names they have."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    import torch  # noqa: PLC0415  # isort: skip

    if not torch.cuda.is_available():
        return row
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        wait()
    seconds: Counter[str] = Counter()
    attention: Counter[str] = Counter()
    for event in profiler.key_averages():
        kernel_s = event.self_device_time_total / 10**6  # from microseconds
        kind = class_of(event.key) or "pointwise"
        if kernel_s:
            seconds[kind] += kernel_s
        if kernel_s and kind == "attention":
            attention[event.key[:110]] += kernel_s
    longest = next((name for name, _ in attention.most_common(1)), "")
    return replace(row, classes_s=dict(seconds), classes_by="names of kernels", kernels=longest)


def _is_finite(output: list[object]) -> bool:
    import torch  # noqa: PLC0415  # an optional package

    sample: Any = output[0]
    while isinstance(sample, list | tuple):
        sample = sample[0]
    return bool(torch.isfinite(sample).all())


def _with_memory(row: Measured, device: Any) -> Measured:  # noqa: ANN401
    import torch  # noqa: PLC0415  # an optional package

    if device.type != "cuda":
        return row
    free, total = torch.cuda.mem_get_info(device)
    return replace(
        row,
        memory_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        process_bytes=total - free,
    )


def _clean(device: Any) -> None:  # noqa: ANN401
    """Forget the case before: its weights, its code, its peak."""
    import torch  # noqa: PLC0415  # an optional package

    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


if __name__ == "__main__":
    system.leave(main())
