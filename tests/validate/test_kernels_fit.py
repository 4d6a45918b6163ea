"""Fits recover what made the measurements, and records survive being written and read."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from costmodels.kernels import attention, matmul
from costmodels.kernels.common import Shape
from costmodels.kernels.parameters import (
    AttentionParameters,
    EngineParameters,
    MatmulParameters,
    load,
)
from costmodels.kernels.tables import shipped_records
from topology.base import CatalogueError
from topology.catalogue import all_devices
from validate.accuracy.kernels import KernelFigure
from validate.fit.kernels import fit_attention, fit_matmul
from validate.fit.text import record_to_toml

H100 = all_devices()["h100-sxm"]
PRODUCT = shipped_records(MatmulParameters)["hopper"]
KERNEL = shipped_records(AttentionParameters)["trtllm-hopper"]
ENGINE = shipped_records(EngineParameters)["hopper"]
RECORD = """[x]
kind = "assumed"
source = "example"
hardware = []
compute_capabilities = ["9.0"]
fixed = "2 us"
passes = "1"
causal_fixed = "3 us"
causal_passes = "2"
"""


def noise(count, size):
    return np.exp(size * np.random.default_rng(0).standard_normal(count))


@pytest.mark.parametrize("size", [0.0, 0.03])
def test_recovers_a_known_machine(size):
    """It differs in what decides small, streaming and large products."""
    true = replace(
        PRODUCT, floor=3.5e-6, memory_efficiency=0.6, efficiency=0.6, reference_rate=642.3e12
    )
    shapes = [(m, n, k) for m in (2, 64, 512, 4096) for n in (512, 8192) for k in (512, 2048, 8192)]
    prepared = matmul.prepare_with(true, H100, "bf16")
    rows = [
        KernelFigure(device=H100, operation="matmul", m=m, n=n, k=k, seconds=t)
        for (m, n, k), t in zip(
            shapes,
            [matmul.product_time(prepared, *s) for s in shapes] * noise(len(shapes), size),
            strict=True,
        )
    ]

    found, _ = fit_matmul(rows, PRODUCT, ["floor", "memory_efficiency", "efficiency"])

    for name in ("floor", "memory_efficiency", "efficiency"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.02 + 2 * size)
    assert found.provenance.median_error <= 0.01 + size
    assert ("m", 2.0, 4096.0) in found.provenance.ranges


def test_products_from_the_cache_are_left_out():
    """A time that memory cannot explain must not raise the share of its bandwidth."""
    shape = {"m": 8, "n": 8192, "k": 8192}
    honest = matmul.product_time(matmul.prepare_with(PRODUCT, H100, "bf16"), *shape.values())
    rows = [
        KernelFigure(device=H100, operation="matmul", seconds=t, **shape)
        for t in (float(honest), float(honest) / 2)
    ]

    found, _ = fit_matmul(rows, PRODUCT, ["memory_efficiency"])

    assert found.memory_efficiency == pytest.approx(PRODUCT.memory_efficiency, rel=0.01)


def test_recovers_a_known_attention_kernel_and_its_engine():
    true = replace(KERNEL, cycles=(0.2, 0.3, 0.5))
    around = replace(ENGINE, fixed=20e-6, causal_fixed=30e-6)
    prepared = attention.prepare_with(true, H100, "bf16", around)
    shapes = [
        (causal, d, h, t)
        for causal in (False, True)
        for d in (64, 128)
        for h in (2, 24)
        for t in (512, 2048, 16384)
    ]
    rows = [
        KernelFigure(
            device=H100, operation="attention", kernel="engine", heads=h, kv_heads=h,
            queries=t, keys=t, head_dim=d, causal=causal, seconds=1.0,
        )
        for causal, d, h, t in shapes
    ]  # fmt: skip
    rows = [replace(row, seconds=time_of(prepared, row)) for row in rows]

    found = fit_attention(rows, KERNEL, ENGINE, free=())

    assert found.parameters.cycles[:2] == pytest.approx((0.2, 0.3), rel=0.02)
    assert found.parameters.cycles[2] / KERNEL.cycles[2] == pytest.approx(
        found.parameters.cycles[1] / KERNEL.cycles[1]
    )
    eight_bit = found.parameters.fp8_cycles
    assert eight_bit[1] / KERNEL.fp8_cycles[1] == pytest.approx(
        found.parameters.cycles[1] / KERNEL.cycles[1]
    )
    assert found.engine.fixed == pytest.approx(20e-6, rel=0.05)
    assert found.engine.causal_fixed == pytest.approx(30e-6, rel=0.05)


def time_of(prepared, row):
    sizes = (row.heads, row.kv_heads, row.queries, row.keys, row.head_dim, row.batch)
    names = ("heads", "kv_heads", "queries", "keys", "head_dim", "batch")
    arrays = {name: np.asarray(size, float) for name, size in zip(names, sizes, strict=True)}
    return float(attention.call_time(prepared, Shape(**arrays, causal=row.causal)))


@pytest.mark.parametrize(
    ("record", "form"),
    [(PRODUCT, MatmulParameters), (KERNEL, AttentionParameters), (ENGINE, EngineParameters)],
    ids=["matmul", "attention", "engine"],
)
def test_a_written_record_reads_back(record, form):
    assert load(tomllib.loads(record_to_toml("x", record)), form)["x"] == record


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('fixed = "2 us"', 'fixed = "2 GB"', "x.fixed: '2 GB' is not a quantity in s"),
        ('passes = "1"', 'share = "1"', "x: unexpected ['share']"),
        ('causal_fixed = "3 us"\n', "", "causal_fixed"),
        ('source = "example"', 'source = ""', "x: 0 has no source"),
        ('kind = "assumed"', 'kind = "guess"', "x: 'guess' is not one of"),
        ('["9.0"]', '"9.0"', "x.compute_capabilities: expected a list of names"),
        ("hardware = []", 'hardware = []\nranges = "all"', "x.ranges: expected a table"),
    ],
)
def test_a_broken_table_does_not_load(old, new, message):
    with pytest.raises(CatalogueError) as error:
        load(tomllib.loads(RECORD.replace(old, new, 1)), EngineParameters)

    assert message in str(error.value)


@pytest.mark.parametrize(
    "table",
    [
        shipped_records(MatmulParameters),
        shipped_records(AttentionParameters),
        shipped_records(EngineParameters),
    ],
)
def test_every_number_is_in_its_right_range(table):
    for name, record in table.items():
        assert record.provenance.compute_capabilities, name
        assert record.provenance.median_error <= 0.10, name
        assert record.provenance.p90_error <= 0.25, name


def test_attention_series_go_together():
    for name, record in shipped_records(AttentionParameters).items():
        assert len(record.head_dims) == len(record.cycles) == len(record.tile_rows), name
        assert list(record.head_dims) == sorted(record.head_dims), name
        assert all(a <= b for a, b in zip(record.fp8_cycles, record.cycles, strict=False)), name
