"""A model repository for Triton: the engine that all GPUs run together, served as one model.

Triton's TensorRT backend gives every rank the inputs of the first one and returns its outputs. So
an engine is served only where its ranks read the same: where it has no tables of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from planner.tensorrt import EngineNetwork
from planner.tensorrt.network import Value

TYPES: Final[Mapping[str, str]] = {
    "bf16": "TYPE_BF16",
    "fp16": "TYPE_FP16",
    "fp32": "TYPE_FP32",
    "int32": "TYPE_INT32",
    "bool": "TYPE_BOOL",
}
SERVED_NETWORK: Final = "forward"
"""Network that is a model by itself: what it gives is whole on every rank."""
CACHE_PREFIX: Final = "cache."
"""What names of keys and values begin with, of which each rank has its own."""


def served(network: EngineNetwork, gpus: int, hosts: int) -> bool:
    """Whether Triton can serve a network: all GPUs of one host run it, and read the same."""
    return (
        network.name == SERVED_NETWORK
        and network.ranks == gpus > 1
        and hosts == 1
        and not network.tables
        and not any(value.name.startswith(CACHE_PREFIX) for value in network.inputs)
        and all(value.dtype in TYPES for value in _all_values(network))
    )


def triton_files(network: EngineNetwork, devices: Sequence[int]) -> dict[str, bytes]:
    """Return the repository's files: its configuration, and what puts the engines in their places.

    devices : GPU of each rank, in order.
    """
    folder = f"triton/{network.name}"
    return {
        f"{folder}/config.pbtxt": configuration(network, devices).encode(),
        "triton/place.sh": "\n".join([*_placing_script(network), ""]).encode(),
    }


def configuration(network: EngineNetwork, devices: Sequence[int]) -> str:
    """Write ``config.pbtxt``, with the parameters of docs/multi_device.md of Triton's backend."""
    parameters = {
        "enable_multi_device": "true",
        "multi_device_gpus": ",".join(map(str, devices)),
        **({} if network.shared else {"multi_device_per_rank_engines": "true"}),
    }
    lines = [
        f'name: "{network.name}"',
        'backend: "tensorrt"',
        "max_batch_size: 0",
        *(_tensor_line("input", value.name, value) for value in network.inputs),
        *(_tensor_line("output", name, value) for name, value in network.outputs),
        "instance_group [ { kind: KIND_MODEL count: 1 } ]",
        *(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in parameters.items()
        ),
    ]
    return "\n".join([*lines, ""])


def _all_values(network: EngineNetwork) -> Iterator[Value]:
    yield from network.inputs
    yield from (value for _, value in network.outputs)


def _tensor_line(side: str, name: str, value: Value) -> str:
    dims = ", ".join(map(str, value.shape))
    return f'{side} [ {{ name: "{name}" data_type: {TYPES[value.dtype]} dims: [ {dims} ] }} ]'


def _placing_script(network: EngineNetwork) -> Iterator[str]:
    """Yield a script that links engines, once they are built, where Triton looks for them."""
    rank_suffixes = [""] if network.shared else [f".rank{rank}" for rank in range(network.ranks)]
    target = f"triton/{network.name}/1"
    yield "#!/bin/sh"
    yield "# Links the engines into the model repository; from the folder of plan.json."
    yield f"set -e && mkdir -p {target}"
    for suffix in rank_suffixes:
        yield f"ln -sf ../../../engines/{network.name}{suffix}.engine {target}/model.plan{suffix}"
    if not network.shared:
        yield f"ln -sf model.plan.rank0 {target}/model.plan"
