"""What PyTorch sees of this host, as one line of JSON: ``python -m validate.torch.probe``.

Asked in a process of its own, so that a broken driver or library breaks that process alone.
"""

import json

import torch
import torch.distributed as dist

from validate.plans import system


def torch_facts() -> dict[str, object]:
    """Versions, GPUs, and which of them reach each other."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "nccl": _nccl() if count else "",
        "has_nccl": dist.is_nccl_available(),
        "has_gloo": dist.is_gloo_available(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(count)],
        "memory_bytes": [
            torch.cuda.get_device_properties(number).total_memory for number in range(count)
        ],
        "apart": [
            [gpu_a, gpu_b]
            for gpu_a in range(count)
            for gpu_b in range(count)
            if gpu_a != gpu_b and not torch.cuda.can_device_access_peer(gpu_a, gpu_b)
        ],
    }


def _nccl() -> str:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        return ""


if __name__ == "__main__":
    system.say(json.dumps(torch_facts()))
