"""``planner export``: a plan of a model as a folder, for one backend."""

import json
from typing import Final

from planner.export.engines import TITLES, engine_folder
from planner.export.files import write_folder
from planner.export.tensorrt import tensorrt_folder
from planner.export.written import Written
from planner.request.request import Request
from planner.search.search import resolve, single_plan
from topology.base import InputError, unknown

BACKENDS: Final = ("tensorrt", *TITLES)


def files(
    request: Request,
    plan: str | None,
    backend: str,
    *,
    version: str = "",
    multi_device: bool = False,
    scales: str = "",
) -> dict[str, bytes]:
    """Return the files of a plan's folder by path.

    Parameters
    ----------
    plan : as a person writes it; None on one GPU.
    version, multi_device, scales : see `planner.export.tensorrt.tensorrt_folder`.

    Raises
    ------
    InputError
        If the backend is unknown, or anything in the request cannot be right.
    IllegalPlanError
        If the plan cannot run, does not fit, or is none that the backend can run.
    """
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if multi_device and backend != "tensorrt":
        raise InputError(f"--multi-device-attention: got --backend {backend}, wanted tensorrt")
    if version and backend != "tensorrt":
        raise InputError(f"--tensorrt-version: got --backend {backend}, wanted tensorrt")
    if backend == "tensorrt" and request.runtime != backend:
        raise InputError(f"runtime: got {request.runtime}, wanted tensorrt, as --backend has it")
    if backend in TITLES and request.engine not in ("", backend):
        raise InputError(f"engine: got {request.engine}, wanted {backend}, as --backend has it")
    if scales and backend != "tensorrt":
        raise InputError(f"--scales: got --backend {backend}, wanted tensorrt")
    scenario = resolve(request)
    found = single_plan(scenario, plan)
    if backend == "tensorrt":
        return tensorrt_folder(
            scenario, found, version=version, multi_device=multi_device, scales=scales
        )
    return engine_folder(scenario, found, backend)


def export(  # noqa: PLR0913  # as the command has options
    request: Request,
    plan: str | None,
    backend: str,
    output: str,
    *,
    force: bool = False,
    version: str = "",
    multi_device: bool = False,
    scales: str = "",
) -> Written:
    """Write the folder.

    Returns
    -------
    where it is, its files with their sizes, and what is expected of the plan

    Raises
    ------
    InputError
        As in `files`; and if the folder exists (`force` replaces it whole) or cannot be written.
    """
    found = files(request, plan, backend, version=version, multi_device=multi_device, scales=scales)
    return Written(
        folder=write_folder(found, output, force=force),
        sizes={path: len(contents) for path, contents in found.items()},
        document=json.loads(found["plan.json"]),
    )
