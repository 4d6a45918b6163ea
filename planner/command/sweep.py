"""``planner sweep``: many questions in one, a row for each."""

import argparse
import time
from functools import partial
from typing import Final

from planner.command import options as common
from planner.command.files import render, tell
from topology.base import InputError, format_seconds, place

_REQUEST_FIELDS: Final = ("batch", "precision", "kv_precision", "runtime", "engine", "profile")
_LIST_OPTIONS: Final = {
    "--model NAMES": "catalogue names or files, joined by commas",
    "--hardware NAMES": "kinds of GPU, names or files, joined by commas (default: h100-sxm)",
    "--gpus NUMBERS": "such as 8, 1,2,4 or 1:64 (default: 1)",
    "--plan PLANS": "plans joined by commas, all that are legal, or the best of each question "
    "(default: best)",
}
_RANGE: Final = "numbers, such as 512,1024 or 480:1080:120 (default: the model's usual one)"


def _add_options(parser: argparse.ArgumentParser) -> None:
    defaults = {"--hardware NAMES": "h100-sxm", "--gpus NUMBERS": "1", "--plan PLANS": "best"}
    for option, text in _LIST_OPTIONS.items():
        name, metavar = option.split()
        required = option not in defaults
        parser.add_argument(
            name, default=defaults.get(option), required=required, action=common.Named,
            metavar=metavar, help=text,
        )  # fmt: skip
    for name in ("height", "width", "frames", "steps", "input_tokens", "output_tokens"):
        common.add_named(parser, {f"--{name.replace('_', '-')} N": _RANGE}, default=None)
    parser.add_argument("--batch", type=common.whole, default=1, help="(default: 1)")
    common.add_precision(parser)
    parser.add_argument("--runtime", help="as for estimate (default: the engine's)")
    common.add_named(parser, {"--engine": "as for estimate (default: none)"})
    common.add_profile(parser)
    parser.add_argument(
        "--executor", default="local",
        help="local, the cores of this machine, or dask, a cluster of yours (default: local)",
    )  # fmt: skip
    common.add_named(parser, {"--scheduler ADDRESS": "of the cluster, such as tcp://10.0.0.1:8786"})
    common.add_flags(parser, {"--resume": "go on with what a sweep that was stopped has done"})
    common.add_output(parser, file=False)
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="rows: .csv, .jsonl or .parquet"
    )


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner.request.request import RUNTIME  # noqa: PLC0415  # slow to load
    from planner.sweeping import SIZES, executor_of, questions_of  # noqa: PLC0415
    from planner.sweeping.files import remove, write  # noqa: PLC0415
    from planner.sweeping.rows import writer_of  # noqa: PLC0415
    from planner.sweeping.run import run_kept  # noqa: PLC0415

    start_s, output = time.monotonic(), options.output
    text_of, target = writer_of(output), place(output)
    if target.exists() and not target.is_file():
        raise InputError(f"--output {output}: wanted a file, or a name that is free")
    request_fields = {name: getattr(options, name) for name in (*SIZES, *_REQUEST_FIELDS)}
    question_set = questions_of(
        options.model, options.hardware, options.gpus, options.plan, request_fields
    )
    executor = executor_of(options.executor, options.scheduler)
    portions_folder = target.with_name(f"{target.name}.portions")
    if portions_folder.exists() and not options.resume:
        remedy = "--resume, or that folder removed"
        raise InputError(
            f"--output {output}: {portions_folder} is of an unfinished sweep, wanted {remedy}"
        )
    rows = run_kept(question_set, executor, partial(tell, "sweep"), portions_folder)
    if target.exists():
        tell("sweep", f"{output} was there, and is replaced")
    write(target, text_of(rows))
    remove(portions_folder)
    options.output = None  # the file of rows; what was done goes to the screen
    seconds = format_seconds(time.monotonic() - start_s)
    line = f"{output}: {len(rows):,} rows of {question_set.questions:,} questions in {seconds}"
    if not (options.runtime or options.engine):
        line += f", priced as {RUNTIME} (--engine prices what an engine takes)"
    summary = {"output": output, "rows": len(rows), "questions": question_set.questions}
    return render(options.format, lambda: summary, lambda: [line]), 0


COMMAND: Final = common.Command(
    help="many questions in one, a row for each",
    text="Price every combination of models, hardware, numbers of GPUs, sizes and plans, and\n"
    "write a row for each. What is done is kept beside the file until all is: --resume\n"
    "goes on after a stop.",
    examples=""
    "planner sweep --model flux,wan2.1-14b --hardware b200,l40s --gpus 1:8 --output a.csv\n"
    "    the best plan of each, as CSV\n"
    "planner sweep --model flux --gpus 8 --height 512,1024 --plan all --output all.jsonl\n"
    "    all legal plans for four sizes, a line of JSON each",
    add=_add_options,
    run=_run_command,
)
