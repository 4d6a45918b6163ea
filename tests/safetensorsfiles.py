"""Checkpoints as files: a length, a table of contents and numbers."""

import json

import numpy as np

from planner.tensorrt.runner.formats import bits

TYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "fp8": "F8_E4M3"}


def safetensors(tensors, dtype="fp32"):
    """A file's bytes: the length of its table of contents, the table, the numbers."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        kind = dtype if name.endswith(".weight") or dtype != "fp8" else "fp32"
        raw = bits(array.astype(np.float32), kind).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": TYPES[kind], "shape": list(array.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    return np.frombuffer(len(text).to_bytes(8, "little") + text + data, np.uint8)
