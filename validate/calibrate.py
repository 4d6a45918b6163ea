"""``planner calibrate``: look, measure, fit, write a profile, and say how good it is."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from planner.models.fields import parse
from topology.base import InputError, place, write_new
from topology.base.values import dataclass
from validate.fit.profile import Measurements, fit_profile, source_of
from validate.fit.report import Calibrated, failures_of
from validate.fit.rows import read_rows, whole_lines
from validate.fit.text import to_toml

QUICK_MINUTES: Final = 3.0
MINUTES: Final = 10.0
_MOST_RANKS: Final = 4096
FITTING_MINUTES: Final = 0.5  # minutes kept for the start of the workers and for the fit


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTask:
    """What is asked for.

    output : the profile to write; its measurements go to a folder beside it, of the same name
    with ``.measurements``. gpus : how many to measure together, 0 for all. minutes : 0 for as
    many as `quick` says. small : a few sizes that suit a CPU, for tests.
    """

    output: Path
    quick: bool = False
    resume: bool = False
    gpus: int = 0
    minutes: float = 0.0
    device: str = "cuda"
    small: bool = False

    @property
    def folder(self) -> Path:
        """Where the measurements are."""
        return self.output.with_name(f"{self.output.stem}.measurements")


def calibrate(task: CalibrationTask, say: Callable[[str], None]) -> Calibrated:
    """Measure this machine and write its profile.

    Raises InputError if something is missing, in the way, or too little could be measured.

    say : tells a person how it goes.
    """
    from validate.bench import system  # noqa: PLC0415  # only where it measures

    check_paths(task)
    rows_file, manifest_file = task.folder / system.ROWS, task.folder / system.MANIFEST
    if task.folder.exists() and not task.folder.is_dir():
        raise InputError(f"{task.folder}: no folder, wanted measurements from before")
    if rows_file.exists():  # damaged ones are refused before anything is started
        read_rows(whole_lines(system.read(rows_file)), str(rows_file))
    if manifest_file.exists():
        _manifest_fields(system.read(manifest_file))
    if importlib.util.find_spec("torch") is None:
        raise InputError("calibrate: got no PyTorch, wanted it: pip install 'torch>=2.6,<3'")
    ranks = task.gpus or 1
    if task.device == "cuda":
        gpus = check_gpus(
            system.ask("nvidia-smi", "--query-gpu=name,mig.mode.current", "--format=csv,noheader")
        )
        ranks = _rank_count(task.gpus, len(gpus))
        if ranks == 1:
            say("calibrate: one GPU: collectives, copies and overlap are skipped")
    minutes = task.minutes or (QUICK_MINUTES if task.quick else MINUTES)
    system.run(
        system.BenchSession(
            ranks=ranks,
            folder=task.folder,
            minutes=max(0.1, minutes - FITTING_MINUTES) if task.device == "cuda" else minutes,
            device=task.device,
            tiers=1 if task.quick else 3,
            small=task.small,
        )
    )
    return finish(task, system.read(rows_file), system.read(manifest_file))


def finish(task: CalibrationTask, rows: str, manifest: str) -> Calibrated:
    """Fit a profile to the text of measured rows, and write it where nothing is yet.

    Raises InputError if the rows or the manifest are damaged, or too few; or the output exists.
    """
    measurements = Measurements(
        rows=read_rows(whole_lines(rows), str(task.folder / "rows.jsonl")),
        manifest=_manifest_fields(manifest),
        source=source_of(f"{task.folder.name}/rows.jsonl", rows),
    )
    try:
        profile = fit_profile(measurements)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = f"{type(error).__name__} {error!s:.80}"  # rows and manifests are read as they come
        raise InputError(f"{task.folder}: rows that nothing can be fitted to: {why}") from None
    write_new(task.output, to_toml(profile))
    failures = failures_of(measurements.rows)
    return Calibrated(profile=profile, output=task.output, failures=failures)


def check_paths(task: CalibrationTask) -> None:
    """Refuse to write over anything."""
    if place(str(task.output), "a profile to write").exists():
        raise InputError(f"--output {task.output}: exists already, wanted a new name")
    place(str(task.folder), "a profile to write")
    if not task.output.parent.is_dir():
        raise InputError(f"--output {task.output}: no folder {task.output.parent}")
    if task.folder.exists() and not task.resume:
        raise InputError(
            f"{task.folder}: measurements from before, wanted --resume or another --output"
        )


def check_gpus(listed: str) -> list[str]:
    """Return the names of the GPUs that nvidia-smi lists, if they can be measured together.

    Raises InputError if GPUs are missing, differ, or one is cut into slices.

    >>> check_gpus("NVIDIA L4, [N/A]")
    ['NVIDIA L4']
    """
    pairs = [line.rpartition(",") for line in listed.splitlines() if line.strip()]
    names = [name.strip() for name, _, _ in pairs]
    if not names:
        raise InputError("calibrate: nvidia-smi lists no GPU, wanted one or more")
    if len(set(names)) > 1:
        raise InputError(f"calibrate: got different GPUs ({', '.join(names)}), wanted one kind")
    if any(mode.strip() == "Enabled" for _, _, mode in pairs):
        raise InputError("calibrate: got GPUs cut into MIG slices, wanted whole ones")
    return names


def _rank_count(requested: int, available: int) -> int:
    if requested > available:
        raise InputError(f"calibrate: got {available} GPUs, wanted {requested}")
    return requested or available


def _manifest_fields(text: str) -> Mapping[str, object]:
    """Read a manifest: it has its machine, GPUs with names, and software."""
    fields = parse(text, "manifest")
    machine, _ = fields.table("machine"), fields.table("software")
    gpus = () if machine is None else machine.values.get("gpus")
    if machine is None or not isinstance(gpus, list) or not all(map(_has_name, gpus)):
        raise fields.refused("machine", fields.values.get("machine"), "GPUs with their names")
    machine.integer("ranks", high=_MOST_RANKS, default=1)
    return fields.values


def _has_name(gpu: object) -> bool:
    return isinstance(gpu, dict) and isinstance(gpu.get("name"), str)
