"""Bytes of GPU memory that a process takes before it holds any tensor, stage by stage."""

import torch
import torch.distributed as dist

from validate.bench.cases import Case, case
from validate.bench.compute import attention, matmul
from validate.bench.exchange import exchange
from validate.bench.timing import on_gpu, settle

Results = list[tuple[str, dict[str, float]]]


def used(device: torch.device) -> float:
    """Bytes taken on the device by everybody, tensors that were freed not counted."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free)


def memory(asked: Case, device: torch.device, group: dist.ProcessGroup | None) -> Results:
    """Go one stage further than before, and say what is taken since the process began.

    The stages build on each other: a context; a product; attention; a communicator; messages
    between pairs; a second communicator.
    """
    if not on_gpu(device):
        return []
    before = used(device)
    _go(asked.text("stage"), device, group)
    settle(device)
    after = used(device)
    return [("used", {"bytes": after, "more_bytes": max(0.0, after - before)})]


def _go(stage: str, device: torch.device, group: dist.ProcessGroup | None) -> None:
    if stage == "context":
        torch.zeros(1, device=device)
    elif stage == "matmul":
        matmul(case("matmul", 1, m=4096, n=4096, k=4096, precision="bf16"), device).work(0)
    elif stage == "attention":
        sizes = {"heads": 8, "kv_heads": 8, "queries": 2048, "keys": 2048, "head_dim": 128}
        attention(case("attention", 1, kernel="default", batch=1, causal=0, **sizes), device).work(
            0
        )
    elif group is not None:
        _communicate(stage, device, group)


def _communicate(stage: str, device: torch.device, group: dist.ProcessGroup) -> None:
    if stage == "communicator":
        exchange("all_reduce", 2**20, group, device).work(0)
    elif stage == "exchange":
        exchange("all_to_all", 2**20, group, device).work(0)
        exchange("send_recv", 2**20, group, device).work(0)
    elif stage == "second":
        another = dist.new_group(list(range(dist.get_world_size(group))), backend="nccl")
        exchange("all_reduce", 2**20, another, device).work(0)
