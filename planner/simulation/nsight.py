"""What Nsight Systems exports as a database of SQLite, as trace events of PyTorch's profiler."""

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any, Final

from topology.base import InputError

_NANOSECONDS: Final = 1000  # in a microsecond
_GRAPHS_TABLE: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""By their number in CUPTI's `CUpti_ActivityMemcpyKind`."""
_NAMES_TABLE: Final = "StringIds"
_TABLES_QUERY: Final = (
    "SELECT name FROM sqlite_master AS one WHERE type='table' AND NOT EXISTS "
    "(SELECT 1 FROM pragma_table_xinfo(one.name) WHERE hidden)"
)
"""What holds rows as they are: views and columns that are worked out may have no end."""
_WORK_TABLES: Final = {  # category: table, and what names its rows
    "kernel": ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    "gpu_memcpy": ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"),
    "gpu_memset": ("CUPTI_ACTIVITY_KIND_MEMSET", "'Memset'"),
}


def events_of(data: bytes) -> list[Mapping[str, Any]]:
    """Read kernels, copies and fills of a GPU.

    Raises `InputError` if it is no such database, it is cut off, or graphs are not opened.
    """
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(data)
        tables = {name for (name,) in database.execute(_TABLES_QUERY)}
        graphs = f"SELECT 1 FROM {_GRAPHS_TABLE}"  # noqa: S608  # a constant
        if _GRAPHS_TABLE in tables and database.execute(graphs).fetchone():
            raise InputError(
                "got CUDA graphs as wholes, wanted their kernels: nsys profile "
                "--cuda-graph-trace=node"
            )
        return list(_trace_events(database, tables))
    except (sqlite3.Error, TypeError, OverflowError, UnicodeDecodeError) as error:
        raise InputError(f"no whole export of Nsight Systems: {error}") from None
    finally:
        database.close()


def _trace_events(database: sqlite3.Connection, tables: set[str]) -> Iterator[Mapping[str, Any]]:
    names = {}
    if _NAMES_TABLE in tables:
        names = dict(database.execute(f"SELECT id, value FROM {_NAMES_TABLE}"))  # noqa: S608
    for category, (table, name) in _WORK_TABLES.items():
        if table not in tables:  # there are none of its kind
            continue
        query = f"SELECT start, end, globalPid, deviceId, streamId, {name} FROM {table}"  # noqa: S608
        for start, end, process, device, stream, label in database.execute(query):
            named = {
                "kernel": names.get(label),
                "gpu_memcpy": f"Memcpy {_COPY_KINDS.get(label, '')}",
            }
            yield {
                "ph": "X",
                "cat": category,
                "name": named.get(category, label),
                "ts": start / _NANOSECONDS,
                "dur": (end - start) / _NANOSECONDS,
                "args": {"device": f"{process} {device}", "stream": stream},
            }
