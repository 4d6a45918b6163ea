"""Commands that measure: ``planner validate``, ``calibrate``, ``profile`` and ``doctor``."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.arguments import FORMATS, add_output, whole
from topology.errors import IllegalPlanError, InputError

if TYPE_CHECKING:  # a profile is shown without what runs plans
    from validate.cases import Case, Mode
    from validate.compare import Comparison
    from validate.profiles.table import Entry

Answer = tuple[str, int]
"""Text to print, and the exit code."""
DONE, NO = 0, 1
BACKENDS: Final = ("reference", "torch", "tensorrt")
_SIZES: Final = ("height", "width", "frames", "input-tokens", "text-tokens")


def add(command: str, parser: argparse.ArgumentParser) -> None:
    """Add what one of the commands is told, and what runs it."""
    {
        "validate": _add_validate,
        "calibrate": _add_calibrate,
        "profile": _add_profile,
        "doctor": _add_doctor,
    }[command](parser)


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a catalogue name, or a config.json")
    parser.add_argument("--plan", required=True, help="plans, joined by commas: tp2,ulysses2")
    parser.add_argument(
        "--gpus", type=whole, default=0, help="ranks (default: those of the largest plan)"
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="reference",
        help="reference, numbers of all ranks in numpy; torch, times on GPUs; tensorrt, engines "
        "as far as this machine can (default: reference)",
    )
    parser.add_argument(
        "--mode",
        default="graph",
        help="how torch is launched: eager, compile and graph, with commas (default: graph)",
    )
    parser.add_argument(
        "--hardware", default="h100-sxm", help="a name to predict with (default: h100-sxm)"
    )
    parser.add_argument(
        "--profile",
        default="",
        help="a calibration to predict with: a file, a name, or none, the tables alone "
        "(default: the one that ships for the hardware)",
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="torch's (default: cuda)"
    )
    parser.add_argument(
        "--gate", default="10%", help="largest error of a step that passes (default: 10%%)"
    )
    parser.add_argument("--precision", default="bf16", help="of the model (default: bf16)")
    parser.add_argument("--batch", type=whole, default=1, metavar="N", help="(default: 1)")
    parser.add_argument(
        "--decode", action="store_true", help="a decoder's decode step instead of its prefill"
    )
    parser.add_argument(
        "--seconds", type=float, default=3000, help="for all cases together (default: 3000)"
    )
    parser.add_argument(
        "--results",
        metavar="DIR",
        default="validation",
        help="for rows and logs (default: validation)",
    )
    for name in _SIZES:
        parser.add_argument(
            f"--{name}", type=whole, metavar="N", help="(default: the model's usual one)"
        )
    add_output(parser)
    parser.set_defaults(run=validate)


def validate(arguments: argparse.Namespace) -> Answer:
    """Run the command: text in the format asked for, and exit code 1 where the gate is missed.

    Raises
    ------
    InputError
        If a name, plan or number cannot be right, or this host lacks something.
    """
    from planner.plan import parse_plan  # noqa: PLC0415
    from validate.compare import compare  # noqa: PLC0415
    from validate.launch import Limits  # noqa: PLC0415
    from validate.runs import Options, run  # noqa: PLC0415

    cases, gate = _cases(arguments), _share(arguments.gate)
    _refuse_illegal(cases, arguments.hardware)
    if arguments.backend == "reference":
        return _proved(cases, arguments)
    if arguments.backend == "tensorrt":
        return _built(cases, arguments)
    options = Options(
        gpus=arguments.gpus or max(parse_plan(case.plan).gpus for case in cases),
        hardware=arguments.hardware,
        device=arguments.device,
        compiler="inductor" if arguments.device == "cuda" else "aot_eager",
        seconds=arguments.seconds,
        limits=Limits(),
    )
    rows = run(cases, options, Path(arguments.results), _tell)
    found = compare(rows, arguments.hardware, arguments.profile)
    passed = len(found) == len(cases) and all(one.passes(gate) for one in found)
    return _shown(found, gate, arguments.format), DONE if passed else NO


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cases(arguments: argparse.Namespace) -> "list[Case]":
    from planner.plan import parse_plan  # noqa: PLC0415
    from validate.cases import Case  # noqa: PLC0415

    sizes = {name: getattr(arguments, name) for name in map(_attribute, _SIZES)}
    modes = [_mode(word) for word in arguments.mode.split(",")]
    stage = _stage(arguments)
    return [
        Case(
            model=arguments.model,
            plan=str(parse_plan(plan)),
            mode=mode,
            batch=arguments.batch,
            precision=arguments.precision,
            stage=stage,  # type: ignore[arg-type]  # checked by Case
            **sizes,
        )
        for plan in arguments.plan.split(",")
        for mode in modes
    ]


def _attribute(option: str) -> str:
    return option.replace("-", "_")


def _mode(word: str) -> "Mode":
    from validate.cases import RUNTIMES  # noqa: PLC0415

    for mode in RUNTIMES:
        if word.strip() == mode:
            return mode
    raise InputError(f"mode: got {word[:40]!r}, wanted {', '.join(RUNTIMES)}")


def _stage(arguments: argparse.Namespace) -> str:
    from planner.models import read_model  # noqa: PLC0415  # reads files

    if read_model(arguments.model).kind == "diffusion":
        return "denoise"
    return "decode" if arguments.decode else "prefill"


def _share(words: str) -> float:
    """Read ``10%`` or ``0.1``.

    >>> _share("10%"), _share("0.05")
    (0.1, 0.05)
    """
    number = words.strip().removesuffix("%").strip()
    try:
        value = float(number) / (100 if words.strip().endswith("%") else 1)
    except ValueError:
        raise InputError(f"gate: got {words[:40]!r}, wanted a share such as 10%") from None
    if not 0 < value <= 1:
        raise InputError(f"gate: got {words[:40]!r}, wanted a share such as 10%")
    return value


def _refuse_illegal(cases: "Sequence[Case]", hardware: str) -> None:
    from planner.compose import objections  # noqa: PLC0415
    from validate.cases import look_up  # noqa: PLC0415

    for case in cases:
        subject = look_up(case, hardware)
        reasons = list(objections(subject.model, subject.workload, subject.plan, subject.plan.gpus))
        if reasons:
            raise IllegalPlanError(f"plan {case.plan}: {'; '.join(reasons)}")


def _proved(cases: "Sequence[Case]", arguments: argparse.Namespace) -> Answer:
    from validate.cases import look_up  # noqa: PLC0415
    from validate.proof import proofs_markdown, proofs_text, prove  # noqa: PLC0415

    found = [prove(look_up(case, arguments.hardware)) for case in _once(cases)]
    code = DONE if all(one.ok for one in found) else NO
    if arguments.format == "json":
        return _json({"proofs": [one.to_dict() for one in found]}), code
    return (proofs_markdown if arguments.format == "markdown" else proofs_text)(found), code


def _built(cases: "Sequence[Case]", arguments: argparse.Namespace) -> Answer:
    """Prove the networks of plans; build and run engines as far as this machine can."""
    from validate.tensorrt_backend.check import check  # noqa: PLC0415

    folder = Path(arguments.results)
    found = [check(case, arguments.hardware, folder, _tell) for case in _once(cases)]
    code = DONE if all(one.passed for one in found) else NO
    if arguments.format == "json":
        return _json({"engines": [one.to_dict() for one in found]}), code
    return "\n\n".join(one.text() for one in found), code


def _once(cases: "Sequence[Case]") -> "list[Case]":
    """Cases that differ in more than how they are launched."""
    return list({case.plan: case for case in cases}.values())


def _shown(found: "Sequence[Comparison]", gate: float, style: str) -> str:
    from validate.compare import rankings, summarise  # noqa: PLC0415
    from validate.report import markdown, text  # noqa: PLC0415

    ranked = rankings(found)
    summary = summarise(found, ranked)
    if style == "json":
        return _json(
            {
                "gate": gate,
                "cases": [{**one.to_dict(), "passes": one.passes(gate)} for one in found],
                "rankings": [one.to_dict() for one in ranked],
                "summary": summary.to_dict(),
            }
        )
    return (markdown if style == "markdown" else text)(found, ranked, summary, gate)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="3 minutes on 2 GPUs instead of 10")
    parser.add_argument("--resume", action="store_true", help="go on where a session was stopped")
    parser.add_argument("--gpus", type=whole, default=0, help="to measure together (default: all)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="(default: 10, or 3 with --quick)"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--format", choices=FORMATS, default="table", help="of the report (default: table)"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="the profile to write")
    parser.set_defaults(run=calibrate_machine)


def calibrate_machine(arguments: argparse.Namespace) -> Answer:
    """Measure, fit, write the profile where it is asked for, and say how good it is.

    Raises
    ------
    InputError
        If the output exists, or this machine cannot be measured.
    """
    from costmodels.catalogue import profile_folder  # noqa: PLC0415
    from validate.calibrate import Task, calibrate  # noqa: PLC0415
    from validate.profiles import report  # noqa: PLC0415

    task = Task(
        output=Path(arguments.output),
        quick=arguments.quick,
        resume=arguments.resume,
        gpus=arguments.gpus,
        minutes=arguments.minutes,
        device=arguments.device,
        small=arguments.small,
    )
    found = calibrate(task, _tell)
    arguments.output = None  # the profile, not this report
    _tell(f"with --detect it is used by itself once it lies in {profile_folder()}")
    if arguments.format == "json":
        return _json(found.to_dict()), DONE
    return report.calibrated(found, arguments.format), DONE


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "show", "diff"], help="see above")
    parser.add_argument("profiles", nargs="*", help="files, or names that ship")
    add_output(parser)
    parser.set_defaults(run=_profile)


def _profile(arguments: argparse.Namespace) -> Answer:
    from costmodels.catalogue import read_profile, shipped_profiles  # noqa: PLC0415
    from validate.profiles import report, table  # noqa: PLC0415

    style, named = arguments.format, arguments.profiles
    if arguments.action == "list":
        entries = [_entry(name) for name in shipped_profiles()]
        if style == "json":
            return _json(table.entries_to_dict(entries)), DONE
        return report.listed(entries, style), DONE
    wanted = 1 if arguments.action == "show" else 2
    if len(named) != wanted:
        raise InputError(f"profile {arguments.action}: got {len(named)} names, wanted {wanted}")
    found = [read_profile(name) for name in named]
    if wanted == 1:
        if style == "json":
            return _json(table.to_dict(found[0], named[0])), DONE
        return report.show(found[0], style, named[0]), DONE
    (first, second), called = found, (named[0], named[1])
    if style == "json":
        return _json(table.diff_to_dict(first, second, called)), DONE
    return report.diff(first, second, style, called), DONE


def _entry(name: str) -> "Entry":
    from costmodels.catalogue import read_profile, shipped_profile  # noqa: PLC0415
    from validate.profiles.table import Entry  # noqa: PLC0415

    found = read_profile(name)
    return Entry(name=name, profile=found, default=found == shipped_profile(found.hardware))


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> Answer:
    from validate.doctor import doctor  # noqa: PLC0415

    found = doctor(os.environ)
    code = DONE if found.ok else NO
    if arguments.format == "json":
        return _json(found.to_dict()), code
    if arguments.format == "markdown":
        from planner.report import markdown  # noqa: PLC0415  # rich is slow to import

        return markdown(("what", "state", "found", "what to do"), found.rows()), code
    return found.text(), code


def _json(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False)
