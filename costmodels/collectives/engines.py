"""Serving engines: which all-reduce kernels they bring, up to which size, at what host cost."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from topology.base import Bytes, BytesPerSecond, CatalogueError, Kind, Seconds, parse
from topology.catalogue import Fabric

_KEYS = {"kind", "source", "kernels", "limit", "extra", "host", "nccl_host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine.

    kernels : which of ``oneshot``, ``twoshot``, ``multishot`` it has.
    limit : B, the largest message of its own kernels, by generation and link, and of the
        multicast one under ``multishot``. A place without a limit has no own kernels.
    extra : s that its kernels take beyond the leanest engine's, by link.
    host : s of host work a call of its kernels when no graph replays it, by link.
    nccl_host : the same for a call that it leaves to NCCL.
    """

    kind: Kind
    source: str
    kernels: tuple[str, ...]
    limit: Mapping[str, Bytes]
    extra: Mapping[str, Seconds]
    host: Mapping[str, Seconds]
    nccl_host: Seconds

    def limit_of(self, kernel: str, fabric: Fabric) -> Bytes:
        """Bytes of the largest message that `kernel` takes on `fabric`."""
        place = kernel if kernel == "multishot" else f"{fabric.architecture}.{_link(fabric)}"
        return self.limit.get(place, Bytes(0.0))

    def extra_on(self, fabric: Fabric) -> Seconds:
        """Seconds that its kernels take beyond the leanest engine's."""
        return self.extra[_link(fabric)]

    def host_on(self, fabric: Fabric) -> Seconds:
        """Seconds of host work that a call of its kernels takes."""
        return self.host[_link(fabric)]


def _link(fabric: Fabric) -> str:
    return "pcie" if fabric.link == "pcie" else "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """What a call costs that no graph replays.

    host : s, PyTorch's own collective call. gap : s between kernels.
    single : s a GPU after the first where one process launches all of a node.
    post : s a send or receive that such a process posts.
    copy : B/s at which engines copy their input aside, by generation and link.
    """

    host: Seconds
    gap: Seconds
    single: Seconds
    post: Seconds
    copy: Mapping[str, BytesPerSecond]

    def launching(self, fabric: Fabric, posts: int) -> float:
        """Seconds that one process takes to launch all GPUs of a node, with `posts` on each."""
        local = fabric.ranks // fabric.nodes
        return self.single * (local - 1) + self.post * posts * local

    def copy_bandwidth(self, fabric: Fabric) -> BytesPerSecond:
        """Bytes a second of a copy inside one GPU: of its generation and link, or generation."""
        return self.copy[f"{fabric.architecture}.{_link(fabric)}"]


def load_engines(text: str) -> tuple[dict[str, Engine], Eager]:
    """Read engines, and the table ``[eager]``, from TOML `text`; the caller does the file I/O."""
    tables = tomllib.loads(text)
    eager = tables.pop("eager")
    return {name: _engine(name, row) for name, row in tables.items()}, Eager(
        host=Seconds(parse(eager["host"], "s")),
        gap=Seconds(parse(eager["gap"], "s")),
        single=Seconds(parse(eager["single"], "s")),
        post=Seconds(parse(eager["post"], "s")),
        copy={
            place: BytesPerSecond(value) for place, value in _places(eager["copy"], "B/s").items()
        },
    )


def _places(table: Mapping[str, object], unit: str) -> dict[str, float]:
    """Flatten ``hopper.nvlink = "4 MiB"`` and ``nvlink = "2 us"`` to values by place."""
    flat: dict[str, float] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{link}": parse(str(text), unit) for link, text in value.items()}
        else:
            flat[key] = parse(str(value), unit)
    return flat


def _engine(name: str, row: Mapping[str, object]) -> Engine:
    if row.keys() != _KEYS:
        raise CatalogueError(f"{name}: expected {sorted(_KEYS)}, got {sorted(row)}")
    limit = _places(cast(Mapping[str, object], row["limit"]), "B")
    extra = _places(cast(Mapping[str, object], row["extra"]), "s")
    host = _places(cast(Mapping[str, object], row["host"]), "s")
    return Engine(
        kind=cast(Kind, row["kind"]),
        source=str(row["source"]),
        kernels=tuple(cast(list[str], row["kernels"])),
        limit={place: Bytes(value) for place, value in limit.items()},
        extra={place: Seconds(value) for place, value in extra.items()},
        host={place: Seconds(value) for place, value in host.items()},
        nccl_host=Seconds(parse(str(row["nccl_host"]), "s")),
    )
