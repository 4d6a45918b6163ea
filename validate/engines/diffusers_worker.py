"""Time diffusers, case by case: ``python -m validate.engines.diffusers_worker CASES ROWS``.

A file of cases goes in, a line of JSON a case comes out, written as soon as the case is over. The
process that is started watches; others, one a GPU, make the weights and run. After a case that
dies, or takes longer than the limit, the next one begins in fresh processes.
"""

import gc
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from costmodels.kernel_names import class_of
from planner.command.options import Parser
from topology.base import InputError, environment
from topology.base.values import dataclass
from validate.engines import diffusers_models as models
from validate.engines import files
from validate.launch import TimeLimits, begin, find_place, launch
from validate.plans import system

NEEDS: Final = {
    "torch": "pip install 'torch>=2.6,<3'",
    "diffusers": "pip install 'diffusers>=0.42,<1'",
}
WORKER: Final = ("-m", "validate.engines.diffusers_worker")
BAD_INPUT: Final = 2
_BUDGET: Final = 1.5  # seconds of repeats
_PLANS: Final = ("single", "ulysses", "ring", "tp")
_MODES: Final = ("eager", "compile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One forward to time.

    plan : ``single``, or ``ulysses``, ``ring`` or ``tp`` with its degree. mode : eager or compile.
    attention : backend of diffusers, empty for what it takes by itself. layers : of each kind at
    most; 0 for all.
    """

    model: str
    height: int
    width: int
    frames: int = 1
    plan: str = "single"
    mode: str = "eager"
    attention: str = ""
    layers: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"single|({'|'.join(_PLANS[1:])})[0-9]+", self.plan):
            raise InputError(f"plan: got {self.plan!r}, wanted single or one of {_PLANS} with GPUs")
        if self.mode not in _MODES:
            raise InputError(f"mode: got {self.mode!r}, wanted one of {_MODES}")

    @property
    def ranks(self) -> int:
        return int(self.plan.lstrip("abcdefghijklmnopqrstuvwxyz") or 1)

    def to_dict(self) -> dict[str, object]:
        """Describe the case as the rows of other plans do."""
        named = {key: value for key, value in asdict(self).items() if value not in ("", 0, False)}
        return {**named, "batch": 1, "precision": "bf16", "stage": "denoise", "engine": "diffusers"}


def read_cases(path: Path) -> list[Forward]:
    """Read cases from a JSON list of objects."""
    try:
        return [Forward(**entry) for entry in json.loads(files.read(path))]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}, wanted a list of cases") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}, wanted a list of cases") from None


def measure(case: Forward, device: Any, machine: str) -> dict[str, object]:  # noqa: ANN401
    """Make the weights, run a case and say what it took; a failure is a row with its reason."""
    row: dict[str, object] = {"case": case.to_dict(), "status": "failed", "note": ""}
    begun = time.perf_counter()
    try:
        row |= {**_timed(case, device), "status": "done"}
    except Exception as error:  # noqa: BLE001  # whatever an engine raises is its answer
        row["note"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:400]
    return {**row, "machine": machine, "case_s": round(time.perf_counter() - begun, 2)}


def _timed(case: Forward, device: Any) -> dict[str, object]:  # noqa: ANN401
    import torch  # noqa: PLC0415  # an optional package

    from validate.torch.timing import clock_of, repeat, repeats_for  # noqa: PLC0415

    _clean(device)
    family, config = models.configured(case.model)
    if case.layers:
        config = models.shallow(config, case.layers)
    torch.manual_seed(0)
    made = models.inputs(
        case.model, config, device, height=case.height, width=case.width, frames=case.frames
    )
    model = models.transformer(family, config, device)
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    if case.attention:
        model.set_attention_backend(case.attention)
    _spread(model, case)
    _clean(device)  # whole weights, before they were cut, are no part of the peak
    compiled = _compile(model) if case.mode == "compile" else ""
    output: list[object] = []

    def forward() -> None:
        output[:] = [model(**made.arguments, return_dict=False)[0]]

    clock = clock_of(device)
    with torch.no_grad():
        first = _seconds(forward, clock.wait)
        warm = min(_seconds(forward, clock.wait) for _ in range(2))
        count = repeats_for(_slowest([warm])[0], _BUDGET)
        times = repeat(forward, count, clock)
        each = sorted(_slowest(times.each))
        row: dict[str, object] = {
            "step_s": each[len(each) // 2],
            "mean_s": sum(each) / len(each),
            "wall_s": times.wall,
            "low_s": each[0],
            "high_s": each[-1],
            "repeats": count,
            "launch_s": min(_launched(forward, clock.wait) for _ in range(3)),
            "first_s": first,
            "compiled": compiled,
            "finite": _finite(output),
            "weights_bytes": weights,
            "tokens": made.tokens,
            **_memory(device),
        }
        row |= _by_class(forward, clock.wait)
    return _short(row)


def _spread(model: Any, case: Forward) -> None:  # noqa: ANN401  # a module of diffusers
    """Cut the transformer over the ranks of a plan."""
    if case.plan == "single":
        return
    import diffusers  # noqa: PLC0415  # an optional package

    if case.plan.startswith("tp"):
        from diffusers import TensorParallelConfig  # noqa: PLC0415

        config: Any = TensorParallelConfig(tp_degree=case.ranks)
    else:
        degree = f"{case.plan.rstrip('0123456789')}_degree"
        config = diffusers.ContextParallelConfig(**{degree: case.ranks})
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


def _seconds(run: Callable[[], None], wait: Callable[[], None]) -> float:
    wait()
    begun = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - begun


def _launched(run: Callable[[], None], wait: Callable[[], None]) -> float:
    """Time the host alone over a forward, from an idle device to the last launch."""
    wait()
    begun = time.perf_counter()
    run()
    took = time.perf_counter() - begun
    wait()
    return took


def _slowest(seconds: Any) -> list[float]:  # noqa: ANN401  # numbers of this rank
    """Give the slowest rank's times, and every rank the same ones."""
    import torch  # noqa: PLC0415  # an optional package
    import torch.distributed as dist  # noqa: PLC0415

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return list(seconds)
    place = "cuda" if dist.get_backend() == "nccl" else "cpu"
    values = torch.tensor(list(seconds), device=place, dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [float(value) for value in values.tolist()]


def _by_class(run: Callable[[], None], wait: Callable[[], None]) -> dict[str, object]:
    """Add up what the kernels of one forward take, by the names they have."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    import torch  # noqa: PLC0415  # isort: skip

    if not torch.cuda.is_available():
        return {}
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        wait()
    seconds: Counter[str] = Counter()
    named: Counter[str] = Counter()
    launched = 0
    for event in profiler.key_averages():
        took = event.self_device_time_total / 10**6  # from microseconds
        if not took:
            continue
        kind = class_of(event.key) or "pointwise"
        seconds[kind] += took
        launched += event.count
        named[f"{kind}: {event.key[:110]}"] += took
    attention = next((key for key, _ in named.most_common() if key.startswith("attention")), "")
    return {
        "classes_s": dict(seconds),
        "classes_by": "names of kernels",
        "launches": launched,
        "kernels": attention.removeprefix("attention: "),
        "longest": dict(named.most_common(8)),
    }


def _finite(output: list[object]) -> bool:
    import torch  # noqa: PLC0415  # an optional package

    sample: Any = output[0]
    while isinstance(sample, list | tuple):
        sample = sample[0]
    return bool(torch.isfinite(sample).all())


def _memory(device: Any) -> dict[str, object]:  # noqa: ANN401
    import torch  # noqa: PLC0415  # an optional package

    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "memory_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
        "process_bytes": total - free,
    }


def _clean(device: Any) -> None:  # noqa: ANN401
    """Forget the case before: its weights, its code, its peak."""
    import torch  # noqa: PLC0415  # an optional package

    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _short(row: Mapping[str, object]) -> dict[str, object]:
    """Round to six digits, as numbers beyond are noise."""

    def rounded(value: object) -> object:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {key: rounded(item) for key, item in value.items()}
        return value

    return {key: rounded(value) for key, value in row.items()}


def _machine(device: Any) -> str:  # noqa: ANN401
    import diffusers  # noqa: PLC0415  # an optional package
    import torch  # noqa: PLC0415

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else "none"
    cudnn = torch.backends.cudnn.version()
    return (
        f"{name}, torch {torch.__version__}, cuda {torch.version.cuda}, cudnn {cudnn}, "
        f"nccl {nccl}, diffusers {diffusers.__version__}"
    )


def run_rank(cases: list[Forward], rows: Path, limit: float) -> None:
    """Run cases on this process's GPU, and let rank 0 append the rows."""
    import torch  # noqa: PLC0415  # an optional package
    import torch.distributed as dist  # noqa: PLC0415

    place = find_place(environment())
    progress = begin(place)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", place.local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if place.world > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    machine = f"{place.world} x {_machine(device)}"
    for case in cases:
        progress.phase(f"{case.model} {case.plan} {case.mode}", limit)
        row = measure(case, device, machine)
        if place.rank == 0:
            system.append_line(rows, json.dumps(row, separators=(",", ":")))
    progress.end()
    if place.world > 1:
        dist.destroy_process_group()


def supervise(cases: list[Forward], rows: Path, *, ranks: int, limit: float) -> None:
    """Run cases in processes of their own, and begin anew after one that hangs or dies."""
    left, path = cases, rows.with_suffix(".left.json")
    words = [sys.executable, *WORKER, str(path), str(rows), "--inside", "--limit", str(limit)]
    while left:
        before = system.read(rows).count("\n")
        system.write(path, json.dumps([asdict(case) for case in left]))
        limits, logs = TimeLimits(start_s=limit, phase_s=limit), rows.with_suffix(".logs")
        ended = launch(
            ranks, words, limits=limits, env=system.children(), log_dir=logs, tell=system.complain
        )
        files.remove(path)
        done = system.read(rows).count("\n") - before
        if done < len(left):
            row = {"case": left[done].to_dict(), "status": "failed", "note": ended.message}
            system.append_line(rows, json.dumps(row, separators=(",", ":")))
            done += 1
        left = left[done:]


def main() -> int:
    """Read the command line and run; returns the exit code."""
    try:
        _run()
    except InputError as error:
        system.complain(f"diffusers_worker: {error}")
        return BAD_INPUT
    return 0


def _run() -> None:
    parser = Parser(prog="python -m validate.engines.diffusers_worker")
    parser.add_argument("cases", type=Path, help="JSON list of cases")
    parser.add_argument("rows", type=Path, help="file that a line of JSON a case is added to")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a case may take")
    parser.add_argument("--inside", action="store_true", help="be a rank, as under torchrun")
    arguments = parser.parse_args()
    cases = read_cases(arguments.cases)
    for package, install in NEEDS.items():
        if find_spec(package) is None:
            raise InputError(f"{package}: got none, wanted it: {install}")
    if arguments.inside or "RANK" in environment():
        run_rank(cases, arguments.rows, arguments.limit)
        return
    for ranks in sorted({case.ranks for case in cases}):
        group = [case for case in cases if case.ranks == ranks]
        supervise(group, arguments.rows, ranks=ranks, limit=arguments.limit)


if __name__ == "__main__":
    raise SystemExit(main())
