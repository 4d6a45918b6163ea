"""Time diffusers' own context parallelism, the peer that the executor is compared with.

Run ``torchrun --nproc-per-node 2 benchmarks/diffusers_peer.py OUTPUT [MODEL [MODE]]``. Every line
of OUTPUT is one pass of a whole transformer with random weights in bf16: median of its repeats by
the device's clock, largest over the ranks. It needs PyTorch, diffusers and GPUs, and nothing of the
planner.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from diffusers import ContextParallelConfig, FluxTransformer2DModel, WanTransformer3DModel

REPEATS = 12
WARM_UPS = 3
WAYS = ("single", "ulysses2", "ring2")
MODES = ("eager", "compile")
DEGREES = {
    "ulysses2": ContextParallelConfig(ulysses_degree=2),
    "ring2": ContextParallelConfig(ring_degree=2),
}
Pass = Callable[[], object]


def flux(device: torch.device) -> tuple[Any, Pass]:
    """FLUX.1-dev at 1024 x 1024 and its inputs: 4,096 image and 512 text tokens."""
    model = FluxTransformer2DModel(guidance_embeds=True)
    image = {"hidden_states": torch.randn(1, 4096, 64), "img_ids": torch.zeros(4096, 3)}
    words = {"encoder_hidden_states": torch.randn(1, 512, 4096), "txt_ids": torch.zeros(512, 3)}
    conditioning = {"pooled_projections": torch.randn(1, 768), "timestep": torch.tensor([0.5])}
    inputs = {**image, **words, **conditioning, "guidance": torch.tensor([3.5])}
    inputs = {name: value.to(device) for name, value in inputs.items()}
    return model, lambda: model(**inputs, return_dict=False)


def wan(device: torch.device) -> tuple[Any, Pass]:
    """Wan 2.1 of 1.3 billion weights at 832 x 480, 81 frames: 32,760 tokens, and 512 of text."""
    model = WanTransformer3DModel(num_attention_heads=12, ffn_dim=8960, num_layers=30)
    inputs = {
        "hidden_states": torch.randn(1, 16, 21, 60, 104, device=device),
        "encoder_hidden_states": torch.randn(1, 512, 4096, device=device),
        "timestep": torch.tensor([500], device=device),
    }
    return model, lambda: model(**inputs, return_dict=False)


MODELS = {"flux.1-dev": flux, "wan2.1-1.3b": wan}


@contextmanager
def made_on(device: torch.device) -> Iterator[None]:
    """Weights are made on the device in bf16."""
    torch.set_default_dtype(torch.bfloat16)
    with device:
        yield
    torch.set_default_dtype(torch.float32)


def seconds(run: Pass) -> float:
    """Median of back-to-back passes by the device's clock."""
    for _ in range(WARM_UPS):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    dist.barrier()
    for mark in marks[:-1]:
        mark.record()
        run()
    marks[-1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
    worst = torch.tensor(median(times), device="cuda")
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


@torch.no_grad()
def measure(name: str, way: str, mode: str, device: torch.device) -> dict[str, object]:
    """Time one pass of a model."""
    torch.manual_seed(0)
    with made_on(device):
        model, run = MODELS[name](device)
    model.eval().set_attention_backend("_native_cudnn")
    if way in DEGREES:
        model.enable_parallelism(config=DEGREES[way])
    if mode == "compile":
        model.compile_repeated_blocks(fullgraph=False, dynamic=False)
    return {"model": name, "plan": way, "mode": mode, "pass_s": seconds(run)}


def main(output: Path, models: Sequence[str], modes: Sequence[str]) -> None:
    """Time all cases, one line each as it is done."""
    import diffusers  # noqa: PLC0415  # its version alone

    dist.init_process_group("nccl", timeout=timedelta(seconds=120))
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    versions = {"torch": torch.__version__, "diffusers": diffusers.__version__}
    for name in models:
        for mode in modes:
            for way in WAYS:
                try:
                    record = measure(name, way, mode, device)
                except (RuntimeError, ValueError, TypeError) as error:
                    reason = str(error).splitlines()[0][:200]
                    record = {"model": name, "plan": way, "mode": mode, "error": reason}
                torch.compiler.reset()
                torch.cuda.empty_cache()
                if dist.get_rank() == 0:
                    with output.open("a") as file:
                        file.write(json.dumps({**record, **versions}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    asked = sys.argv[1:]
    main(Path(asked[0]), asked[1:2] or list(MODELS), asked[2:3] or MODES)
