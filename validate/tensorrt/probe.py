"""What a host has: driver, GPUs, libraries and where they lie. Asks, and changes nothing."""

import ctypes
import platform
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from planner.tensorrt.runner.device import shown_version
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.library import load
from planner.tensorrt.runner.library import version as version_of
from topology.base.values import dataclass
from validate.plans import system

PACKAGES: Final = ("numpy", "nccl4py", "cuda-bindings", "mpi4py")
_MAJOR, _MINOR = 75, 76  # CUDA's numbers of the two parts of a compute capability


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGpu:
    """A GPU as the driver names it."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledLibrary:
    """A library that was found: its version, and where."""

    version: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a host has; empty texts and None where something is missing.

    processor, distribution : such as ``x86_64`` and ``Ubuntu 24.04``. mig : GPUs cut into slices.
    cuda : newest CUDA that the driver runs, such as ``13.0``. apart : pairs of GPUs that cannot
    reach each other's memory. searched : folders of LD_LIBRARY_PATH, in order.
    beside : NCCL that lies in a Python package, where TensorRT does not look.
    """

    system: str = ""
    processor: str = ""
    distribution: str = ""
    mig: int = 0
    driver: str = ""
    cuda: str = ""
    gpus: tuple[NamedGpu, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    tensorrt: InstalledLibrary | None = None
    tensorrt_error: str = ""
    nccl: InstalledLibrary | None = None
    searched: tuple[str, ...] = ()
    beside: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    shared_bytes: float = 0.0


def probe(environment: Mapping[str, str]) -> Host:
    """Look at the host this runs on.

    environment : LD_LIBRARY_PATH is read from it.
    """
    folders = tuple(
        folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder
    )
    cuda, gpus, apart = _cuda()
    library, error = _tensorrt()
    driver, mig = _driver_and_slices()
    return Host(
        system=f"{platform.machine()} {platform.system()} {platform.release()}",
        processor=platform.machine(),
        distribution=_distribution(),
        mig=mig,
        driver=driver,
        cuda=cuda,
        gpus=gpus,
        apart=apart,
        tensorrt=library,
        tensorrt_error=error,
        nccl=find_nccl(folders),
        searched=folders,
        beside=_package_nccl(),
        packages={name: text for name in PACKAGES if (text := _package(name))},
        shared_bytes=system.shared_memory(),
    )


def _open(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _distribution() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return f"{release.get('NAME', '')} {release.get('VERSION_ID', '')}".strip()


def _driver_and_slices() -> tuple[str, int]:
    """Version of the driver, and how many GPUs are cut into slices (MIG)."""
    nvml = _open("libnvidia-ml.so.1")
    text, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    if nvml is None or nvml.nvmlInit_v2():
        return "", 0
    failed = nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(96))
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    mig = sum(_is_cut(nvml, place) for place in range(count.value))
    nvml.nvmlShutdown()
    return "" if failed else text.value.decode(errors="replace"), mig


def _is_cut(nvml: ctypes.CDLL, place: int) -> bool:
    handle, current, pending = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(place), ctypes.byref(handle)):
        return False
    failed = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending))
    return not failed and bool(current.value)


def _cuda() -> tuple[str, tuple[NamedGpu, ...], tuple[tuple[int, int], ...]]:
    """Newest CUDA of the driver, GPUs, and pairs that are apart."""
    cuda, number = _open("libcuda.so.1"), ctypes.c_int()
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(number)):
        return "", (), ()
    newest = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number)):
        return newest, (), ()
    count = number.value
    gpus = tuple(_gpu(cuda, place) for place in range(count))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    return newest, gpus, tuple(pair for pair in pairs if not _can_reach(cuda, *pair))


def _gpu(cuda: ctypes.CDLL, place: int) -> NamedGpu:
    text, number = ctypes.create_string_buffer(96), ctypes.c_int()
    cuda.cuDeviceGetName(text, 96, place)
    parts = []
    for attribute in (_MAJOR, _MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, place)
        parts.append(number.value)
    return NamedGpu(name=text.value.decode(errors="replace"), capability=(parts[0], parts[1]))


def _can_reach(cuda: ctypes.CDLL, a: int, b: int) -> bool:
    number = ctypes.c_int()
    return not cuda.cuDeviceCanAccessPeer(ctypes.byref(number), a, b) and bool(number.value)


def _tensorrt() -> tuple[InstalledLibrary | None, str]:
    try:
        library = load(("tensorrt",))
    except RunError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # a broken installation says anything
        return None, f"{type(error).__name__}: {error}"
    return InstalledLibrary(version=version_of(library), path=str(library.__file__)), ""


def find_nccl(
    folders: Sequence[str], names: Sequence[str] = ("libnccl.so.2", "libnccl.so")
) -> InstalledLibrary | None:
    """Find NCCL as TensorRT does: each name along LD_LIBRARY_PATH, then where the system looks.

    Its version is "" where a file of the name is none, or cannot be loaded.
    """
    for name in names:
        for folder in folders:
            path = Path(folder) / name
            if path.exists():
                return _nccl(str(path))
        if _open(name) is not None:
            return _nccl(name)
    return None


def _nccl(path: str) -> InstalledLibrary:
    library, number = _open(path), ctypes.c_int()
    get_version = getattr(library, "ncclGetVersion", None)
    answered = get_version is not None and get_version(ctypes.byref(number)) == 0
    return InstalledLibrary(version=shown_version(number.value) if answered else "", path=path)


def _package_nccl() -> str:
    """Folder of NCCL in a Python package, "" where there is none."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    library_folders = [str(Path(place) / "lib") for place in places]
    return next((place for place in library_folders if (Path(place) / "libnccl.so.2").exists()), "")


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
