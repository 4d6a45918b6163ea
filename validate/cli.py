"""Commands that measure: ``planner validate``, ``calibrate``, ``profile`` and ``doctor``."""

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.command.files import piped, render, render_parts, say, write
from planner.command.options import (
    DONE,
    FORMATS,
    NO,
    Answer,
    Command,
    Named,
    add_action,
    add_checked_profile,
    add_flags,
    add_named,
    add_output,
    real,
    whole,
)
from topology.base import InputError, content, counted, shown

if TYPE_CHECKING:  # a profile is shown without what runs plans
    from topology.base.table import Part
    from validate.fit.report import ShippedProfile
    from validate.launch import Place
    from validate.plans.job import Job
    from validate.tensorrt.selftest import Ran

DOCTOR: Final = "doctor"
"""Folder of what doctor runs."""
LARGEST_LOG: Final = 16 * 2**20  # B
BACKENDS: Final = ("reference", "torch", "tensorrt", "diffusers", "vllm", "sglang")
SIZES: Final = ("height", "width", "frames", "input-tokens", "text-tokens")


_PREDICTION_OPTIONS: Final = {
    "--hardware": "a name to predict with (default: that of this machine's GPUs, h100-sxm without "
    "any)",
    "--profile": "a calibration to predict with: a file, a name, or none, the tables alone "
    "(default: this machine's own if there is one, or the one that ships for the hardware)",
}
_TENSORRT_FLAGS: Final = {
    "--small": "of tensorrt: prove and run engines of a small size, and time none at full size",
    "--numbers-only": "of tensorrt: prove layers in numpy, and build nothing; needs no TensorRT",
}


_DEFAULTS: Final[Mapping[str, object]] = {
    "mode": None, "device": "cuda", "gate": "10%", "seconds": 3000, "results": "validation",
    "retry": False, "small": False, "numbers_only": False, "keep": "engine",
}  # fmt: skip
"""Options that not all backends have a use for, as they are where nobody names them."""
_RANK_OPTIONS: Final = ("device", "seconds", "retry")
"""Those of backends that measure ranks of their own."""
_UNUSED_OPTIONS: Final = {
    "reference": ("mode", "gate", "results", *_RANK_OPTIONS),
    "tensorrt": _RANK_OPTIONS,
}


def _check_used(arguments: argparse.Namespace) -> None:
    """Refuse options that a backend has no use for."""
    backend = arguments.backend
    only_tensorrt = () if backend == "tensorrt" else ("small", "numbers_only", "keep")
    for name in (*_UNUSED_OPTIONS.get(backend, ()), *only_tensorrt):
        if (value := getattr(arguments, name)) != _DEFAULTS[name]:
            got = "it" if value is True else shown(value)
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: got {got} with --backend {backend}, wanted none")


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a catalogue name, or a config.json")
    parser.add_argument("--plan", required=True, help="plans, joined by commas: tp2,ulysses2")
    parser.add_argument(
        "--gpus",
        type=whole,
        help="ranks, a multiple of each plan's (default: those of the largest plan, or all that "
        "torchrun or mpirun has started)",
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="reference",
        help="reference, numbers of all ranks in numpy; torch, times on GPUs; tensorrt, engines "
        "as far as this machine can; diffusers, its own code, of random weights, a forward at a "
        "time; vllm, sglang: their own benchmarks of a language model, of random weights (default: "
        "reference)",
    )
    parser.add_argument(
        "--mode",
        help="how torch is launched: eager, compile and graph, with commas; engines: eager and "
        "graph; diffusers: eager and compile (default: graph; eager with diffusers)",
    )
    add_named(parser, _PREDICTION_OPTIONS)
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default=_DEFAULTS["device"],
        help="torch's (default: cuda)",
    )
    gate = "largest error of a step and of memory that passes (default: 10%%)"
    parser.add_argument("--gate", default=_DEFAULTS["gate"], help=gate)
    parser.add_argument("--precision", default="bf16", help="of the model (default: bf16)")
    parser.add_argument("--batch", type=whole, default=1, metavar="N", help="(default: 1)")
    add_flags(parser, {"--decode": "a decoder's decode step instead of its prefill"})
    parser.add_argument(
        "--seconds",
        type=real,
        default=_DEFAULTS["seconds"],
        help="for all cases together (default: 3000)",
    )
    results = "for rows and logs (default: validation)"
    parser.add_argument("--results", metavar="DIR", default=_DEFAULTS["results"], help=results)
    retry = "run again what was out of memory or wrong; what failed is run again anyway"
    add_flags(parser, {"--retry": retry})
    for name in SIZES:
        parser.add_argument(
            f"--{name}", type=whole, metavar="N", help="(default: the model's usual one)"
        )
    add_flags(parser, _TENSORRT_FLAGS)
    parser.add_argument(
        "--keep",
        choices=("engine", "file"),
        default=_DEFAULTS["keep"],
        help="of tensorrt: weights within engines, or in files beside them (default: engine)",
    )
    add_output(parser)


def _validate(arguments: argparse.Namespace) -> Answer:
    from validate.launch import is_rank  # noqa: PLC0415
    from validate.plans import system  # noqa: PLC0415

    _check_used(arguments)
    if arguments.backend == "tensorrt":
        from validate.tensorrt.command import validate  # noqa: PLC0415

        answer = validate(arguments)
    else:
        from validate.plans.command import validate as validate_plans  # noqa: PLC0415

        work = partial(_work, arguments.backend)
        if arguments.backend == "diffusers":
            from validate.engines.checks import check  # noqa: PLC0415  # as the engine needs

            answer = validate_plans(arguments, work, check)
        elif arguments.backend in ("vllm", "sglang"):
            from validate.engines.served import check  # noqa: PLC0415  # likewise

            answer = validate_plans(arguments, work, check)
        else:
            answer = validate_plans(arguments, work)
    if arguments.backend == "reference" or not is_rank(os.environ):
        assert answer is not None
        return answer
    if answer is not None:  # rank 0 of torchrun or mpirun speaks for all
        write(answer[0], arguments.output)
    return system.leave(DONE if answer is None else answer[1])


def _work(backend: str, place: "Place", job: "Job", output: Path) -> int:
    """Take part as a rank, where torchrun or mpirun has started this process."""
    if backend == "torch":
        from validate.torch.worker import work  # noqa: PLC0415  # needs PyTorch
    else:
        from validate.engines.diffusers_rank import work  # noqa: PLC0415  # likewise

    return work(place, job, output)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    quick, resume = "3 minutes on 2 GPUs instead of 10", "go on where a session was stopped"
    add_flags(parser, {"--quick": quick, "--resume": resume})
    parser.add_argument("--gpus", type=whole, help="to measure together (default: all)")
    parser.add_argument("--minutes", type=real, help="(default: 10, or 3 with --quick)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    add_checked_profile(parser)
    parser.add_argument(
        "--format", choices=FORMATS, default="table", help="of the report (default: table)"
    )
    parser.add_argument(
        "--output", action=Named, required=True, metavar="FILE", help="the profile to write"
    )
    install = "copy the profile to where --detect and validate find it by themselves"
    add_flags(parser, {"--install": install})


def calibrate_machine(arguments: argparse.Namespace) -> Answer:
    """Measure, fit, write the profile where it is asked for, and say how good it is.

    Raises InputError if the output exists, or this machine cannot be measured.
    """
    from costmodels.tables import check_profile  # noqa: PLC0415
    from validate.calibrate import CalibrationTask, calibrate  # noqa: PLC0415
    from validate.fit import report  # noqa: PLC0415
    from validate.plans.checks import check_gpus, check_positive  # noqa: PLC0415

    check_profile(arguments.profile)
    check_gpus(arguments.gpus)
    if arguments.minutes is not None:
        check_positive("minutes", arguments.minutes)
    task = CalibrationTask(
        output=Path(arguments.output),
        quick=arguments.quick,
        resume=arguments.resume,
        gpus=arguments.gpus or 0,
        minutes=arguments.minutes or 0.0,
        device=arguments.device,
        small=arguments.small,
    )
    calibration = calibrate(task, say)
    arguments.output = None  # the profile, not this report
    _tell_use(task.output, install=arguments.install)
    return render(
        arguments.format, calibration.to_dict, lambda: report.calibration_parts(calibration)
    ), DONE


def _tell_use(path: Path, *, install: bool) -> None:
    """Say how a profile that was written is used."""
    from costmodels.tables import profile_folder  # noqa: PLC0415

    say(f"use it with --profile {path}, in every command")
    if install:
        say(_install_message(str(path)))
        return
    say(
        f"planner profile install {path} copies it to {profile_folder()}, where --detect and "
        "validate find it by themselves on this machine"
    )


def _install_message(path: str) -> str:
    from validate.tables import install  # noqa: PLC0415

    return f"{install(path)}: found by --detect and validate on a machine like this one"


def _add_profile(parser: argparse.ArgumentParser) -> None:
    add_action(parser, "list", "show", "diff", "install")
    parser.add_argument("profiles", nargs="*", default=[], help="files, or names that ship")
    add_checked_profile(parser)
    add_output(parser)


def _profile(arguments: argparse.Namespace) -> Answer:
    from costmodels.tables import check_profile, read_profile  # noqa: PLC0415
    from validate.fit import report  # noqa: PLC0415

    style, names = arguments.format, arguments.profiles
    check_profile(arguments.profile)
    name_count = {"list": 0, "diff": 2}.get(arguments.action, 1)
    if len(names) != name_count:
        got = counted(len(names), "name")
        raise InputError(f"profile {arguments.action}: got {got}, wanted {name_count}")
    if arguments.action == "install":
        line = _install_message(names[0])
        installed = {"profile": names[0], "installed": line.partition(": ")[0]}
        return render(style, lambda: installed, lambda: [line]), DONE
    data: Callable[[], object]
    parts: Callable[[], list[Part]]
    if arguments.action == "list":
        entries = _entries()
        data, parts = (
            partial(report.entries_to_dict, entries),
            lambda: [report.entries_table(entries)],
        )
    elif arguments.action == "show":
        profile = read_profile(names[0])
        data = partial(report.to_dict, profile, names[0])
        parts = partial(report.show, profile, names[0])
    else:
        left_profile, right_profile = map(read_profile, names)
        labels = (names[0], names[1])
        data = partial(report.diff_to_dict, left_profile, right_profile, labels)
        parts = partial(report.diff, left_profile, right_profile, labels)
    return render(style, data, parts), DONE


def _entries() -> "list[ShippedProfile]":
    """List profiles that ship and the user's own; one that cannot be read is said to be so."""
    from costmodels.tables import (  # noqa: PLC0415
        own_files,
        read_profile,
        shipped_profile,
        shipped_profiles,
    )
    from validate.fit.report import ShippedProfile  # noqa: PLC0415

    def entry(name: str) -> ShippedProfile:
        profile = read_profile(name)
        return ShippedProfile(
            name=name, profile=profile, default=profile == shipped_profile(profile.hardware)
        )

    entries = [entry(name) for name in shipped_profiles()]
    for path in own_files():
        try:
            entries.append(entry(path))
        except InputError as error:
            say(f"planner: {error}")
    return entries


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    text = "run the collectives of TensorRT on all GPUs, check their numbers and time them"
    add_flags(parser, {"--run": text})
    results = "of --run, for engines, logs and times (default: doctor)"
    parser.add_argument("--results", metavar="DIR", default=DOCTOR, help=results)
    version = "judge this TensorRT, such as 11.2.1.2 (default: the one that is here)"
    add_named(parser, {"--tensorrt-version": version}, default="")
    add_checked_profile(parser)
    add_output(parser)


def _run_collectives(results: Path, gpus: int) -> "Ran":
    from validate.plans import system  # noqa: PLC0415
    from validate.tensorrt.selftest import run_all  # noqa: PLC0415

    system.check_folder(results)
    return run_all(gpus, results, system.complain)


def _doctor(arguments: argparse.Namespace) -> Answer:
    from costmodels.tables import check_profile  # noqa: PLC0415
    from validate.doctor import doctor  # noqa: PLC0415

    check_profile(arguments.profile)
    if arguments.results != DOCTOR and not arguments.run:
        raise InputError(f"--results: got {shown(arguments.results)} without --run, wanted none")
    if arguments.run and arguments.tensorrt_version:
        version = arguments.tensorrt_version
        raise InputError(f"--tensorrt-version: got {version} beside --run, wanted none")
    run = partial(_run_collectives, Path(arguments.results)) if arguments.run else None
    diagnosis = doctor(os.environ, arguments.tensorrt_version, run)
    text = render(arguments.format, diagnosis.to_dict, diagnosis.lines, markdown=diagnosis.markdown)
    return text, DONE if diagnosis.ok else NO


def compare(options: argparse.Namespace) -> Answer:
    """Put a log of nccl-tests beside what is predicted: ``planner collectives --compare``.

    Raises InputError if the log cannot be read, or does not fit what is said of it.
    """
    from costmodels.collectives import read_launch  # noqa: PLC0415
    from planner.collective_table import ranges_of  # noqa: PLC0415
    from planner.command.collectives import machine_of  # noqa: PLC0415
    from validate.nccl_tests import (  # noqa: PLC0415
        LogOptions,
        compare_all,
        parts_of,
        rows_of,
    )

    subset = machine_of(options)
    if options.launch is not None and read_launch(options.launch) != "graph":
        raise InputError(
            f"launch: got {options.launch}, as PyTorch calls, wanted graph beside a log"
        )
    if options.gpus and len(options.gpus) > 1:
        raise InputError("gpus: got several numbers beside a log, wanted one")
    size_options = {} if options.bytes is None else {"sizes": ranges_of(options.bytes)}
    log_options = LogOptions(
        hardware=options.hardware or "",
        gpus=options.gpus[0] if options.gpus else None,
        nodes=options.nodes,
        subset=subset,
        op=options.op or "",
        name=Path(options.compare).name,
        algorithm=options.algorithm,
        profile=options.profile,
        here=options.detect,
        **size_options,
    )
    tables = compare_all(_log_text(options.compare), log_options)
    data = {"tables": [table.to_dict() for table in tables]}
    text = render_parts(
        options, lambda: data, lambda: rows_of(tables), lambda: parts_of(tables), options.compare
    )
    return text, DONE


def _log_text(name: str) -> str:
    """Read a log, of a size that logs have, or what is piped in as ``-``."""
    try:
        data = piped(LARGEST_LOG) if name == "-" else content(name, LARGEST_LOG)
        return data.decode("utf-8", errors="replace")
    except InputError as error:
        raise InputError(f"--compare {name[:60]}: {error}") from None


COMMANDS: Final = {
    "validate": Command(
        help="run a plan, prove its numbers, and time it beside what was predicted",
        text="Run plans of a model. The reference needs no GPU: it runs all ranks in numpy and\n"
        "proves that their parts add up to the whole. torch runs them on GPUs and times them;\n"
        "tensorrt checks, builds and runs engines as far as this machine can.",
        examples="planner validate --model flux.1-dev --plan ulysses2,tp2\n"
        "    proof that the ranks of both plans compute what one GPU does\n"
        "planner validate --model flux.1-dev --plan ulysses2 --backend torch\n"
        "    measured and predicted times of a step, and pass or miss",
        exit_1="a proof failed or a gate was missed",
        add=_add_validate,
        run=_validate,
    ),
    "calibrate": Command(
        help="measure this machine, and write a profile of it",
        text="Time products, attention, element-wise kernels and collectives on this machine's\n"
        "GPUs, fit the models' parameters to them, and write a profile that --profile takes.",
        examples="planner calibrate --output mine.toml\n"
        "    10 minutes, then how good each fit is\n"
        "planner calibrate --quick --gpus 2 --output mine.toml\n"
        "    3 minutes on 2 GPUs",
        add=_add_calibrate,
        run=calibrate_machine,
    ),
    "profile": Command(
        help="what a calibration profile holds",
        text="list: profiles that ship: of which hardware, used by itself or by name, parts.\n"
        "show: what a profile was measured on, how far to trust it, its parameters.\n"
        "diff: what two of one hardware differ in, and what that does to a few operations.\n"
        "install: copy one to where --detect and validate find it by themselves.",
        examples="planner profile show h100-sxm\n"
        "    machine, errors of fits, parameters\n"
        "planner profile diff h100-sxm mine.toml\n"
        "    examples, then what changed",
        add=_add_profile,
        run=_profile,
    ),
    "doctor": Command(
        help="whether this machine can run multi-device TensorRT engines",
        text="Look for the driver, GPUs, TensorRT, NCCL, Python packages and shared memory, and\n"
        "say what to install or set. --run also runs each collective, and checks its numbers.",
        examples="planner doctor\n"
        "    a line each: ok, watch or MISSING, and what to do\n"
        "planner doctor --format json\n"
        "    the same as data\n"
        "planner doctor --run\n"
        "    also its collectives on all GPUs: right, and how fast",
        exit_1="something is missing",
        add=_add_doctor,
        run=_doctor,
    ),
}
