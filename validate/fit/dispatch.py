"""Fit the kernels that carry tokens to experts and back to published tables of them.

Each way, phase, engine and generation of GPUs is fitted on its own; an engine's own start from the
bare kernel's. Shapes of models, or numbers of ranks where there is one shape, are kept apart: a fit
is judged by those that a first fit did not see.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from costmodels.collectives.dispatch import WAYS, Exchange, exchange_seconds
from costmodels.kernels.parameters import DispatchParameters
from costmodels.kernels.tables import shipped_records
from topology.base import Seconds, parse
from topology.base.rows import gathered
from validate.accuracy.dispatch import DispatchFigure, read_figures
from validate.fit.engine_kernels import quality
from validate.fit.engine_tables import ENGINES, HOLD, MICRO, NOWHERE, SYSTEMS
from validate.fit.least_squares import Judged, Values, Vector
from validate.fit.records import Free, Ratio, fit_record, with_provenance
from validate.fit.text import record_to_toml

NAMES: Final = {
    "deepep_ht": "deepep_normal", "deepep_ll": "deepep_low_latency",
    "trtllm_deepep_ht": "deepep_normal", "trtllm_deepep_ll": "deepep_low_latency",
}  # fmt: skip
"""Ways by their names in the tables; others were timed with what the host happened to do."""
SENT_FORMATS: Final = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4", "default": "bf16"}
"""Formats of tokens by their names in the tables; results come back in bf16."""
ROUNDED_FORMAT: Final = "fp4"
"""Results rounded on their way back: a kernel of its own, left out."""
BARE_RANKS: Final = 8  # of the tables of kernels by themselves, which are of one node
DEFAULT_SMS: Final = 20
"""Multiprocessors that DeepEP takes where nobody says how many (Buffer.num_sms)."""
GENERATIONS: Final = {
    **{name: (generation, capabilities) for name, generation, capabilities in SYSTEMS.values()},
    "gb200": ("blackwell", ("10.0", "10.3")),
}
"""Generation and compute capabilities, by hardware."""
SOURCE: Final = "{}, fitted by validate/fit/dispatch.py"
TABLES: Final = "aiconfigurator-core {} tables (Apache-2.0)"
BANDWIDTH: Final = parse("1 GB/s", "B/s")
GUESSES: Final[Mapping[str, Values]] = {
    "deepep_normal": {
        "launch": 26 * MICRO, "alone": 2 * BANDWIDTH, "token": 0.2 * MICRO, "copy": 0.3 * MICRO,
        "home": 30 * BANDWIDTH, "rate": 60 * BANDWIDTH, "efficiency": 0.75, "sharpness": 0.9,
    },
    "deepep_low_latency": {
        "launch": 8 * MICRO, "expert": 0.02 * MICRO, "alone": 2 * BANDWIDTH, "token": 0.5 * MICRO,
        "copy": 0.5 * MICRO, "home": 10 * BANDWIDTH, "rate": 10 * BANDWIDTH, "efficiency": 0.6,
        "sharpness": 0.9,
    },
    "nvlink_one_sided": {
        "launch": 16 * MICRO, "rank": 0.05 * MICRO, "alone": 10 * BANDWIDTH, "token": 0.5 * MICRO,
        "rate": 10 * BANDWIDTH, "efficiency": 0.8, "sharpness": 1.5,
    },
}  # fmt: skip
"""Where parameters start, by way."""

Key = tuple[str, str, str, str]
"""Way, phase, engine and hardware."""


def fitted_records(text: str) -> Iterator[tuple[str, str]]:
    """Fit a table of exchanges: one of another project, or figures as those that ship.

    Yields records as TOML, each with how well it does on shapes that a first fit did not see.
    """
    groups = gathered((_key(figure), figure) for figure in read(text))
    for key, figures in sorted(groups.items()):
        record, judged = fit(figures)
        yield (
            record_to_toml(f'"{_name(key)}"', record),
            f"{_name(key)}: {quality(judged.fit)}",
        )


def _key(figure: DispatchFigure) -> Key:
    return figure.way, figure.phase, figure.engine, figure.hardware


def _name(key: Key) -> str:
    way, phase, engine, hardware = key
    engine_suffix = f".{engine}" if engine else ""
    return f"{way}-{phase}{engine_suffix}-{GENERATIONS[hardware][0]}"


def fit(figures: Sequence[DispatchFigure]) -> tuple[DispatchParameters, Judged]:
    """Fit one kernel of one engine on one kind of GPU."""
    way, phase, hardware = figures[0].way, figures[0].phase, figures[0].hardware
    guess = GUESSES[way]
    bare_record = shipped_records(DispatchParameters).get(_name((way, phase, "", hardware)))
    if figures[0].engine and bare_record is not None:
        guess = {name: getattr(bare_record, name) or value for name, value in guess.items()}
    start = DispatchParameters(provenance=NOWHERE, multiprocessors=_usual_sms(figures), **guess)  # type: ignore[arg-type]  # names

    def ratio_of(subset: Sequence[DispatchFigure]) -> Ratio:
        parts = list(_exchange_parts(subset))

        def ratio(kernel: DispatchParameters) -> Vector:
            result = np.empty(len(subset))
            for exchange, places, tokens, sizes, measured in parts:
                result[places] = exchange_seconds(exchange, kernel, tokens, sizes) / measured
            return result

        return ratio

    free = Free(
        names=tuple(guess),
        shares=frozenset({"efficiency"}),
        limits={"sharpness": (0.3, 4.0)},
        hold=HOLD,
    )
    record, judged = fit_record(figures, start, free, ratio_of, _held_back(figures))
    record = with_provenance(
        record,
        judged,
        _sizes(figures),
        source=SOURCE.format(figures[0].source),
        hardware=(hardware,),
        compute_capabilities=GENERATIONS[hardware][1],
    )
    return record, judged


def _usual_sms(figures: Sequence[DispatchFigure]) -> float:
    """Multiprocessors that the kernel gets where nobody says how many; 0 where it has no choice."""
    if WAYS[figures[0].way].workers != "channels":
        return 0.0
    counts = {figure.multiprocessors for figure in figures}
    return float(max(counts) or DEFAULT_SMS) if len(counts) == 1 else float(DEFAULT_SMS)


def _held_back(figures: Iterable[DispatchFigure]) -> tuple[str, Callable[[DispatchFigure], bool]]:
    """Keep every second shape of a model back; of one shape every second number of ranks."""
    figures = list(figures)
    key_of = _shape if len({_shape(figure) for figure in figures}) > 1 else _ranks
    held_keys = set(sorted({key_of(figure) for figure in figures})[1::2])
    return f"every second {key_of.__name__.strip('_')}", lambda figure: key_of(figure) in held_keys


def _shape(figure: DispatchFigure) -> tuple[int, ...]:
    return figure.hidden, figure.top_k, figure.experts


def _ranks(figure: DispatchFigure) -> tuple[int, ...]:
    return (figure.gpus,)


def _exchange_parts(
    figures: Sequence[DispatchFigure],
) -> Iterator[tuple[Exchange, list[int], Vector, Vector, Vector]]:
    """Yield each exchange with the places of its figures, their tokens, bytes and seconds."""
    places = gathered((figure.exchange, index) for index, figure in enumerate(figures))
    for exchange, indices in places.items():
        rows = [figures[index] for index in indices]
        columns = [(float(row.tokens), row.token_bytes, float(row.seconds)) for row in rows]
        yield (exchange, indices, *np.array(columns).T)


def _sizes(figures: Sequence[DispatchFigure]) -> dict[str, Vector]:
    names = {"tokens": "tokens", "bytes": "token_bytes", "experts": "experts", "ranks": "gpus"}
    return {
        name: np.array([getattr(figure, field) for figure in figures], float)
        for name, field in names.items()
    }


def knows_table(text: str) -> bool:
    """Whether `fitted_records` knows the columns of a table."""
    head = text.partition("\n")[0]
    return any(column in head for column in ("dispatch_", "comm_backend", "top_groups"))


def read(text: str) -> Iterator[DispatchFigure]:
    """Yield the exchanges of a table."""
    if "top_groups" in text.partition("\n")[0]:
        yield from (figure for figure in read_figures(text) if figure.hardware in GENERATIONS)
        return
    for row in csv.DictReader(text.splitlines()):
        if "comm_backend" not in row:
            yield from _bare_figures(row)
        elif row["comm_dtype"] != ROUNDED_FORMAT and row["comm_backend"] in NAMES:
            yield _engine_figure(row)


def _bare_figures(row: Mapping[str, str]) -> Iterator[DispatchFigure]:
    """Yield both phases of a row of a kernel by itself: fp8 goes out."""
    high_throughput = "dispatch_transmit_us" in row
    for phase, precision in (("dispatch", "fp8"), ("combine", "bf16")):
        microseconds = row[f"{phase}_transmit_us" if high_throughput else f"{phase}_avg_t_us"]
        yield DispatchFigure(
            way="deepep_normal" if high_throughput else "deepep_low_latency",
            phase=phase,
            hardware=SYSTEMS[row["system"]][0],
            gpus=BARE_RANKS,
            tokens=int(row["num_token"]),
            hidden=int(row["hidden_size"]),
            top_k=int(row["num_topk"]),
            experts=int(row["num_experts"]),
            precision=precision,
            multiprocessors=int(row.get(f"{phase}_sms", 0)),
            seconds=Seconds(float(microseconds) * MICRO),
            source=TABLES.format("deepep"),
        )


def _engine_figure(row: Mapping[str, str]) -> DispatchFigure:
    """Read a phase as an engine runs it; ``us`` is in nanoseconds there."""
    way, phase = NAMES[row["comm_backend"]], row["phase"]
    microseconds = float(row["transmit_us"]) + float(row["notify_us"])
    return DispatchFigure(
        way=way,
        phase=phase,
        hardware=SYSTEMS[row["system"]][0],
        gpus=int(row["ep_size"]),
        tokens=int(row["num_tokens"]),
        hidden=int(row["hidden_size"]),
        top_k=int(row["topk"]),
        experts=int(row["num_experts"]),
        precision=SENT_FORMATS[row["comm_dtype"]] if phase == "dispatch" else "bf16",
        multiprocessors=0 if way == "deepep_low_latency" else int(row["sms"]),
        engine=ENGINES[row["engine"]],
        seconds=Seconds(microseconds * MICRO),
        source=TABLES.format("moe_a2a"),
    )
