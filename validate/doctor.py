"""``planner doctor``: whether a machine can run multi-device engines, and what it lacks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from planner.engines.tables import allowed
from planner.engines.tensorrt_table import Allowed, dotted
from planner.tensorrt.runner.library import numbers
from topology.base import format_bytes
from validate.tensorrt.probe import Machine, probe

State = Literal["ok", "watch", "missing"]
SHOWN: Final = {"ok": "ok", "watch": "watch", "missing": "MISSING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. advice : what to do about it."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks; `ok` where nothing is missing."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(one.state != "missing" for one in self.checks)

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {"ok": self.ok, "checks": [asdict(one) for one in self.checks]}

    def rows(self) -> list[list[str]]:
        """Rows of a table: name, state, what was found, what to do."""
        return [[one.name, SHOWN[one.state], one.found, one.advice] for one in self.checks]

    def text(self) -> str:
        """Lines as a terminal shows them."""
        lines = []
        for name, state, found, advice in self.rows():
            lines.append(f"{state:<9}{name:<24}{found}")
            lines += [f"{'':<33}{advice}"] if advice else []
        return "\n".join(lines)


def doctor(environment: Mapping[str, str]) -> Diagnosis:
    """Look at the machine this runs on."""
    return diagnose(probe(environment))


def diagnose(machine: Machine) -> Diagnosis:
    """Judge a machine by what TensorRT needs.

    >>> [one.name for one in diagnose(Machine()).checks if one.state == "missing"]
    ['driver', 'GPUs', 'TensorRT', 'NCCL', 'nccl4py', 'cuda-bindings']
    """
    known = allowed()
    return Diagnosis(
        (
            _system(machine, known),
            _driver(machine, known),
            *_gpus(machine, known),
            *_slices(machine, known),
            _tensorrt(machine, known),
            _nccl(machine, known),
            *_packages(machine, known),
            *_shared(machine, known),
        )
    )


def _system(machine: Machine, known: Allowed) -> Check:
    """Judge the system by those that NVIDIA names; others often do."""
    found = ", ".join(filter(None, (machine.system, machine.distribution))) or "unknown"
    platform = known.platforms.get(machine.processor)
    if not machine.processor or (platform and _named(machine.distribution, platform.systems)):
        return Check(name="system", state="ok", found=found)
    if platform:
        advice = f"collectives are documented for {', '.join(platform.systems)}"
        return Check(name="system", state="watch", found=found, advice=advice)
    wanted = [f"{name} {', '.join(one.systems)}" for name, one in known.platforms.items()]
    advice = f"collectives are documented for {'; '.join(wanted)}"
    return Check(name="system", state="missing", found=found, advice=advice)


def _named(distribution: str, known: Sequence[str]) -> bool:
    """Whether a system is one of those known, or a smaller release of it."""
    return any(distribution == one or distribution.startswith(f"{one}.") for one in known)


def _slices(machine: Machine, known: Allowed) -> Iterator[Check]:
    """Judge GPUs that are cut into slices, where there are any."""
    if machine.mig and not known.mig:
        found = f"{machine.mig} of the GPUs cut into slices (MIG)"
        advice = "slices exchange no messages: nvidia-smi -mig 0, as root"
        yield Check(name="whole GPUs", state="missing", found=found, advice=advice)


def _driver(machine: Machine, known: Allowed) -> Check:
    if not machine.cuda:
        advice = "install the NVIDIA driver, or start the container with GPUs"
        return Check(name="driver", state="missing", found="no libcuda.so.1", advice=advice)
    found = f"{machine.driver or 'unknown'}, CUDA {machine.cuda}"
    platform = known.platforms.get(machine.processor)
    if platform and numbers(machine.cuda)[:1] < min(platform.cuda)[:1]:
        wanted = " and ".join(dotted(one) for one in platform.cuda)
        advice = f"TensorRT on {machine.processor} is for CUDA {wanted}: a newer driver"
        return Check(name="driver", state="missing", found=found, advice=advice)
    oldest = known.drivers.get(machine.cuda.split(".")[0])
    if oldest and machine.driver and numbers(machine.driver) < oldest:
        advice = f"CUDA {machine.cuda} needs driver {dotted(oldest)}"
        return Check(name="driver", state="missing", found=found, advice=advice)
    return Check(name="driver", state="ok", found=found)


def _gpus(machine: Machine, known: Allowed) -> Iterator[Check]:
    if not machine.gpus:
        yield Check(name="GPUs", state="missing", found="none", advice="needs an NVIDIA GPU")
        return
    names = sorted({one.name for one in machine.gpus})
    weakest = min(one.capability for one in machine.gpus)
    found = f"{len(machine.gpus)} x {', '.join(names)}, compute capability {dotted(weakest)}"
    if weakest < known.capability:
        advice = f"collectives need compute capability {dotted(known.capability)}"
        yield Check(name="GPUs", state="missing", found=found, advice=advice)
    else:
        several = len(machine.gpus) > 1
        yield Check(
            name="GPUs",
            state="ok" if several else "watch",
            found=found,
            advice="" if several else "plans of several GPUs need more of them",
        )
    if len(machine.gpus) > 1:
        yield _peers(machine)
    if weakest < known.attention_capability:
        said = f"needs compute capability {dotted(known.attention_capability)}"
        advice = "AllGather-KV gathers keys and values instead"
        yield Check(name="multi-device attention", state="watch", found=said, advice=advice)


def _peers(machine: Machine) -> Check:
    if not machine.apart:
        return Check(name="peer access", state="ok", found="between all GPUs")
    found = f"{len(machine.apart)} of {len(machine.gpus) * (len(machine.gpus) - 1)} ways closed"
    advice = "messages pass through the host's memory; see IOMMU and ACS, or NCCL_P2P_DISABLE=1"
    return Check(name="peer access", state="watch", found=found, advice=advice)


def _tensorrt(machine: Machine, known: Allowed) -> Check:
    package = known.install("tensorrt", machine.cuda)
    if machine.tensorrt is None:
        found = machine.tensorrt_error.split(": pip")[0] or "not installed"
        return Check(name="TensorRT", state="missing", found=found[:90], advice=package)
    runs = numbers(machine.tensorrt.version)
    found = f"{machine.tensorrt.version} in {machine.tensorrt.path}"
    if runs < known.first:
        return Check(name="TensorRT", state="missing", found=found, advice=package)
    if any(runs[: len(bad)] == bad for bad in known.groups_broken):
        advice = "collectives among some ranks are wrong in this version: one axis an engine"
        return Check(name="TensorRT", state="watch", found=found, advice=advice)
    if runs < known.general:
        advice = f"all-to-all, gather and scatter need {dotted(known.general)}: {package}"
        return Check(name="TensorRT", state="watch", found=found, advice=advice)
    return Check(name="TensorRT", state="ok", found=found)


def _nccl(machine: Machine, known: Allowed) -> Check:
    package = known.install("nvidia-nccl", machine.cuda)
    if machine.nccl is None:
        names = " nor ".join(known.nccl_search)
        where = ":".join(machine.searched) or "empty"
        advice = (
            f"export LD_LIBRARY_PATH={machine.beside}:$LD_LIBRARY_PATH"
            if machine.beside
            else f"{package}, and put its folder on LD_LIBRARY_PATH"
        )
        found = f"neither {names} along LD_LIBRARY_PATH ({where})"
        return Check(name="NCCL", state="missing", found=found, advice=advice)
    if not machine.nccl.version:
        found = f"{machine.nccl.path}: it cannot be loaded, or is no NCCL"
        return Check(name="NCCL", state="missing", found=found, advice=package)
    runs = numbers(machine.nccl.version)
    found = f"{machine.nccl.version}, {machine.nccl.path}"
    if runs < known.nccl:
        advice = f"needs {dotted(known.nccl)}: {package}"
        return Check(name="NCCL", state="missing", found=found, advice=advice)
    if runs < known.nccl_all_to_all:
        advice = f"Ulysses' all-to-all needs {dotted(known.nccl_all_to_all)}: {package}"
        return Check(name="NCCL", state="watch", found=found, advice=advice)
    return Check(name="NCCL", state="ok", found=found)


def _packages(machine: Machine, known: Allowed) -> Iterator[Check]:
    for name, needed in (("nccl4py", True), ("cuda-bindings", True), ("mpi4py", False)):
        found = machine.packages.get(name, "")
        if found:
            yield Check(name=name, state="ok", found=found)
        elif needed:
            advice = known.install(name, machine.cuda)
            yield Check(name=name, state="missing", found="not installed", advice=advice)


def _shared(machine: Machine, known: Allowed) -> Iterator[Check]:
    """Judge shared memory, where there is any to look at."""
    if not machine.shared_bytes:
        return
    found = format_bytes(machine.shared_bytes)
    if machine.shared_bytes < known.shared_memory.value:
        wanted = format_bytes(known.shared_memory.value)
        advice = f"NCCL needs {wanted} of /dev/shm: docker run --shm-size=1g"
        yield Check(name="shared memory", state="missing", found=found, advice=advice)
    else:
        yield Check(name="shared memory", state="ok", found=found)
