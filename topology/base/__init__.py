"""Units, errors, sources and files: what every number, message and document is made of."""

from topology.base.errors import (
    CatalogueError,
    IllegalPlanError,
    InputError,
    ModelError,
    PrecisionError,
    TopologyError,
    UncalibratedError,
    near,
    one_line,
    shown,
    unknown,
)
from topology.base.files import (
    MOST_CHARACTERS,
    beside,
    content,
    decoded,
    environment,
    held,
    is_file,
    is_text,
    place,
    read_up_to,
    shipped_table,
    text_of,
    toml_of,
    write_new,
    write_whole,
)
from topology.base.sources import Kind, Sourced, check_keys, read_choice, read_sourced
from topology.base.units import (
    FASTEST_LINK,
    GIB,
    KIB,
    MIB,
    SLOWEST_LINK,
    Bytes,
    BytesPerSecond,
    FlopPerSecond,
    Seconds,
    counted,
    format_bytes,
    format_interval,
    format_number,
    format_seconds,
    number_in,
    parse,
    parse_bytes,
    parse_rate,
)

__all__ = [
    "FASTEST_LINK", "GIB", "KIB", "MIB", "MOST_CHARACTERS", "SLOWEST_LINK", "Bytes",
    "BytesPerSecond", "CatalogueError", "FlopPerSecond", "IllegalPlanError", "InputError",
    "Kind", "ModelError", "PrecisionError", "Seconds", "Sourced", "TopologyError",
    "UncalibratedError", "beside", "check_keys", "content", "counted", "decoded", "environment",
    "format_bytes", "format_interval", "format_number", "format_seconds", "held", "is_file",
    "is_text", "near", "number_in", "one_line", "parse", "parse_bytes", "parse_rate", "place",
    "read_choice", "read_sourced", "read_up_to", "shipped_table", "shown", "text_of", "toml_of",
    "unknown", "write_new", "write_whole",
]  # fmt: skip
