"""What an export has written, and what is expected of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from topology.base import format_bytes, format_seconds
from topology.drawing.table import Table

ABOUT: Final = ("backend", "model", "plan", "gpus", "hardware", "precision")
"""What the folder is of, as its ``plan.json`` has it."""
EXPECTED: Final = ("runtime", "latency_s", "step_s", "memory_bytes")
"""What is expected of it, and of which runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A folder on disk.

    sizes : bytes of each file by its path within the folder. document : its ``plan.json``.
    """

    folder: Path
    sizes: Mapping[str, int]
    document: Mapping[str, object]

    @property
    def waits(self) -> float:
        """Seconds that a step waits for the host without a CUDA graph."""
        enqueue = cast("Mapping[str, float]", self.document.get("enqueue", {}))
        return enqueue.get("exposed_s_a_step", 0.0)

    def line(self) -> str:
        """Say in one line what the folder holds."""
        size = format_bytes(sum(self.sizes.values()))
        line = f"{self.folder}: {len(self.sizes)} files, {size}; see README.md"
        if not self.waits:
            return line
        return (
            f"{line}; without a CUDA graph a step waits {format_seconds(self.waits)} for the host"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the folder as data."""
        expected = cast("Mapping[str, object]", self.document["expected"])
        return {
            "folder": str(self.folder),
            **{name: self.document[name] for name in ABOUT},
            **{name: expected[name] for name in EXPECTED},
            "without_graph_s_a_step": self.waits,
            "total_bytes": sum(self.sizes.values()),
            "files": [{"path": path, "bytes": size} for path, size in sorted(self.sizes.items())],
        }

    def markdown(self) -> str:
        """Say for a document what the folder holds."""
        expected = cast("Mapping[str, float]", self.document["expected"])
        said = (
            f"**{' · '.join(str(self.document[name]) for name in ABOUT[1:3])}** on "
            f"{self.document['gpus']} x {self.document['hardware']}, "
            f"{self.document['precision']}, {expected['runtime']}; expected: "
            f"{format_seconds(expected['latency_s'])} a request, "
            f"{format_seconds(expected['step_s'])} a step, "
            f"{format_bytes(expected['memory_bytes'])} on the fullest GPU"
        )
        rows = [[f"`{path}`", f"{size:,}"] for path, size in sorted(self.sizes.items())]
        table = Table(head=["file", "bytes"], rows=rows)
        return f"{self.line()}\n\n{said}\n\n{table.markdown()}"
