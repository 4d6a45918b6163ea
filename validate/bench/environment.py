"""What was measured on: GPUs, versions, settings; the head of every set of rows."""

import platform
from collections.abc import Mapping
from typing import Any

import torch

Document = dict[str, Any]


def describe(device: torch.device, ranks: int, settings: Mapping[str, str]) -> Document:
    """Describe the machine as a JSON document.

    Parameters
    ----------
    settings : what the harness found outside PyTorch: driver, topology, environment, date.
    """
    return {
        "machine": {
            "gpus": [_gpu(index) for index in range(_count(device))],
            "ranks": ranks,
            "cpu": platform.processor() or platform.machine(),
            "peer_access": _peers(device),
        },
        "software": _software(device),
        **settings,
    }


def _count(device: torch.device) -> int:
    return torch.cuda.device_count() if device.type == "cuda" else 0


def _gpu(index: int) -> Document:
    found = torch.cuda.get_device_properties(index)
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "multiprocessors": found.multi_processor_count,
        "compute_capability": f"{found.major}.{found.minor}",
        "uuid": str(getattr(found, "uuid", "")),
    }


def _peers(device: torch.device) -> bool:
    count = _count(device)
    return count > 1 and torch.cuda.can_device_access_peer(0, 1)


def _software(device: torch.device) -> Document:
    found: Document = {"python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda or ""
        found["cudnn"] = str(torch.backends.cudnn.version())
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found
