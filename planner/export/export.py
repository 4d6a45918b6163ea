"""``planner export``: a plan of a model as a folder, for one backend."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, Unpack

from planner.advice.notes import misses
from planner.engines.tables import engines
from planner.export.engines import engine_folder
from planner.export.files import place_of, write_folder
from planner.export.tensorrt import FolderOptions, tensorrt_folder
from planner.recommendation import estimate_plan
from planner.request.request import RUNTIME, Request
from planner.scenario.scenario import resolve
from planner.tensorrt.runner.library import Document
from topology.base import InputError, ModelError, format_bytes, format_seconds, unknown
from topology.base.table import Table
from topology.base.values import dataclass

_TENSORRT_OPTIONS: Final = {
    "multi_device": "--multi-device-attention",
    "scales": "--scales",
}
ABOUT_FIELDS: Final = ("backend", "model", "plan", "gpus", "hardware", "precision")
"""What the folder is of, as its ``plan.json`` has it."""
EXPECTED_FIELDS: Final = ("runtime", "latency_s", "step_s", "memory_bytes")
"""What is expected of it, and of which runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFolder:
    """An exported folder on disk.

    sizes : bytes of each file by its path within the folder. document : its ``plan.json``.
    """

    folder: Path
    sizes: Mapping[str, int]
    document: Document

    @property
    def waits(self) -> float:
        """Seconds that a step waits for the host without a CUDA graph."""
        return float(self.document.get("enqueue", {}).get("exposed_s_a_step", 0.0))

    def line(self) -> str:
        """Say in one line what the folder holds."""
        size = format_bytes(sum(self.sizes.values()))
        line = f"{self.folder}: {len(self.sizes)} files, {size}; see README.md"
        if not self.waits:
            return line
        return (
            f"{line}; without a CUDA graph a step waits {format_seconds(self.waits)} for the host"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the folder as data."""
        return {
            "folder": str(self.folder),
            **{name: self.document[name] for name in ABOUT_FIELDS},
            **{name: self.document["expected"][name] for name in EXPECTED_FIELDS},
            "without_graph_s_a_step": self.waits,
            "total_bytes": sum(self.sizes.values()),
            "files": [{"path": path, "bytes": size} for path, size in sorted(self.sizes.items())],
        }

    def markdown(self) -> str:
        """Say for a document what the folder holds."""
        about, expected = self.document, self.document["expected"]
        summary = (
            f"**{about['model']} · {about['plan']}** on {about['gpus']} x {about['hardware']}, "
            f"{about['precision']}, {expected['runtime']}; expected: "
            f"{format_seconds(expected['latency_s'])} a request, "
            f"{format_seconds(expected['step_s'])} a step, "
            f"{format_bytes(expected['memory_bytes'])} on the fullest GPU"
        )
        rows = [[f"`{path}`", f"{size:,}"] for path, size in sorted(self.sizes.items())]
        table = Table(head=["file", "bytes"], rows=rows)
        return f"{self.line()}\n\n{summary}\n\n{table.markdown()}"


@cache
def backends() -> tuple[str, ...]:
    """Name what folders are written for: TensorRT, and engines with a line for all their models."""
    return (RUNTIME, *(engine.name for engine in engines().engines if engine.line.command))


def files(
    request: Request, plan: str | None, backend: str, **options: Unpack[FolderOptions]
) -> dict[str, bytes]:
    """Return the files of a plan's folder by path.

    plan : as a person writes it; None on one GPU. options : of the backend tensorrt alone.

    Raises `InputError` if the backend is unknown, or anything in the request cannot be right, and
    `IllegalPlanError` if the plan cannot run, does not fit, or is none that the backend can run;
    `ModelError` if it misses the times that are wanted.
    """
    if backend not in backends():
        raise unknown("backend", backend, backends())
    if backend != RUNTIME:
        return _engine_files(request, plan, backend, options)
    scenario = resolve(request)
    runtime = scenario.deployment.runtime.name
    if runtime != RUNTIME:
        raise InputError(f"runtime: got {runtime}, wanted {RUNTIME}, as --backend has it")
    if request.loaded:
        raise InputError(f"backend: got {RUNTIME} under a load, wanted an engine that serves")
    scenario = scenario.unmixed  # its runners set the variable
    return tensorrt_folder(scenario, estimate_plan(scenario, plan), **options)


def _engine_files(
    request: Request, plan: str | None, backend: str, options: FolderOptions
) -> dict[str, bytes]:
    """Return the files of an engine's folder, which says what to expect of that engine."""
    for name, option in _TENSORRT_OPTIONS.items():
        if options.get(name):
            raise InputError(f"{option}: got --backend {backend}, wanted {RUNTIME}")
    if request.tensorrt_version:
        raise InputError(f"tensorrt_version: got one for --backend {backend}, wanted none")
    if request.engine.partition("@")[0] not in ("", backend):
        raise InputError(f"engine: got {request.engine}, wanted {backend}, as --backend has it")
    scenario = resolve(replace(request, engine=request.engine or backend))
    engine = scenario.deployment.runner
    assert engine is not None
    estimate = estimate_plan(scenario, plan)
    for missed_target in misses(scenario.request, estimate.serving):
        raise ModelError(f"plan {estimate.name}: {missed_target}")
    return engine_folder(scenario, estimate, engine)


def export(
    request: Request,
    plan: str | None,
    backend: str,
    output: str,
    *,
    force: bool = False,
    **options: Unpack[FolderOptions],
) -> ExportedFolder:
    """Write the folder, and say where it is, what it holds and what is expected of the plan.

    Raises `InputError` as `files` does, and if the folder exists (`force` replaces it whole) or
    cannot be written.
    """
    place_of(output, force=force)  # ahead of the work
    contents = files(request, plan, backend, **options)
    return ExportedFolder(
        folder=write_folder(contents, output, force=force),
        sizes={path: len(content) for path, content in contents.items()},
        document=json.loads(contents["plan.json"]),
    )
