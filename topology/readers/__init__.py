"""Readers of what people have: tables of nvidia-smi, XML of NCCL and nvidia-smi, our own forms.

Each turns text into a `Reading` (what the text says) or straight into a `Machine`.
"""

from topology.readers.detect import detect
from topology.readers.read import named_machine, read_topology
from topology.readers.topo_matrix import plain_lines

__all__ = ["detect", "named_machine", "plain_lines", "read_topology"]
