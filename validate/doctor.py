"""``planner doctor``: whether a machine can run multi-device engines, and what it lacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final, Literal

from planner.engines.tables import allowed
from planner.engines.tensorrt import Allowed, dotted
from planner.tensorrt.runner.library import numbers
from topology.base import format_bytes, format_seconds
from topology.base.table import Table
from topology.base.values import dataclass
from validate.tensorrt.probe import Host, InstalledLibrary, probe
from validate.tensorrt.selftest import Ran, Tried

State = Literal["ok", "watch", "missing"]
STATE_LABELS: Final = {"ok": "ok", "watch": "watch", "missing": "MISSING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. advice : what to do about it."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All checks; `ok` where nothing is missing. tried : collectives that were run here."""

    checks: tuple[Check, ...]
    tried: tuple[Tried, ...] = ()

    @property
    def ok(self) -> bool:
        return all(check.state != "missing" for check in self.checks)

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        ran = {"collectives": [tried.to_dict() for tried in self.tried]} if self.tried else {}
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks], **ran}

    def lines(self) -> list[str]:
        """Say everything on a terminal."""
        lines = []
        for check in self.checks:
            lines.append(f"{STATE_LABELS[check.state]:<9}{check.name:<24}{check.found}")
            lines += [f"{'':<33}{check.advice}"] if check.advice else []
        return lines

    def markdown(self) -> str:
        """Write a table for a document."""
        rows = [
            [check.name, STATE_LABELS[check.state], check.found, check.advice]
            for check in self.checks
        ]
        return Table(head=("what", "state", "found", "what to do"), rows=rows).markdown()


def doctor(
    environment: Mapping[str, str], version: str = "", run: Callable[[int], Ran] | None = None
) -> Diagnosis:
    """Look at the host this runs on.

    version : of the TensorRT to judge; the one that is there where left out. run : runs
    collectives on so many GPUs; nothing is run where left out.

    Raises InputError if there is no such version.
    """
    host = probe(environment)
    if version:
        allowed().running(version)
        host = replace(host, tensorrt=InstalledLibrary(version=version, path=""))
    diagnosis = diagnose(host)
    return diagnosis if run is None else with_collectives(diagnosis, run(len(host.gpus)))


def with_collectives(diagnosis: Diagnosis, ran: Ran) -> Diagnosis:
    """Add what became of collectives that were run, or why none was."""
    if isinstance(ran, str):
        check = Check(name="collectives", state="missing", found="not run", advice=ran)
        return replace(diagnosis, checks=(*diagnosis.checks, check))
    return replace(
        diagnosis, checks=(*diagnosis.checks, *map(_collective_check, ran)), tried=tuple(ran)
    )


def _collective_check(tried: Tried) -> Check:
    """Judge a collective that was run by its numbers."""
    if tried.reason:
        return Check(name=tried.op, state="missing", found="does not run", advice=tried.reason)
    times = ", ".join(
        f"{format_bytes(row.number('bytes'))} in {format_seconds(row.seconds)}"
        for row in tried.rows
    )
    if tried.right:
        return Check(name=tried.op, state="ok", found=f"right; {times}")
    found = f"wrong numbers, {tried.error:.1g} of the largest; {times}"
    advice = "TensorRT or NCCL: see what is known of their versions above"
    return Check(name=tried.op, state="missing", found=found, advice=advice)


def diagnose(host: Host) -> Diagnosis:
    """Judge a host by what TensorRT needs.

    >>> [one.name for one in diagnose(Host()).checks if one.state == "missing"]
    ['driver', 'GPUs', 'TensorRT', 'NCCL', 'nccl4py', 'cuda-bindings']
    """
    rules = allowed()
    return Diagnosis(
        checks=(
            _system(host, rules),
            _driver(host, rules),
            *_gpus(host, rules),
            *_slices(host, rules),
            _tensorrt(host, rules),
            _nccl(host, rules),
            *_packages(host, rules),
            *_shared_memory(host, rules),
        )
    )


def _system(host: Host, rules: Allowed) -> Check:
    """Judge the system by those that NVIDIA names; others often do."""
    found = ", ".join(filter(None, (host.system, host.distribution))) or "unknown"
    platform = rules.platforms.get(host.processor)
    if not host.processor or (platform and _is_release_of(host.distribution, platform.systems)):
        return Check(name="system", state="ok", found=found)
    if platform:
        advice = f"collectives are documented for {', '.join(platform.systems)}"
        return Check(name="system", state="watch", found=found, advice=advice)
    documented = [f"{name} {', '.join(entry.systems)}" for name, entry in rules.platforms.items()]
    advice = f"collectives are documented for {'; '.join(documented)}"
    return Check(name="system", state="missing", found=found, advice=advice)


def _is_release_of(distribution: str, releases: Sequence[str]) -> bool:
    """Whether a system is one of those releases, or a smaller release of it."""
    return any(f"{distribution}.".startswith(f"{release}.") for release in releases)


def _slices(host: Host, rules: Allowed) -> Iterator[Check]:
    """Judge GPUs that are cut into slices, where there are any."""
    if host.mig and not rules.mig:
        found = f"{host.mig} of the GPUs cut into slices (MIG)"
        advice = "slices exchange no messages: nvidia-smi -mig 0, as root"
        yield Check(name="whole GPUs", state="missing", found=found, advice=advice)


def _driver(host: Host, rules: Allowed) -> Check:
    if not host.cuda:
        advice = "install the NVIDIA driver, or start the container with GPUs"
        return Check(name="driver", state="missing", found="no libcuda.so.1", advice=advice)
    found = f"{host.driver or 'unknown'}, CUDA {host.cuda}"
    platform = rules.platforms.get(host.processor)
    if platform and numbers(host.cuda)[:1] < min(platform.cuda)[:1]:
        cuda_versions = " and ".join(dotted(cuda) for cuda in platform.cuda)
        advice = f"TensorRT on {host.processor} is for CUDA {cuda_versions}: a newer driver"
        return Check(name="driver", state="missing", found=found, advice=advice)
    min_driver = rules.drivers.get(host.cuda.split(".")[0])
    if min_driver and host.driver and numbers(host.driver) < min_driver:
        advice = f"CUDA {host.cuda} needs driver {dotted(min_driver)}"
        return Check(name="driver", state="missing", found=found, advice=advice)
    return Check(name="driver", state="ok", found=found)


def _gpus(host: Host, rules: Allowed) -> Iterator[Check]:
    if not host.gpus:
        yield Check(name="GPUs", state="missing", found="none", advice="needs an NVIDIA GPU")
        return
    names = sorted({gpu.name for gpu in host.gpus})
    weakest = min(gpu.capability for gpu in host.gpus)
    found = f"{len(host.gpus)} x {', '.join(names)}, compute capability {dotted(weakest)}"
    if weakest < rules.capability:
        advice = f"collectives need compute capability {dotted(rules.capability)}"
        yield Check(name="GPUs", state="missing", found=found, advice=advice)
    else:
        several = len(host.gpus) > 1
        yield Check(
            name="GPUs",
            state="ok" if several else "watch",
            found=found,
            advice="" if several else "plans of several GPUs need more of them",
        )
    if len(host.gpus) > 1:
        yield _peers(host)
    if not all(rules.spreads_attention(gpu.capability) for gpu in host.gpus):
        found = f"needs compute capability {rules.attention_span}"
        advice = "AllGather-KV gathers keys and values instead"
        yield Check(name="multi-device attention", state="watch", found=found, advice=advice)


def _peers(host: Host) -> Check:
    if not host.apart:
        return Check(name="peer access", state="ok", found="between all GPUs")
    found = f"{len(host.apart)} of {len(host.gpus) * (len(host.gpus) - 1)} ways closed"
    advice = "messages pass through the host's memory; see IOMMU and ACS, or NCCL_P2P_DISABLE=1"
    return Check(name="peer access", state="watch", found=found, advice=advice)


def _tensorrt(host: Host, rules: Allowed) -> Check:
    package = rules.install("tensorrt", host.cuda)
    if host.tensorrt is None:
        found = host.tensorrt_error.split(": pip")[0] or "not installed"
        return Check(name="TensorRT", state="missing", found=found[:90], advice=package)
    version = numbers(host.tensorrt.version)
    where = f" in {host.tensorrt.path}" if host.tensorrt.path else ", as asked for"
    found = f"{host.tensorrt.version}{where}"
    if version < rules.first:
        return Check(name="TensorRT", state="missing", found=found, advice=package)
    advice = [*rules.faults(version)]
    if version < rules.general:
        advice += [f"all-to-all, gather and scatter need {dotted(rules.general)}: {package}"]
    state: State = "watch" if advice else "ok"
    return Check(name="TensorRT", state=state, found=found, advice="; ".join(advice))


def _nccl(host: Host, rules: Allowed) -> Check:
    package = rules.install("nvidia-nccl", host.cuda)
    if host.nccl is None:
        names = " nor ".join(rules.nccl_search)
        where = ":".join(host.searched) or "empty"
        advice = (
            f"export LD_LIBRARY_PATH={host.beside}:$LD_LIBRARY_PATH"
            if host.beside
            else f"{package}, and put its folder on LD_LIBRARY_PATH"
        )
        found = f"neither {names} along LD_LIBRARY_PATH ({where})"
        return Check(name="NCCL", state="missing", found=found, advice=advice)
    if not host.nccl.version:
        found = f"{host.nccl.path}: it cannot be loaded, or is no NCCL"
        return Check(name="NCCL", state="missing", found=found, advice=package)
    version = numbers(host.nccl.version)
    found = f"{host.nccl.version}, {host.nccl.path}"
    if version < rules.nccl:
        advice = f"needs {dotted(rules.nccl)}: {package}"
        return Check(name="NCCL", state="missing", found=found, advice=advice)
    if version < rules.nccl_all_to_all:
        advice = f"Ulysses' all-to-all needs {dotted(rules.nccl_all_to_all)}: {package}"
        return Check(name="NCCL", state="watch", found=found, advice=advice)
    return Check(name="NCCL", state="ok", found=found)


def _packages(host: Host, rules: Allowed) -> Iterator[Check]:
    for name, required in (("nccl4py", True), ("cuda-bindings", True), ("mpi4py", False)):
        found = host.packages.get(name, "")
        if found:
            yield Check(name=name, state="ok", found=found)
        elif required:
            advice = rules.install(name, host.cuda)
            yield Check(name=name, state="missing", found="not installed", advice=advice)


def _shared_memory(host: Host, rules: Allowed) -> Iterator[Check]:
    """Judge shared memory, where there is any to look at."""
    if not host.shared_bytes:
        return
    found = format_bytes(host.shared_bytes)
    if host.shared_bytes < rules.shared_memory.value:
        minimum = format_bytes(rules.shared_memory.value)
        advice = f"NCCL needs {minimum} of /dev/shm: docker run --shm-size=1g"
        yield Check(name="shared memory", state="missing", found=found, advice=advice)
    else:
        yield Check(name="shared memory", state="ok", found=found)
