"""What an engine's own benchmark of a language model is asked, and what it says [1]_ [2]_.

Weights are random and nothing is downloaded: the engine gets a folder with the configuration of the
catalogue, and a tokenizer that is never asked. Two things are timed: a prompt, which is the time to
the first token, and steps that decode after it.

References
----------
.. [1] vllm, ``vllm bench latency``: ``vllm/benchmarks/latency.py`` at 00cae0753b8d
.. [2] sglang, ``python -m sglang.bench_one_batch``: ``bench_one_batch.py`` at 009441505062
"""

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from planner.engines.engine import Engines
from planner.engines.tables import find_engine
from planner.models import known_as, read_model
from planner.runners.launch import launches
from planner.runners.launch_settings import settings_of
from planner.runners.refusal import refusal
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, InputError, environment
from topology.base.values import dataclass
from validate.engines import files
from validate.launch import is_rank
from validate.plans import system
from validate.plans.cases import STEPS, Case, bench_sizes
from validate.plans.measured import Measured

REPEATS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """How an engine's own benchmark is started, and what it can run.

    start : words of Python's command line, where a launch line has as many `own` words.
    flags : beside those of the plan. axes : that it can run. package : and how it is installed.
    cache : what its log says of the tokens that its cache holds.
    """

    package: str
    install: str
    own: int
    start: tuple[str, ...]
    flags: tuple[str, ...]
    axes: tuple[str, ...]
    cache: re.Pattern[str]


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "vllm": Benchmark(
        package="vllm",
        install="pip install 'vllm'",
        own=3,
        start=("-m", "vllm.entrypoints.cli.main", "bench", "latency", "--model"),
        flags=("--skip-tokenizer-init", "--disable-detokenize", "--num-iters-warmup", "2"),
        axes=("tp", "pp"),
        cache=re.compile(r"GPU KV cache size: ([\d,]+) tokens"),
    ),
    "sglang-llm": Benchmark(
        package="sglang",
        install="pip install 'sglang[all]'",
        own=5,
        start=("-m", "sglang.bench_one_batch", "--model-path"),
        flags=("--run-name", "planner"),
        axes=("tp",),
        cache=re.compile(r"max_total_num_tokens=(\d+)"),
    ),
}


def check(cases: Sequence[Case], hardware: str) -> None:
    """Refuse what an engine's benchmark cannot run, or this host lacks for it.

    Raises InputError if a mode or a model is none of the engine's, or it is not installed.
    Raises IllegalPlanError if the engine or its benchmark refuses a plan.
    """
    if is_rank(environment()):
        raise InputError(
            "torchrun or mpirun: got ranks of it, wanted none: engines start their own"
        )
    for case in cases:
        bench = BENCHMARKS[case.engine]
        if case.mode == "compile":
            raise InputError(f"mode: got compile, wanted eager or graph with {bench.package}")
        if case.stage == "denoise":
            raise InputError(f"model: got {case.model}, wanted a language model")
        configuration(case)
        _check_precision(case)
        plan = parse_plan(case.plan)
        reason = refusal(resolve(case.request(hardware)), plan)
        if reason:
            raise IllegalPlanError(f"plan {plan}: {case.engine} {reason}")
        refused_axes = [axis for axis, _ in plan.axes if axis not in bench.axes]
        if refused_axes:
            requirement = f"{' and '.join(bench.axes)} alone with {bench.package}'s own benchmark"
            raise IllegalPlanError(f"plan {plan}: got {refused_axes[0]}, wanted {requirement}")
    if find_spec(bench.package) is None:
        raise InputError(f"{bench.package}: got none, wanted it: {bench.install}")


def _check_precision(case: Case) -> None:
    """Refuse weights that random ones cannot stand for: neither plain nor the checkpoint's own."""
    published = read_model(case.model).quantisation
    native = "fp8" if published is None else published.precision
    if case.precision not in ("bf16", "fp16", native):
        choices = f"bf16, fp16 or {native} with {case.model}"
        raise InputError(f"precision: got {case.precision}, wanted {choices}")


def configuration(case: Case) -> dict[str, Any]:
    """Give the config.json of a catalogue model, in the precision that is asked for."""
    name = known_as(case.model)
    if not name:
        raise InputError(f"model: got {case.model!r}, wanted one of the catalogue")
    config = dict(tomllib.loads(files.catalogue_text(name))["config"])
    if case.precision in ("bf16", "fp16"):
        config.pop("quantization_config", None)
    return {**config, "torch_dtype": "float16" if case.precision == "fp16" else "bfloat16"}


def make_folder(case: Case, folder: Path) -> None:
    """Write what an engine loads instead of a download."""
    word_model = {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
    documents = {
        "config.json": configuration(case),
        "tokenizer.json": {"version": "1.0", "added_tokens": [], "model": word_model},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, content in documents.items():
        system.write(folder / name, json.dumps(content))


def command(case: Case, hardware: str, folder: Path, results: Path) -> list[str]:
    """Write the benchmark of a case, with the launch line's own flags for its plan."""
    bench, scenario = BENCHMARKS[case.engine], resolve(case.request(hardware))
    plan, bench_size = parse_plan(case.plan), bench_sizes(scenario)
    prompt, sizes = bench_size.prompt, {"length": bench_size.longest, "chunk": bench_size.chunk}
    settings = replace(settings_of(scenario, plan), folder=str(folder), sizes=sizes)
    engines = Engines((find_engine(case.engine),))
    (launch,) = launches(engines, scenario.model, plan, settings)
    launch_words = shlex.split(launch.command)[bench.own :]
    words = [sys.executable, *bench.start, str(folder), *launch_words, "--load-format", "dummy"]
    words += [*bench.flags, "--batch-size", str(case.batch)]
    if case.engine == "vllm":
        output_tokens = 1 if case.stage == "prefill" else 1 + STEPS
        return [
            *words, "--input-len", str(prompt), "--output-len", str(output_tokens),
            "--num-iters", str(REPEATS), "--output-json", str(results),
        ]  # fmt: skip
    prompt_lengths = [str(prompt)] * REPEATS
    output_tokens = 1 + STEPS
    return [
        *words, "--input-len", *prompt_lengths, "--output-len", str(output_tokens),
        "--result-filename", str(results),
    ]  # fmt: skip


def read_times(engine: str, stage: str, text: str) -> list[float]:
    """Read the seconds of each repeat from the results of a benchmark.

    Of vLLM they are those of whole requests; of SGLang those of the stage, as its median over the
    steps that decode.
    """
    if engine == "vllm":
        return [float(seconds) for seconds in json.loads(text)["latencies"]]
    name = "prefill_latency" if stage == "prefill" else "median_decode_latency"
    return [float(json.loads(row)[name]) for row in text.splitlines() if row.strip()]


def cache_tokens(engine: str, log: str) -> int:
    """Read how many tokens an engine's cache holds off its log, 0 where it does not say."""
    counts = BENCHMARKS[engine].cache.findall(log)
    return int(counts[-1].replace(",", "")) if counts else 0


def row_of(case: Case, times: Sequence[float], tokens: int) -> Measured:
    """Write the repeats of a stage as a row of plans."""
    median_s = median(times)
    rate = f"{case.batch / median_s:,.0f} tokens/s" if case.stage == "decode" else ""
    return Measured(
        case=case,
        status="done",
        note=rate,
        step_s=median_s,
        mean_s=mean(times),
        wall_s=mean(times),
        low_s=min(times),
        high_s=max(times),
        repeats=len(times),
        cache_tokens=tokens,
    )
