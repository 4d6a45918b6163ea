"""``python -m validate``: how right the models are, on the figures that ship with them.

``python -m validate scales`` measures activations for products in fewer bits;
``python -m validate engine-kernels gemm.csv generation_attention.csv`` fits the kernels of serving
engines to published tables of them.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files

from planner.command.files import write
from planner.command.options import Parser
from topology.base import InputError, content
from topology.base.table import Table
from validate.accuracy.runs import MACHINES
from validate.accuracy.table import (
    BEGIN,
    HEADERS,
    SHORT_BEGIN,
    SHORT_HEADERS,
    Groups,
    Texts,
    cells,
    groups,
    inserted,
    short_cells,
    short_table,
    table,
)

LARGEST = 2**24  # B of a document


def main(argv: list[str] | None = None) -> int:
    """Print the accuracy table; with ``--write`` also put it into a document."""
    words = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m validate")
    parser.add_argument("command", choices=["accuracy", "scales", "engine-kernels"])
    parser.add_argument("--format", choices=["table", "json", "markdown"], default="table")
    parser.add_argument("--write", metavar="FILE", help="put the table into this document")
    try:
        if words[:1] == ["scales"]:
            from validate.scales import scales  # noqa: PLC0415  # it runs networks

            scales(words[1:])
        elif words[:1] == ["engine-kernels"]:
            _fit_engines(words[1:])
        else:
            _answer(parser.parse_args(words))
        sys.stdout.flush()
    except InputError as error:
        print(f"validate: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _answer(arguments: argparse.Namespace) -> None:
    if arguments.command != "accuracy":
        raise InputError(f"{arguments.command}: wanted ahead of its options")
    if arguments.write:  # before the tables are made, which takes a while
        _put(arguments.write, dict.fromkeys((BEGIN, SHORT_BEGIN), ""), dry=True)
    errors = groups(_texts())
    if arguments.write:
        _put(arguments.write, tables(errors))
    scores = table(errors)
    shown = Table(head=HEADERS, rows=[cells(line) for line in scores])
    if arguments.format == "json":
        print(json.dumps([asdict(line) for line in scores], indent=2))
    elif arguments.format == "markdown":
        print(shown.markdown())
    else:
        print(shown.text())


def _fit_engines(names: Sequence[str]) -> None:
    """Print the records that tables of engines' kernels give; on stderr how good they are."""
    from validate.fit.engine_kernels import fitted  # noqa: PLC0415  # scipy takes a while to load

    for name in names:
        for record, quality in fitted(content(name, LARGEST).decode()):
            print(record)
            print(quality, file=sys.stderr)


def tables(errors: Groups) -> dict[str, str]:
    """Write the tables of documents, by the line that each begins with."""
    whole = Table(head=HEADERS, rows=[cells(line) for line in table(errors)])
    short = Table(head=SHORT_HEADERS, rows=[short_cells(line) for line in short_table(errors)])
    return {BEGIN: whole.markdown(), SHORT_BEGIN: short.markdown()}


def _texts() -> Texts:
    folder = files("validate").joinpath("data")
    names = {
        "collectives": "collectives_figures.csv",
        "logs": "nccl_table_figures.csv",
        "unseen": "nccl_unseen_figures.csv",
        "kernels": "kernel_figures.csv",
        "plans": "plan_figures.csv",
        "others": "plan_figures_of_other_sources.csv",
    }
    runs = [folder.joinpath(machine.folder, "plans.jsonl") for machine in MACHINES]
    return Texts(
        **{key: folder.joinpath(name).read_text(encoding="utf-8") for key, name in names.items()},
        runs=tuple(path.read_text(encoding="utf-8") for path in runs),
    )


def _put(name: str, tables: Mapping[str, str], *, dry: bool = False) -> None:
    """Put tables between those marks that a document has, whole or not at all; `dry` only looks."""
    try:
        text = content(name, LARGEST).decode()
    except ValueError as error:
        why = str(error) if isinstance(error, InputError) else "no text"
        raise InputError(f"--write {name}: {why}") from None
    changed = text
    for begin in [begin for begin in tables if begin in text] or [BEGIN]:
        try:
            changed = inserted(changed, begin, tables[begin])
        except InputError as error:
            raise InputError(f"--write {name}: {error}") from None
    if changed != text and not dry:
        write(changed.removesuffix("\n"), name, "--write")


if __name__ == "__main__":
    sys.exit(main())
