"""Fit what serving engines' kernels take to published tables of them.

Products of quantised numbers and decode attention are fitted for each generation of GPUs, number
format and engine, and once more to all engines together, which stands where none is named. Each fit
is judged by the third of the rows that a first fit did not see.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from costmodels.kernels import decode
from costmodels.kernels.common import Shape
from costmodels.kernels.parameters import (
    ContextParameters,
    DecodeParameters,
    EngineParameters,
    QuantisedParameters,
    Record,
)
from costmodels.kernels.tables import attention_record, matmul_record, record
from costmodels.profile import Fit
from topology.base import BytesPerSecond, InputError, Seconds, parse
from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.catalogue import Device, all_devices
from validate.accuracy.kernels import KernelFigure
from validate.fit.engine_latent import (
    fit_head_products,
    fit_latent_context,
    fit_latent_decode,
    head_products,
    latents,
    product_ratios,
)
from validate.fit.engine_layers import experts, fit_experts
from validate.fit.engine_state import fit_state, states
from validate.fit.engine_tables import (
    CACHES,
    ENGINES,
    HOLD,
    MICRO,
    NOWHERE,
    SYSTEMS,
    EngineFigure,
    Grouped,
    Rows,
    columns,
    figure_of,
    read_rows,
    seconds_of,
    sizes_of,
)
from validate.fit.kernels import fit_attention
from validate.fit.least_squares import Judged
from validate.fit.records import Free, Ratio, fields_but, fit_record, with_provenance
from validate.fit.text import record_to_toml

FORMATS: Final = {
    "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4", "sq": "int8",
}  # fmt: skip
HOST_BOUND: Final = {("vllm", "fp8_block")}
"""Rows that took 60 us and more at any size, as no graph of kernels does: they time the host."""
UNTUNED_TABLES: Final = {("trtllm", "nvfp4")}
"""Rows that took 0.1 us for each 64 of the inner dimension at any size, as one tile without a cut
does. TensorRT-LLM tries its kernels when it starts, and serves steps in less than their sum."""
SHARED_HEADS: Final = {"trtllm": 32.0}
"""Heads that share keys and go together in an engine's kernel, where that is fewer than usual."""
DEFAULT_SHARED_HEADS: Final = 64.0
MAX_HEAD_DIM: Final = 256
"""Head size beyond which an engine's kernels for prompts are others."""
SOURCE: Final = (
    "aiconfigurator-core {} tables (Apache-2.0), fitted by validate/fit/engine_kernels.py"
)


def products(rows: Rows) -> Grouped:
    """Read products of quantised numbers, each with its system and format."""
    for row in rows:
        form = FORMATS.get(row["gemm_dtype"])
        if form and (row["engine"], row["gemm_dtype"]) not in HOST_BOUND | UNTUNED_TABLES:
            yield (row["system"], form), figure_of(row, sizes_of(row, m="m", n="n", k="k"))


def decodes(rows: Rows) -> Grouped:
    """Read decode attention with its system and cache's format; what the cache explains, not."""
    for row in rows:
        keys, window = int(row["isl"]) + int(row["step"]), int(row["window_size"] or 0)
        sizes = {
            **sizes_of(row, heads="num_heads", kv_heads="num_key_value_heads"),
            "queries": 1.0,
            "keys": float(min(keys, window) if window else keys),
            **sizes_of(row, head_dim="head_dim", batch="batch_size"),
        }
        form, figure = CACHES[row["kv_cache_dtype"]], figure_of(row, sizes)
        if _from_memory(figure, all_devices()[SYSTEMS[row["system"]][0]], form):
            yield (row["system"], form), figure


def contexts(rows: Rows) -> Grouped:
    """Read attention over whole prompts with its system and format; a cache of the same format."""
    for row in rows:
        if row["attn_dtype"] != row["kv_cache_dtype"] or int(row["head_dim"]) > MAX_HEAD_DIM:
            continue
        sizes = {
            **sizes_of(row, heads="num_heads", kv_heads="num_key_value_heads", queries="isl"),
            **sizes_of(row, keys="isl", head_dim="head_dim", batch="batch_size"),
            "window": float(row["window_size"] or 0),
        }
        yield (row["system"], CACHES[row["attn_dtype"]]), figure_of(row, sizes)


def _from_memory(figure: EngineFigure, device: Device, form: str) -> bool:
    """Whether memory could deliver the cache in that time: it was not left in another one."""
    size = figure.sizes
    cache_values = 2 * size["batch"] * size["kv_heads"] * size["keys"] * size["head_dim"]
    return figure.seconds >= cache_values * decode.CACHES[form] / device.memory_bandwidth.value


def fit_quantised(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[QuantisedParameters, Judged]:
    """Fit one engine's products of one format, or those of several, on one device."""
    base = matmul_record(device, None)
    start = QuantisedParameters(
        provenance=NOWHERE,
        gain=1.0,
        memory=1.0,
        tile_overhead=base.tile_overhead,
        split_overhead=base.split_overhead,
        fixed=Seconds(4 * MICRO),
        passes=2.0,
        wait=Seconds(MICRO / 100),
    )

    limits = {"gain": (0.3, 1.2), "memory": (0.3, 1.0 / base.memory_efficiency)}
    free = Free(names=fields_but(start), limits=limits, hold=HOLD)
    return fit_record(figures, start, free, product_ratios(device, form, "m", "n", "k"))


def fit_decode(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[DecodeParameters, Judged]:
    """Fit one engine's decode attention over one format of cache, or that of several."""
    engines = {figure.engine for figure in figures}
    shared = (
        SHARED_HEADS.get(engines.pop(), DEFAULT_SHARED_HEADS)
        if len(engines) == 1
        else DEFAULT_SHARED_HEADS
    )
    if shared == DEFAULT_SHARED_HEADS:
        figures = [
            figure for figure in figures if _heads_per_kv(figure) <= min(SHARED_HEADS.values())
        ]
    start = DecodeParameters(
        provenance=NOWHERE,
        floor=Seconds(8 * MICRO),
        item=Seconds(MICRO),
        load_bandwidth=BytesPerSecond(parse("60 GB/s", "B/s")),
        merge=Seconds(2 * MICRO),
        memory_efficiency=0.85,
        passes=3.0,
        ramp=Seconds(2 * MICRO),
        shared=shared,
    )

    def ratio_of(subset: Sequence[EngineFigure]) -> Ratio:
        names = ("heads", "kv_heads", "queries", "keys", "head_dim", "batch")
        sizes, measured = Shape(*columns(subset, *names)), seconds_of(subset)
        return lambda record: decode.decode_time(record, device, sizes, form) / measured

    return fit_record(figures, start, Free(names=fields_but(start, "shared"), hold=HOLD), ratio_of)


def _kernel_figure(figure: EngineFigure, device: Device, form: str) -> KernelFigure:
    sizes: dict[str, Any] = {name: int(size) for name, size in figure.sizes.items()}
    return KernelFigure(
        device=device,
        operation="attention",
        seconds=Seconds(figure.seconds),
        kernel="engine",
        precision=form,
        causal=True,
        source=figure.source,
        **sizes,
    )


def fit_context(
    figures: Sequence[EngineFigure], device: Device, form: str
) -> tuple[ContextParameters, Judged]:
    """Fit one engine's attention over prompts on one device."""
    calls = [_kernel_figure(figure, device, form) for figure in figures]
    start = attention_record("trtllm", device, None)
    attention_fit = fit_attention(calls, start, record(EngineParameters, device))
    kernel, engine = attention_fit.parameters, attention_fit.engine
    assert engine is not None
    prompts = ContextParameters(
        provenance=kernel.provenance,
        cycles=kernel.fp8_cycles if form == "fp8" else kernel.cycles,
        tile_overhead=kernel.tile_overhead,
        softness=kernel.softness,
        tail=kernel.tail,
        sustained_drop=kernel.sustained_drop,
        fixed=engine.causal_fixed,
        passes=engine.causal_passes,
    )
    median, p90 = kernel.provenance.median_error, kernel.provenance.p90_error
    return prompts, Judged(values={}, fit=attention_fit.fit, median_error=median, p90_error=p90)


def _heads_per_kv(figure: EngineFigure) -> float:
    return figure.sizes["heads"] / figure.sizes["kv_heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFit:
    """How one kind of table is fitted.

    kind : its name. read : makes figures of its rows. usual : engine whose rows stand for those
    that have none of their own, ``all`` for those of all together, or none.
    """

    kind: str
    read: Callable[[Rows], Grouped]
    fit: Callable[[Sequence[EngineFigure], Device, str], tuple[Record, Judged]]
    usual: str = "all"


GEMM: Final = TableFit(kind="gemm", read=products, fit=fit_quantised)
CONTEXT: Final = TableFit(kind="context_attention", read=contexts, fit=fit_context, usual="")
DECODE: Final = TableFit(kind="generation_attention", read=decodes, fit=fit_decode)
MOE: Final = TableFit(kind="moe", read=experts, fit=fit_experts)
HEADS: Final = TableFit(kind="mla_bmm", read=head_products, fit=fit_head_products)
LATENT_CONTEXT: Final = TableFit(
    kind="mla_context", read=latents, fit=fit_latent_context, usual="trtllm"
)
LATENT_DECODE: Final = TableFit(
    kind="mla_generation", read=latents, fit=fit_latent_decode, usual="trtllm"
)
GDN: Final = TableFit(kind="gdn", read=states, fit=fit_state)
MAMBA: Final = TableFit(kind="mamba2", read=states, fit=fit_state)
TABLES: Final = {
    "gemm_dtype": (GEMM, GEMM),
    "moe_dtype": (MOE, MOE),
    "bmm_dtype": (HEADS, HEADS),
    "mla_dtype": (LATENT_CONTEXT, LATENT_DECODE),
    "kv_cache_dtype": (CONTEXT, DECODE),
    "num_v_heads": (GDN, GDN),
    "chunk_size": (MAMBA, MAMBA),
}
"""Tables by a column that tells them: of whole prompts, and of new tokens."""


def fitted_records(text: str) -> Iterator[tuple[str, str]]:
    """Fit a table of products, of layers of experts, of attention or of states.

    Yields records as TOML, each with how well it does on rows that a first fit did not see.

    Raises InputError if the table is none of these.
    """
    rows = read_rows(text)
    columns = set(rows[0]) if rows else set()
    for name, (prompt_table, token_table) in TABLES.items():
        if name in columns:
            is_prompt = {row.get("step") for row in rows} == {"0"}
            yield from _records(rows, prompt_table if is_prompt else token_table)
            return
    raise InputError(f"columns: got {sorted(columns)}, wanted one of {', '.join(TABLES)}")


def _records(rows: Rows, table: TableFit) -> Iterator[tuple[str, str]]:
    groups = gathered(table.read(rows))
    for (system, form), figures in sorted(groups.items(), key=lambda item: (item[0][1], item[0])):
        for engine, engine_figures in _by_engine(figures, table.usual):
            name, generation, capabilities = SYSTEMS[system]
            parameters, judged = table.fit(engine_figures, all_devices()[name], form)
            sizes = engine_figures[0].sizes
            parameters = with_provenance(
                parameters,
                judged,
                dict(zip(sizes, columns(engine_figures, *sizes), strict=True)),
                kind=NOWHERE.kind,
                source=SOURCE.format(table.kind),
                hardware=(name,),
                compute_capabilities=capabilities,
            )
            title = f"{form}.{ENGINES[engine]}-{generation}" if engine else f"{form}-{generation}"
            yield record_to_toml(f'"{title}"', parameters), f"{title}: {quality(judged.fit)}"


def _by_engine(
    figures: Sequence[EngineFigure], usual: str
) -> Iterator[tuple[str, Sequence[EngineFigure]]]:
    """Yield the figures of each engine, and those that stand for any without its name."""
    names = sorted({figure.engine for figure in figures})
    for name in names:
        yield name, [figure for figure in figures if figure.engine == name]
    if usual == "all":
        yield "", figures
    elif usual:
        usual_engine = usual if usual in names else names[0]
        yield "", [figure for figure in figures if figure.engine == usual_engine]


def quality(fit: Fit) -> str:
    """Say how well a first fit did on the rows that it did not see."""
    median, p90 = fit.held_out_median_error, fit.held_out_p90_error
    return f"{fit.held_out_rows} rows held back, median {median:.3f}, 9 of 10 within {p90:.3f}"
