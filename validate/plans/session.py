"""Time models under plans on this host's GPUs: ``python3 -m validate.plans.session --output DIR``.

Cases are run in the order of their worth until ``--minutes`` are over. Run it again with the same
DIR and it goes on with what has no result yet. Rows are in ``DIR/results.jsonl``, what they were
measured on in ``DIR/manifest.json``. It needs PyTorch and numpy.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

from costmodels.tables import profile_for
from planner.command.options import Parser, real, whole
from topology.base import InputError, ModelError, is_file, unknown
from topology.catalogue import find_hardware
from validate.launch import TimeLimits
from validate.plans import system
from validate.plans.cases import Case, Mode, cross
from validate.plans.checks import check_cases, check_gpus, check_positive, hardware_of
from validate.plans.compare import compare
from validate.plans.measured import read_measured, remaining
from validate.plans.report import markdown, text
from validate.plans.restarts import RunOptions, run

SUBJECTS: Final = (
    Case(model="flux.1-dev", height=1024, width=1024),
    Case(model="wan2.1-1.3b", height=480, width=832, frames=81),
    Case(model="llama-3.1-8b", input_tokens=8192, stage="prefill"),
    Case(model="cosmos3-nano", height=480, width=832, frames=189),
    Case(model="flux.1-dev", height=2048, width=2048),
    Case(model="hunyuanvideo", height=544, width=960, frames=97),
    Case(model="wan2.1-14b", height=480, width=832, frames=81),
    Case(model="cosmos3-nano", height=720, width=1280, frames=189),
)
PLANS: Final = ("single", "tp2", "ulysses2", "allgather_kv2", "ring2")
MODES: Final = ("graph", "eager", "compile")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a session; returns the exit code."""
    try:
        return _session(_parser().parse_args(argv))
    except (InputError, ModelError) as error:
        system.complain(f"gpu_session: {error}")
        return 2 if isinstance(error, InputError) else 1


def _session(arguments: argparse.Namespace) -> int:
    cases = _cases(arguments)
    check_gpus(arguments.gpus)
    check_cases(cases, arguments.gpus, arguments.device)
    if arguments.list:
        system.say("\n".join(case.key for case in cases))
        return 0
    if arguments.output is None:
        raise InputError("the following arguments are required: --output")
    for name in ("minutes", "budget", "gate"):
        check_positive(name, getattr(arguments, name))
    log = arguments.output / "session.log"
    products = system.products() if arguments.device == "cuda" else []
    hardware = find_hardware(hardware_of(products[0] if products else "", arguments.hardware)).name
    profile_for(hardware, arguments.profile)  # what cannot be read is said before a long session
    options = RunOptions(
        gpus=arguments.gpus,
        hardware=hardware,
        device=arguments.device,
        compiler=arguments.compiler,
        budget_s=arguments.budget,
        seconds=60 * arguments.minutes,
        limits=TimeLimits(start_s=120),
    )
    rows = run(cases, options, arguments.output, partial(system.append_line, log))
    comparisons = compare(rows, hardware, arguments.profile)
    system.write(arguments.output / "report.md", markdown(comparisons, arguments.gate))
    system.say(text(comparisons, arguments.gate))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python3 -m validate.plans.session")
    parser.add_argument("--output", type=Path, help="folder of the results; --list needs none")
    parser.add_argument("--minutes", type=real, default=9.0)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--hardware", default="", help="a catalogue name (default: this one's)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--models", default="", help="only these, by name, joined by commas")
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument(
        "--subjects",
        type=lambda text: [whole(number) for number in text.split(",") if number],
        default=[],
        help="numbers of the list, joined by commas",
    )
    parser.add_argument("--compiler", default="inductor", help="backend of torch.compile")
    parser.add_argument("--budget", type=real, default=2.0, help="seconds to repeat a case")
    parser.add_argument("--profile", default="", help="to predict with")
    parser.add_argument("--gate", type=real, default=0.1)
    parser.add_argument("--known", default="", help="files of results, joined by commas: not again")
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    return parser


def _cases(arguments: argparse.Namespace) -> list[Case]:
    """Choose cases, and leave out those with a result from another session."""
    models = [name for name in arguments.models.split(",") if name]
    names = [subject.model for subject in SUBJECTS]
    for name in models:
        if name not in names:
            raise unknown("model", name, dict.fromkeys(names))
    for number in arguments.subjects:
        if not 1 <= number <= len(SUBJECTS):
            raise InputError(f"subjects: got {number}, wanted 1 to {len(SUBJECTS)}")
    subjects = [
        subject
        for number, subject in enumerate(SUBJECTS, 1)
        if (not models or subject.model in models)
        and (not arguments.subjects or number in arguments.subjects)
    ]
    modes = cast("list[Mode]", arguments.modes.split(","))
    cases = cross(subjects, arguments.plans.split(","), modes)
    known = [name for name in arguments.known.split(",") if name]
    for name in known:
        if not is_file(name):
            raise InputError(f"--known {name[:100]}: no such file")
    results = [
        row
        for name in known
        for row in read_measured(system.read(Path(name)), name)
        if row.status != "failed"
    ]
    return remaining(cases, results)


if __name__ == "__main__":
    raise SystemExit(main())
