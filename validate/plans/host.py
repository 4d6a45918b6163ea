"""What this host has, and what is missing before a run can start: no GPU is touched."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from topology.base import GIB, environment, format_bytes
from topology.base.values import dataclass
from validate.plans import system

SHARED_MEMORY: Final = 1.0 * GIB
"""Bytes of /dev/shm that NCCL and PyTorch need; containers often have 64 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a host.

    seen : what `validate.torch.probe` says; empty where PyTorch does not start, for which
    `error` has the reason. libraries : of NCCL, found along LD_LIBRARY_PATH. visible : what
    CUDA_VISIBLE_DEVICES says. driver : as nvidia-smi says, "" without one. processor : of the host.
    """

    seen: Mapping[str, object]
    error: str = ""
    shared_bytes: float = SHARED_MEMORY
    libraries: tuple[str, ...] = ()
    visible: str = ""
    driver: str = ""
    processor: str = ""

    def words(self, name: str) -> list[str]:
        """Return a list that PyTorch said."""
        return [str(word) for word in cast("Sequence[object]", self.seen.get(name, ()))]


def facts() -> Facts:
    """Look at this host; PyTorch is asked in a process of its own."""
    seen, reason = system.probe_torch()
    return Facts(
        seen=seen,
        error=reason,
        shared_bytes=system.shared_memory(),
        libraries=system.nccl_libraries(),
        visible=environment().get("CUDA_VISIBLE_DEVICES", ""),
        driver=system.gpu().driver,
        processor=system.processor(),
    )


def problems(facts: Facts, gpus: int, device: str = "cuda") -> list[str]:
    """Say what stands against a run on so many GPUs, one line each; nothing where it can start.

    >>> problems(Facts(seen={"torch": "2.11", "gpus": ["L4"], "has_nccl": True}), gpus=2)
    ['GPUs: got 1, wanted 2']
    """
    if not facts.seen:
        reason = facts.error or "No module named 'torch'"
        return [f"PyTorch does not start ({reason}): pip install 'torch>=2.6,<3'"]
    if device == "cpu":
        return [] if facts.seen.get("has_gloo") else ["gloo: this PyTorch was built without it"]
    lines = [_nccl(facts), *_gpus(facts, gpus), *_slices(facts, gpus)]
    if gpus > 1 and facts.shared_bytes < SHARED_MEMORY:
        lines.append(
            f"/dev/shm: got {format_bytes(facts.shared_bytes)}, wanted "  # noqa: S108  # its name
            f"{format_bytes(SHARED_MEMORY)} (docker run --shm-size=1g)"
        )
    return [line for line in lines if line]


def _nccl(facts: Facts) -> str:
    if facts.seen.get("has_nccl") or facts.libraries:
        return ""
    return (
        "NCCL: this PyTorch was built without it, and neither libnccl.so.2 nor libnccl.so lies "
        "along LD_LIBRARY_PATH"
    )


def _gpus(facts: Facts, gpus: int) -> list[str]:
    names = facts.words("gpus")
    if not names:
        driver = f"driver {facts.driver} is there" if facts.driver else "no driver answers"
        cuda = facts.seen.get("cuda") or "no CUDA"
        return [f"GPUs: PyTorch {facts.seen['torch']} ({cuda}) sees none, {driver}"]
    if len(names) < gpus:
        return [f"GPUs: got {len(names)}, wanted {gpus}"]
    kinds = sorted(set(names[:gpus]))
    return [f"GPUs: got different ones ({', '.join(kinds)}), wanted one kind"] if kinds[1:] else []


def _slices(facts: Facts, gpus: int) -> list[str]:
    mig_devices = [
        device for device in facts.visible.split(",") if device.strip().startswith("MIG-")
    ]
    slices = mig_devices or [name for name in facts.words("gpus") if " MIG " in name]
    if gpus > 1 and slices:
        return [f"{slices[0].strip()}: a MIG slice has no peer-to-peer access; wanted whole GPUs"]
    return []


def remarks(facts: Facts, gpus: int) -> list[str]:
    """Say what does not stop a run, but will slow it down."""
    closed_pairs = [
        pair
        for pair in cast("Sequence[Sequence[int]]", facts.seen.get("apart", ()))
        if max(pair) < gpus
    ]
    if not closed_pairs:
        return []
    gpu_a, gpu_b = closed_pairs[0]
    pairs = f"{len(closed_pairs)} such pairs"
    return [
        f"GPU {gpu_a} has no peer-to-peer access to GPU {gpu_b} ({pairs}): it goes by host memory"
    ]
