"""Rows of a benchmark in, a calibration profile out."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.profile import Profile, load_profile
from topology.base import InputError
from topology.base.values import dataclass
from topology.catalogue import Fabric, by_product, find_hardware, gpu_names
from validate.fit.collectives import MeasuredOn, fit_collectives
from validate.fit.kernels import fit_kernels
from validate.fit.rows import Row
from validate.fit.runtimes import communicator, fit_hiding, fit_runtimes
from validate.fit.text import to_toml

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Rows, and what they were measured on.

    manifest : as `validate.bench` writes it. source : names the rows, with their digest.
    """

    rows: Sequence[Row]
    manifest: Manifest
    source: str


def fit_profile(measurements: Measurements) -> Profile:
    """Fit everything that the rows say something about.

    Raises InputError if the machine is not in the catalogue, its GPUs differ, or there are too few
    rows.
    """
    rows, manifest, source = measurements.rows, measurements.manifest, measurements.source
    place, identity = measured_on(manifest), f"fit {source}"
    kernels, kernel_fits = fit_kernels(rows, place.device, source, identity)
    curves, curve_fits = fit_collectives(rows, place, source, identity)
    overlap, overlap_start = fit_hiding(rows, source)
    draft = Profile(
        hardware=hardware_of(manifest),
        date=str(manifest.get("date", "")),
        source=source,
        machine=_machine(manifest),
        software=_software(manifest),
        kernels=kernels,
        curves=curves,
        runtimes=fit_runtimes(rows, place.device, kernels, source),
        overlap=overlap,
        overlap_start=overlap_start,
        communicator=communicator(rows, source),
        fits=(*kernel_fits, *curve_fits),
    )
    if not draft.fits:
        count = sum(not row.error for row in rows)
        raise InputError(f"{source}: got {count} good rows, too few to fit anything")
    return load_profile(to_toml(draft), draft.name)


def source_of(name: str, rows: str) -> str:
    """Name the file of measured `rows`, with their digest."""
    return f"{name}, sha256 {hashlib.sha256(rows.encode()).hexdigest()[:16]}"


def hardware_of(manifest: Manifest) -> str:
    """Name the hardware that a manifest describes.

    Raises InputError if there is no GPU, they differ, or the catalogue does not have them.

    >>> hardware_of({"machine": {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}]}})
    'h100-sxm'
    """
    gpus = manifest.get("machine", {}).get("gpus", [])
    products = sorted({str(gpu["name"]) for gpu in gpus})
    if not products:
        raise InputError("measurements: got no GPU, wanted one or more")
    if len(products) > 1:
        raise InputError(f"measurements: got different GPUs ({', '.join(products)}), wanted one")
    if "MIG" in products[0] or "Enabled" in str(manifest.get("mig", "")):
        raise InputError(f"measurements: got a slice of a GPU ({products[0]}), wanted whole ones")
    name = by_product(gpu_names(), products[0])
    if name is None:
        raise InputError(f"measurements: {products[0]!r} is not in the catalogue of hardware")
    return name


def fabric_of(manifest: Manifest, name: str) -> Fabric:
    """Describe the links among the GPUs that were measured together."""
    machine = manifest["machine"]
    ranks = int(machine.get("ranks", 1))
    fabric = find_hardware(name).fabric(ranks)
    if ranks > 1 and not machine.get("peer_access", True):
        return fabric.with_peers(on=False)
    return fabric


def measured_on(manifest: Manifest) -> MeasuredOn:
    """Say where rows were measured, and with which release of NCCL."""
    name = hardware_of(manifest)
    nccl = str(manifest.get("software", {}).get("nccl", "2.29")).split(".")
    return MeasuredOn(
        device=find_hardware(name).device,
        fabric=fabric_of(manifest, name),
        nccl=(int(nccl[0]), int(nccl[1])),
    )


def _machine(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    machine = manifest["machine"]
    gpus = machine["gpus"]
    texts = {
        "gpu": str(gpus[0]["name"]),
        "gpus": str(machine.get("ranks", len(gpus))),
        "memory": f"{int(gpus[0].get('memory_bytes', 0))} B",
        "power": str(manifest.get("power", "")).partition("\n")[0],
        "peer_access": "yes" if machine.get("peer_access") else "no",
    }
    return tuple((key, text) for key, text in texts.items() if text)


def _software(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    texts = {str(key): str(text) for key, text in manifest.get("software", {}).items()}
    texts["driver"] = str(manifest.get("driver", "")).partition("\n")[0]
    return tuple((key, text) for key, text in sorted(texts.items()) if text)
