"""What a process pays beside its kernels: host time of calls and launches, and memory."""

from collections.abc import Callable, Mapping
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from validate.bench import timing
from validate.bench.cases import Measurement, case_of
from validate.bench.collectives import exchange
from validate.bench.compute import attention, matmul, numbers
from validate.bench.timing import Results, Work

CALLS: Final = 200
WIDTH: Final = 256
GAPS: Final = (200, 1000)


def host(case: Measurement, device: torch.device, group: dist.ProcessGroup | None) -> Results:
    """Seconds of host time a call."""
    op = case.text("op")
    if op in ("graph", "gap"):
        return _graph(op, device)
    if op in _LOCAL_CALLS:
        x, call = numbers(WIDTH, WIDTH, device=device), _LOCAL_CALLS[op]
        return [("host", timing.statistics(_warm_times(lambda _: call(x), CALLS, device)))]
    if group is None:
        return []
    work = exchange(op, 2**12, group, device).work
    return [("host", timing.statistics(_warm_times(work, CALLS // 4, device)))]


def _warm_times(work: Work, calls: int, device: torch.device) -> list[float]:
    for index in range(10):
        work(index)
    timing.settle(device)
    return timing.host_seconds(work, calls, device)


_LOCAL_CALLS: Final[Mapping[str, Callable[[Tensor], object]]] = {
    "add": lambda x: x + x,
    "linear": lambda x: functional.linear(x, x),
    "layer_norm": lambda x: functional.layer_norm(x, (WIDTH,)),
    "rms_norm": lambda x: functional.rms_norm(x, (WIDTH,)),
    "chunk": lambda x: x.chunk(2, -1),
    "cast": lambda x: x.float(),
    "silu": functional.silu,
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.view(1, 4, 64, WIDTH)] * 3),
}


def _graph(op: str, device: torch.device) -> Results:
    """`graph`: host seconds of one replay. `gap`: seconds a kernel that does almost nothing."""
    x = numbers(64, device=device)
    if not timing.on_gpu(device):
        return []
    if op == "graph":
        replay = timing.captured(lambda _: x.add_(1.0), 20, device)
        return [("host", timing.statistics(timing.host_seconds(lambda _: replay(), 50, device)))]
    results: Results = []
    for kernels in GAPS:
        run = timing.captured(lambda _: x.add_(1.0), kernels, device)
        times = [t / kernels for t in timing.burst(run, timing.BURSTS, device)]
        results.append((f"kernels_{kernels}", timing.statistics(times)))
    return results


Layer = tuple[Tensor, Tensor]


def _layers(x: Tensor, weights: list[Layer]) -> Tensor:
    """Norm, product, activation, product, residual: five operations a layer."""
    for weight_in, weight_out in weights:
        y = functional.linear(functional.rms_norm(x, (x.shape[-1],)), weight_in)
        x = x + functional.linear(functional.gelu(y), weight_out)
    return x


def stack(case: Measurement, device: torch.device) -> Results:
    """Host seconds of one call of a stack of small layers, eager or compiled.

    The difference between two depths, over the operations of a layer, is the price of one.
    """
    weights = [
        (numbers(WIDTH, WIDTH, device=device), numbers(WIDTH, WIDTH, device=device))
        for _ in range(case.number("layers"))
    ]
    call: Callable[..., object] = _layers
    if case.text("way") == "compiled":
        call = torch.compile(_layers, dynamic=False)
    x = numbers(64, WIDTH, device=device)
    return [("host", timing.statistics(_warm_times(lambda _: call(x, weights), 40, device)))]


def used(device: torch.device) -> float:
    """Bytes taken on the device by everybody, tensors that were freed not counted."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free)


def memory(case: Measurement, device: torch.device, group: dist.ProcessGroup | None) -> Results:
    """Go one stage further than before, and say what is taken since the process began.

    The stages build on each other: a context; a product; attention; a communicator; messages
    between pairs; a second communicator.
    """
    if not timing.on_gpu(device):
        return []
    before = used(device)
    _enter_stage(case.text("stage"), device, group)
    timing.settle(device)
    after = used(device)
    return [("used", {"bytes": after, "more_bytes": max(0.0, after - before)})]


def _enter_stage(stage: str, device: torch.device, group: dist.ProcessGroup | None) -> None:
    if stage == "context":
        torch.zeros(1, device=device)
    elif stage == "matmul":
        matmul(case_of("matmul", 1, m=4096, n=4096, k=4096, precision="bf16"), device).work(0)
    elif stage == "attention":
        sizes = {"heads": 8, "kv_heads": 8, "queries": 2048, "keys": 2048, "head_dim": 128}
        attention(
            case_of("attention", 1, kernel="default", batch=1, causal=0, **sizes), device
        ).work(0)
    elif group is None:
        return
    elif stage == "communicator":
        exchange("all_reduce", 2**20, group, device).work(0)
    elif stage == "exchange":
        exchange("all_to_all", 2**20, group, device).work(0)
        exchange("send_recv", 2**20, group, device).work(0)
    elif stage == "second":
        second_group = dist.new_group(list(range(dist.get_world_size(group))), backend="nccl")
        exchange("all_reduce", 2**20, second_group, device).work(0)
