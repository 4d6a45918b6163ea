"""How far a profile, or the shipped tables alone, are from every measured row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.collectives import Settings, collective_time
from costmodels.kernels import attention_time, matmul_time, pointwise_time
from costmodels.profiles.profile import Profile
from topology.base import ModelError
from topology.catalogue import Device, Fabric
from validate.fit.rows import Row

HEADERS: Final = ("group", "rows", "median", "ninth decile", "worst", "bias", "worst case")
IMPLEMENTATIONS: Final = ("cudnn", "fa2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Predicted over measured, less one, of one row."""

    group: str
    key: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where rows were measured, and with which NCCL."""

    device: Device
    fabric: Fabric
    nccl: tuple[int, int]


def misses(rows: Iterable[Row], place: Place, profile: Profile | None) -> list[Miss]:
    """Compare every row that the models price with what they say.

    Parameters
    ----------
    profile : None for the shipped tables alone.
    """
    found = []
    for row in rows:
        predicted = None if row.error else _predicted(row, place, profile)
        if predicted is not None:
            error = predicted / row.seconds - 1.0
            found.append(Miss(group=_group(row), key=row.key, error=error))
    return found


def miss_rows(found: Sequence[Miss]) -> Iterator[list[str]]:
    """Write one line a group, in percent."""
    for group in dict.fromkeys(sorted(miss.group for miss in found)):
        some = [miss for miss in found if miss.group == group]
        signed = np.array([miss.error for miss in some])
        size = np.abs(signed)
        numbers = (np.median(size), np.quantile(size, 0.9), size.max(), np.median(signed))
        cells = [f"{100 * float(number):.1f}" for number in numbers]
        yield [group, str(len(some)), *cells, some[int(np.argmax(size))].key]


def _group(row: Row) -> str:
    if row.family == "collective":
        return f"collective {row.sizes['op']} {row.mode}"
    if row.family == "attention":
        few = " decode" if row.number("queries") == 1 else ""
        return f"attention {row.sizes['kernel']} {row.mode}{few}"
    if row.family == "pointwise":
        return f"pointwise {row.sizes['how']} {row.mode}"
    return f"{row.family} {row.sizes['precision']} {row.mode}"


def _predicted(row: Row, place: Place, profile: Profile | None) -> float | None:
    try:
        match row.family:
            case "matmul":
                return _matmul(row, place, profile)
            case "attention":
                return _attention(row, place, profile)
            case "pointwise":
                kernels = None if profile is None else profile.kernels
                return float(pointwise_time(row.number("bytes"), place.device, kernels))
            case "collective":
                return _collective(row, place, profile)
            case _:
                return None
    except ModelError:
        return None


def _matmul(row: Row, place: Place, profile: Profile | None) -> float:
    return float(
        matmul_time(
            row.number("m"),
            row.number("n"),
            row.number("k"),
            place.device,
            precision=str(row.sizes["precision"]),
            sustained=row.mode == "sustained",
            calibration=None if profile is None else profile.kernels,
        )
    )


def _attention(row: Row, place: Place, profile: Profile | None) -> float | None:
    mode, _, name = row.mode.partition(" ")
    if name not in IMPLEMENTATIONS:
        return None
    return float(
        attention_time(
            row.number("heads"),
            row.number("queries"),
            row.number("keys"),
            row.number("head_dim"),
            place.device,
            batch=row.number("batch"),
            kv_heads=row.number("kv_heads"),
            causal=bool(row.number("causal")),
            kernel=name,
            sustained=mode == "sustained",
            calibration=None if profile is None else profile.kernels,
        )
    )


def _collective(row: Row, place: Place, profile: Profile | None) -> float:
    return float(
        collective_time(
            str(row.sizes["op"]),
            float(row.number("bytes")),
            place.fabric,
            launch="graph" if row.mode == "graph" else "stream",
            settings=Settings(nccl=place.nccl),
            calibration=None if profile is None else profile.curves,
        )
    )
