"""``python -m runner build|run|show``: the engines of the plan in this folder."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite, nan
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner import harness, pictures, texts
from planner.tensorrt.runner.build import Log, Options, logger
from planner.tensorrt.runner.checkpoint import Embedding
from planner.tensorrt.runner.connections import join
from planner.tensorrt.runner.device import nccl_version, open_cuda, open_nccl
from planner.tensorrt.runner.errors import InputError, MissingError, RunError
from planner.tensorrt.runner.library import (
    Document,
    Foreign,
    is_rtx,
    load,
    numbers,
    require,
    version,
)
from planner.tensorrt.runner.place import meets_at, rank_of
from planner.tensorrt.runner.processes import WRONG, Guard, start
from planner.tensorrt.runner.run import Job, Limits, Outcome, Parts, run

LATE: Final = 3
STOPPED: Final = 130
MIB: Final = 2**20
MOST: Final = 2**40
"""Largest number of an option."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        folder = harness.open_folder(arguments.folder)
        return int(arguments.command(folder, arguments))
    except RunError as error:
        printable = "".join(
            character if character.isprintable() else " " for character in str(error)
        )
        print(f"runner: {' '.join(printable.split())}", file=sys.stderr)
        return WRONG if isinstance(error, InputError | MissingError) else 1


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _number(words: str, kind: type[int] | type[float] = int, least: float = 0) -> int | float:
    """Read a number that is not below the least; the parser names its option."""
    try:
        value = kind(words)
    except ValueError:
        value = nan
    if not isfinite(value) or value < least or value > MOST:
        number_kind = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(
            f"got {words[:40]}, wanted a {number_kind} of at least {least}"
        )
    return value


_whole: Final[Callable[[str], int | float]] = partial(_number, kind=int)
_positive: Final[Callable[[str], int | float]] = partial(_number, kind=int, least=1)
_distance: Final[Callable[[str], int | float]] = partial(_number, kind=float)
_seconds: Final[Callable[[str], int | float]] = partial(_number, kind=float, least=1)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="runner", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="what the folder holds")
    show.set_defaults(command=_show)
    build = commands.add_parser("build", help="build the engines that are not there yet")
    build.add_argument("--weights", default="drawn", help="drawn, filler, or a folder")
    build.add_argument(
        "--level", type=int, choices=range(6), default=3, help="optimisation, 0 to 5"
    )
    build.add_argument("--workspace", type=_whole, default=0, metavar="MIB")
    build.add_argument("--streaming", action="store_true", help="weights may stay on the host")
    build.add_argument(
        "--keep",
        choices=("engine", "file"),
        help="weights within engines, or beside them (default: beside, where read from a folder)",
    )
    build.add_argument("--capability", default="", help="such as SM120 (TensorRT-RTX alone)")
    build.add_argument(
        "--record", action="store_true", help="write what cpp/builder builds; takes no TensorRT"
    )
    build.add_argument("--again", action="store_true", help="engines that are there too")
    build.set_defaults(command=_build)
    run_parser = _run_options(commands)
    generate_parser = commands.add_parser(
        "generate", help="a picture or video of a prompt, by diffusers, or text behind it"
    )
    generate_parser.add_argument("prompt", nargs="+", help="one, or of text one for each sample")
    generate_parser.add_argument(
        "--tokens", type=_positive, help="of a text, at most (default: as exported)"
    )
    generate_parser.add_argument("--negative", help="what a picture shall not show")
    generate_parser.add_argument(
        "--guidance", type=_distance, help="how far (default: the model's usual)"
    )
    generate_parser.add_argument(
        "--picture", help="that the model reads, such as a video's first frame"
    )
    generate_parser.add_argument(
        "--mask", help="picture that is white where the other is made anew"
    )
    generate_parser.add_argument("--seed", type=_whole, help="of a picture's noise (default: 0)")
    generate_parser.add_argument(
        "--weights", default="", help="pipeline (default: the engines' own)"
    )
    generate_parser.add_argument("--output", help="file of a picture (default: result.png or .mp4)")
    generate_parser.add_argument(
        "--graph", action="store_true", help="replay steps as a CUDA graph"
    )
    generate_parser.add_argument(
        "--total", type=_seconds, default=3600, help="seconds for all steps"
    )
    generate_parser.set_defaults(command=_generate)
    for command in (show, build, run_parser, generate_parser):
        command.add_argument("--folder", default=".", help="of the plan")
    return parser


def _run_options(commands: "argparse._SubParsersAction[Parser]") -> argparse.ArgumentParser:
    run_parser = commands.add_parser("run", help="run the plan, one process a rank")
    run_parser.add_argument(
        "--steps", type=_whole, default=0, help="denoising steps; all if left out"
    )
    run_parser.add_argument(
        "--tokens", type=_positive, help="of a language model: each step goes on from the likeliest"
    )
    run_parser.add_argument("--graph", action="store_true", help="replay steps as a CUDA graph")
    run_parser.add_argument("--device", type=_whole, help="GPU of this rank (default: the plan's)")
    run_parser.add_argument("--budget", type=_whole, metavar="MIB", help="weights kept on the GPU")
    run_parser.add_argument(
        "--limit", type=_seconds, default=120.0, help="seconds that a step may take"
    )
    run_parser.add_argument(
        "--load-limit", type=_seconds, default=600.0, help="to load engines, and to fill buffers"
    )
    run_parser.add_argument(
        "--meet-limit", type=_seconds, default=120.0, help="until all ranks have come, and bound"
    )
    run_parser.add_argument("--total", type=_seconds, default=3600, help="seconds for everything")
    run_parser.add_argument(
        "--layers", action="store_true", help="one step more, in which each layer is timed"
    )
    run_parser.add_argument(
        "--second", action="store_true", help="engines of the transformer that takes over"
    )
    run_parser.add_argument("--results", default="results", help="folder, beside the plan")
    run_parser.set_defaults(command=_run)
    return run_parser


def _show(folder: harness.Folder, arguments: argparse.Namespace) -> int:
    del arguments
    plan = folder.plan
    print(f"{plan['model']} {plan['plan']} on {plan['hardware']}, {plan['precision']}")
    for document in folder.documents:
        engines = folder.engines(document)
        built_count = sum(path.exists() for path in engines)
        layers = len(document["layers"])
        print(
            f"  {document['name']}: {layers} layers, {built_count} of {len(engines)} engines built"
        )
    return 0


def _build(folder: harness.Folder, arguments: argparse.Namespace) -> int:
    if arguments.record and arguments.capability:
        raise InputError("--capability: got one, wanted none with --record: TensorRT-RTX alone")
    options = Options(
        workspace=arguments.workspace * MIB,
        level=arguments.level,
        streaming=arguments.streaming,
        capability=arguments.capability,
        outside=_outside(arguments),
    )
    turns = harness.turns(folder, arguments.weights)
    sources = [harness.weights_for(each, arguments.weights) for each in turns]
    if arguments.weights not in harness.MADE_UP and not folder.plan["computes"]:
        print(f"{folder.plan['model']}: networks for timing, which do not compute the model")
    for line in () if arguments.record else _other_version(load(), folder.plan):
        print(line, flush=True)  # before anything is written
    build_engines = harness.record_all if arguments.record else harness.build_all
    for each, source in zip(turns, sources, strict=True):
        record = _settle(each, _told(arguments, outside=options.outside), again=arguments.again)
        try:
            build_engines(each, source, options, lambda line: print(line, flush=True))
        finally:
            if not _there(each):
                record.unlink(missing_ok=True)
    return 0


def _other_version(library: ModuleType, plan: Document) -> Iterator[str]:
    """Say that engines are built by another TensorRT than networks were written for."""
    installed, wanted = version(library), str(plan["tensorrt_version"])
    if is_rtx(library):
        yield f"TensorRT-RTX {installed} builds engines, and does not run those of several GPUs"
    elif numbers(installed)[:2] != numbers(wanted)[:2]:
        yield (
            f"networks were written for TensorRT {wanted}, and {installed} is here: planner export "
            f"--tensorrt-version {installed} minds its faults"
        )


def _there(folder: harness.Folder) -> list[Path]:
    """List the engines that are there, and calls that build one."""
    engine_paths = [path for network in folder.documents for path in folder.engines(network)]
    return [
        file for path in engine_paths for file in (path, harness.calls_of(path)) if file.exists()
    ]


def _told(arguments: argparse.Namespace, *, outside: bool) -> dict[str, object]:
    """Say how engines are to be built, by the options of the command line."""
    made_up = arguments.weights in harness.MADE_UP
    return {
        "weights": arguments.weights if made_up else str(Path(arguments.weights).resolve()),
        "keep": "file" if outside else "engine",
        **{name: getattr(arguments, name) for name in ("level", "workspace", "streaming")},
        "capability": arguments.capability,
    }


def _settle(folder: harness.Folder, build_options: Mapping[str, object], *, again: bool) -> Path:
    """Keep engines that are there, and remember how those of the folder are built.

    Returns the file that says how.

    Raises `InputError` if they were built otherwise: ranks would have different weights, or not
    those asked for.
    """
    existing = _there(folder)
    record = folder.built / "built.json"
    built_options = harness.document_at(record) if existing and record.exists() else build_options
    for name, value in {} if again else build_options.items():
        if built_options.get(name) != value:
            raise InputError(
                f"{existing[0]}: built with --{name} {built_options.get(name)}, got {value}; "
                "--again builds it anew"
            )
    for path in existing:
        if again:
            path.unlink()
        else:
            print(f"{path.name}: there already")
    if again or not existing:
        harness.save(record.parent, record.stem, build_options)
    return record


def _outside(arguments: argparse.Namespace) -> bool:
    """Whether weights lie beside engines: a checkpoint's do, as builders copy what is inside."""
    if arguments.streaming and arguments.keep == "file":
        raise InputError("--keep: got file, wanted engine with --streaming")
    if arguments.keep:
        return bool(arguments.keep == "file")
    return not (arguments.weights in harness.MADE_UP or arguments.streaming)


def _run(folder: harness.Folder, arguments: argparse.Namespace) -> int:
    ranks = folder.plan["ranks"]
    folder = replace(folder, second=arguments.second)
    rank = rank_of(os.environ, len(ranks))
    if arguments.tokens and texts.text_of(folder.plan) is None:
        raise InputError(f"--tokens: got one, wanted none: {folder.plan['model']} makes no text")
    if arguments.graph and arguments.budget is not None:
        raise InputError(
            "--graph: got it beside --budget, wanted one: engines that stream weights are in no "
            "graph"
        )
    harness.check_built(folder, range(len(ranks)) if rank is None else [rank])
    if rank is not None:
        return _rank(folder, rank, arguments)
    _start(folder, sys.argv[1:], arguments.total)
    return 0


def _start(folder: harness.Folder, words: Sequence[str], limit: float) -> None:
    """Run all ranks on this host.

    Raises `InputError` if the plan's are on several.
    """
    ranks = folder.plan["ranks"]
    hosts = len({rank.get("host", 0) for rank in ranks})
    if hosts > 1:
        raise InputError(f"the ranks are on {hosts} hosts: start them by mpirun or torchrun")
    start(["-m", __package__ or "runner", *words], len(ranks), limit, os.environ)


def _generate(folder: harness.Folder, arguments: argparse.Namespace) -> int:
    """Encode a prompt, run all ranks on this host, and decode what they leave."""
    text, model = texts.text_of(folder.plan), folder.plan["model"]
    if text is None and folder.plan["vocabulary"]:
        remedy = "planner export --output-tokens N"
        raise InputError(f"{model}: exported for a prompt alone; for text behind it: {remedy}")
    if text is None and len(arguments.prompt) > 1:
        raise InputError(
            f"prompt: got {len(arguments.prompt)}, wanted one: {model} makes a picture"
        )
    picture_options = ("negative", "guidance", "seed", "output", "picture", "mask")
    refused_options = ("tokens",) if text is None else picture_options
    for name in refused_options:
        if getattr(arguments, name) is not None:
            output_kind = "a picture" if text is None else "text"
            raise InputError(f"--{name}: got it, wanted none: {model} makes {output_kind}")
    if text is None:
        return _picture(folder, arguments)
    return _text(folder, text, arguments)


def _picture(folder: harness.Folder, arguments: argparse.Namespace) -> int:
    plan = folder.plan
    suffix = pictures.check_made(plan)
    shown = {
        "picture": (arguments.picture, pictures.reads_picture(plan)),
        "mask": (arguments.mask, pictures.reads_mask(plan)),
    }
    for name, (path, needs_picture) in shown.items():
        if needs_picture != bool(path):
            got, expected = ("none", "one") if needs_picture else ("one", "none")
            raise InputError(
                f"--{name}: got {got}, wanted {expected}: that is what {plan['model']} reads"
            )
    read = {name: harness.picture_at(path, name) for name, (path, _) in shown.items() if path}
    target = arguments.output or f"result{suffix}"
    if not Path(target).absolute().parent.is_dir():
        raise InputError(f"--output: got {target[:200]}, wanted a file in a folder that is there")
    weights = harness.pipeline_of(arguments.weights or _weights(folder))
    pipe = pictures.opened(weights, plan)
    picture_request = pictures.Asked(
        prompt=arguments.prompt[0],
        negative=arguments.negative or "",
        seed=arguments.seed or 0,
        guidance=arguments.guidance,
        **read,
    )
    rows = _in_turns(folder, arguments, pipe, pictures.prepared(pipe, plan, picture_request))
    pictures.decoded(pipe, plan, rows, target)
    print(target)
    return 0


def _in_turns(
    folder: harness.Folder, arguments: argparse.Namespace, pipe: Foreign, inputs: pictures.Arrays
) -> NDArray[np.float32]:
    """Run all steps, those of a second transformer on its own engines; give rows of latents."""
    plan = folder.plan
    rows = inputs[f"{plan['output']}#0"]
    for second, steps in enumerate(pictures.taken_turns(pipe, plan, inputs)):
        if steps:
            words = ["--steps", str(steps), *(["--second"] if second else [])]
            _run_all(folder, arguments, inputs, words)
            rows = np.stack(harness.results_of(folder, "output"))
            inputs = pictures.passed_on(inputs, steps, plan["output"], rows)
    return np.asarray(rows, np.float32)


def _text(folder: harness.Folder, text: texts.Text, arguments: argparse.Namespace) -> int:
    plan = folder.plan
    if not plan["computes"]:
        raise InputError(f"{plan['model']}: networks for timing, which do not compute the model")
    weights = _weights(folder)
    tokenizer = texts.tokenizer_in(arguments.weights or weights)
    prompts = [tokenizer.encode(prompt).ids for prompt in arguments.prompt]
    count, ranks = len(prompts), plan["ranks"]
    if count not in {1, ranks[0]["samples"]}:
        expected = f"1, or {ranks[0]['samples']} as exported for (planner export --batch)"
        raise InputError(f"prompt: got {count}, wanted {expected}")
    tokens = arguments.tokens or min(plan["steps"], text.room - max(map(len, prompts)) + 1)
    for prompt in prompts:
        text.check(len(prompt), tokens)
    samples = np.resize(texts.padded(prompts), (ranks[0]["samples"], max(map(len, prompts))))
    words, ends = ["--tokens", str(tokens)], harness.ends_in(weights)
    _run_all(folder, arguments, {f"{text.prompt}#0": samples}, words)
    for token_ids in harness.results_of(folder, "tokens")[:count]:
        print(texts.said(tokenizer, token_ids.tolist(), ends))
    return 0


def _weights(folder: harness.Folder) -> str:
    """Return the folder of the weights that all engines were built of.

    Raises `InputError` if some are not built, or of made-up numbers.
    """
    built_from = harness.built_of(folder)
    for each in harness.turns(folder, built_from):
        harness.check_built(each, range(len(folder.plan["ranks"])), " --weights FOLDER")
    if built_from in harness.MADE_UP:
        remedy = "python -m runner build --weights FOLDER --again"
        raise InputError(f"engines: got {built_from} weights, which make noise; run: {remedy}")
    return built_from


def _run_all(
    folder: harness.Folder,
    arguments: argparse.Namespace,
    inputs: Mapping[str, NDArray[np.generic]],
    words: Sequence[str] = (),
) -> None:
    """Write inputs, and run all ranks on this host."""
    for name, array in inputs.items():
        harness.save(folder.path / "inputs", name, array)
    run_words = ["run", "--folder", str(folder.path), "--total", str(arguments.total), *words]
    _start(folder, [*run_words, *(["--graph"] if arguments.graph else [])], arguments.total)


def _rank(folder: harness.Folder, rank: int, arguments: argparse.Namespace) -> int:
    guard = Guard(lambda line: _expire(rank, line), partial(signal.setitimer, signal.ITIMER_REAL))
    guard.start()
    plan = folder.plan
    limits = Limits(
        load_s=arguments.load_limit,
        meet_s=arguments.meet_limit,
        bind_s=arguments.meet_limit,
        step_s=arguments.limit,
    )
    ranks, needs = plan["ranks"], plan["needs"]
    meeting_point = meets_at(os.environ)
    for name, value in plan["environment"].items():
        os.environ.setdefault(name, value)
    guard.phase("rendezvous", limits.meet_s + 10)
    library = load()
    _check_library(library, needs["tensorrt"], len(ranks))
    connections = join(rank, len(ranks), meeting_point, limits.meet_s, plan["digest"])
    embedding, text = harness.embedding_of(folder), texts.text_of(plan)
    job = Job(
        plan=plan,
        rank=rank,
        documents=folder.documents,
        tables={
            document["name"]: folder.tables(document, rank) for document in folder.run_by(rank)
        },
        engines=harness.engine_of(folder, rank),
        outside=harness.outside_of(folder, rank),
        given=harness.given_from(folder.path / "inputs", embedding, harness.counted(plan)),
        starts=harness.starts_of(folder, rank),
        limits=limits,
        graph=arguments.graph,
        steps=arguments.steps,
        layers=arguments.layers,
        budget=-1 if arguments.budget is None else arguments.budget * MIB,
    )
    if text is not None:
        job = _talking(folder, text, job, embedding, arguments.tokens)
    plan_device = ranks[rank]["device"]
    parts = Parts(
        library=library,
        device=open_cuda(plan_device if arguments.device is None else arguments.device),
        nccl=open_nccl(),
        connections=connections,
        guard=guard,
        logger=logger(library, Log()),
    )
    require("NCCL", nccl_version(), needs.get("nccl", ""))
    _leave(run(job, parts), rank, Path(arguments.folder) / arguments.results, job.follow)
    guard.end()
    connections.close()
    sys.stdout.flush()
    os._exit(0)  # libraries that hold communicators may hang when they are unloaded


def _talking(
    folder: harness.Folder,
    text: texts.Text,
    job: Job,
    embedding: Embedding,
    tokens: int | None,
) -> Job:
    """Tell a rank of a language model how it goes on, if it does."""
    for count in job.starts[texts.FILLED].flat:
        text.check(int(count), tokens or 1)
    if tokens is None:
        return job
    follow = texts.Likeliest(
        name=text.following,
        embedding=embedding,
        vocabulary=folder.plan["vocabulary"],
        most=tokens,
        ends=harness.ends_in(harness.built_of(folder)),
    )
    return replace(job, steps=tokens - 1, follow=follow)


def _check_library(library: ModuleType, needs: str, ranks: int) -> None:
    """Refuse a TensorRT that is too old, or TensorRT-RTX where there are several ranks.

    Raises `MissingError`, saying what there is, and what is wanted.
    """
    if not is_rtx(library):
        require("TensorRT", version(library), needs)
    elif ranks > 1:
        raise MissingError(
            f"TensorRT-RTX {version(library)} is here, which runs no engines of several GPUs: "
            f"wanted TensorRT {needs} or newer"
        )


def _leave(outcome: Outcome, rank: int, results: Path, follow: texts.Follow | None) -> None:
    """Write what a rank has to show."""
    if isinstance(follow, texts.Likeliest):
        harness.save(results, f"tokens.rank{rank}", np.stack(follow.chosen, axis=1))
    timing = {"step_s": outcome.seconds, "bound": outcome.bound}
    harness.save(results, f"output.rank{rank}", outcome.output)
    harness.save(results, f"times.rank{rank}", timing)
    harness.save(results, f"layers.rank{rank}", outcome.layers)
    if rank == 0:
        ordered = sorted(outcome.seconds)
        print(f"{len(ordered)} steps, median {ordered[len(ordered) // 2]:.4f} s", flush=True)


def _expire(rank: int, line: str) -> None:
    print(f"runner: rank {rank}: {line}", file=sys.stderr, flush=True)
    os._exit(LATE)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(STOPPED)
