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

from planner.command.files import write
from planner.command.options import Parser
from topology.base import InputError, content
from validate.accuracy import table

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
        _put(arguments.write, None)
    errors = table.groups()
    if arguments.write:
        _put(arguments.write, table.documents(errors))
    if arguments.format == "json":
        write(json.dumps([asdict(line) for line in table.scores(errors)], indent=2), None)
    elif arguments.format == "markdown":
        write(f"{table.table(errors).markdown()}\n\n{table.held_table().markdown()}", None)
    else:
        write(f"{table.table(errors).text()}\n\n{table.held_table().text()}", None)


def _fit_engines(names: Sequence[str]) -> None:
    """Print the records that tables of engines' kernels give; on stderr how good they are."""
    from validate.fit import dispatch, engine_kernels  # noqa: PLC0415  # scipy takes a while to load

    for name in names:
        text = content(name, LARGEST).decode()
        fit_table = (
            dispatch.fitted_records if dispatch.knows_table(text) else engine_kernels.fitted_records
        )
        for record, quality in fit_table(text):
            write(str(record), None)
            print(quality, file=sys.stderr)


def _put(name: str, tables: Mapping[str, str] | None) -> None:
    """Put tables between those marks that a document has, whole or not at all; None only looks."""
    try:
        text = content(name, LARGEST).decode()
    except ValueError as error:
        why = str(error) if isinstance(error, InputError) else "no text"
        raise InputError(f"--write {name}: {why}") from None
    changed, table_texts = (
        text,
        tables or dict.fromkeys((table.BEGIN, table.SHORT_BEGIN, table.HELD_BEGIN), ""),
    )
    for begin in [begin for begin in table_texts if begin in text] or [table.BEGIN]:
        try:
            changed = table.inserted(changed, begin, table_texts[begin])
        except InputError as error:
            raise InputError(f"--write {name}: {error}") from None
    if changed != text and tables:
        write(changed.removesuffix("\n"), name, "--write")


if __name__ == "__main__":
    sys.exit(main())
