"""Serving engines: which all-reduce kernels they bring, up to which size, at what host cost."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from topology.base import Bytes, BytesPerSecond, CatalogueError, Kind, Seconds, parse
from topology.base.values import dataclass
from topology.catalogue import Fabric

Form = TypeVar("Form", bound=float)
_KEYS = {"kind", "source", "kernels", "limit", "extra", "peer", "host", "nccl_host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKernels:
    """The communication kernels of one serving engine.

    kernels : which of ``oneshot``, ``twoshot``, ``multishot`` it has.
    limit : B, the largest message of its own kernels, by generation and link, and of the
        multicast one under ``multishot``. A place without a limit has no own kernels.
    extra : s that its kernels take beyond the leanest engine's, by link. peer : s a peer that a
        kernel takes beyond the leanest engine's instead, by kernel.
    host : s of host work a call of its kernels when no graph replays it, by link.
    nccl_host : the same for a call that it leaves to NCCL.
    """

    kind: Kind
    source: str
    kernels: tuple[str, ...]
    limit: Mapping[str, Bytes]
    extra: Mapping[str, Seconds]
    peer: Mapping[str, Seconds]
    host: Mapping[str, Seconds]
    nccl_host: Seconds

    def limit_of(self, kernel: str, fabric: Fabric) -> Bytes:
        """Bytes of the largest message that `kernel` takes on `fabric`."""
        place = kernel if kernel == "multishot" else f"{fabric.architecture}.{_link(fabric)}"
        return self.limit.get(place, Bytes(0.0))

    def extra_of(self, kernel: str, fabric: Fabric) -> Seconds:
        """Seconds that `kernel` takes beyond the leanest engine's."""
        if kernel in self.peer:
            return Seconds(self.peer[kernel] * (fabric.ranks - 1))
        return self.extra[_link(fabric)]

    def host_on(self, fabric: Fabric) -> Seconds:
        """Seconds of host work that a call of its kernels takes."""
        return self.host[_link(fabric)]


def _link(fabric: Fabric) -> str:
    return "pcie" if fabric.link == "pcie" else "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrecorded:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """What a graph adds to a call of NCCL that it replays, where graphs may mix with other calls.

    sizes, seconds : B, and s for messages of them; straight between, and level beyond.
    """

    sizes: tuple[Bytes, ...]
    seconds: tuple[Seconds, ...]


def load_engines(
    tables: Mapping[str, Any],
) -> tuple[dict[str, EngineKernels], Unrecorded, Mixing]:
    """Read engines, and what is between PyTorch or a graph and NCCL."""
    row, mixing = tables["eager"], tables["mixing"]
    engine_names = [name for name in tables if name not in ("eager", "mixing")]
    engines = {name: _engine(name, tables[name]) for name in engine_names}
    numbers = {key: Seconds(parse(row[key], "s")) for key in ("host", "gap", "single", "post")}
    copy = _values_by_place(row["copy"], "B/s", BytesPerSecond)
    graph_cost = Mixing(
        sizes=tuple(Bytes(parse(size, "B")) for size in mixing["sizes"]),
        seconds=tuple(Seconds(parse(time, "s")) for time in mixing["seconds"]),
    )
    return engines, Unrecorded(copy=copy, **numbers), graph_cost


def _values_by_place(table: object, unit: str, form: Callable[[float], Form]) -> dict[str, Form]:
    """Read what an engine has by place: ``hopper.nvlink = "4 MiB"``, ``nvlink = "2 us"``."""
    flat: dict[str, Form] = {}
    for key, value in cast(Mapping[str, object], table).items():
        if isinstance(value, Mapping):
            places = _values_by_place(value, unit, form)
            flat |= {f"{key}.{place}": number for place, number in places.items()}
        else:
            flat[key] = form(parse(str(value), unit))
    return flat


def _engine(name: str, row: Mapping[str, object]) -> EngineKernels:
    if row.keys() != _KEYS:
        raise CatalogueError(f"{name}: expected {sorted(_KEYS)}, got {sorted(row)}")
    return EngineKernels(
        kind=cast(Kind, row["kind"]),
        source=str(row["source"]),
        kernels=tuple(cast(list[str], row["kernels"])),
        limit=_values_by_place(row["limit"], "B", Bytes),
        extra=_values_by_place(row["extra"], "s", Seconds),
        peer=_values_by_place(row["peer"], "s", Seconds),
        host=_values_by_place(row["host"], "s", Seconds),
        nccl_host=Seconds(parse(str(row["nccl_host"]), "s")),
    )
