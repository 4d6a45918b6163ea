"""``python -m validate``: how right the models are, on the figures that ship with them.

``python -m validate scales`` measures activations for products in fewer bits.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from planner.command.arguments import Parser
from planner.rendering.columns import aligned
from planner.rendering.report import markdown
from topology.base import InputError, content
from validate.accuracy.runs import MACHINES
from validate.accuracy.table import HEADERS, Texts, cells, inserted, table

LARGEST = 2**24  # B of a document


def main(argv: list[str] | None = None) -> int:
    """Print the accuracy table; with ``--write`` also put it into a document."""
    words = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m validate")
    parser.add_argument("command", choices=["accuracy", "scales"])
    parser.add_argument("--format", choices=["table", "json", "markdown"], default="table")
    parser.add_argument("--write", metavar="FILE", help="put the table into this document")
    try:
        if words[:1] == ["scales"]:
            from validate.scales import scales  # noqa: PLC0415  # it runs networks

            scales(words[1:])
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
    if arguments.write:
        _put(arguments.write, lambda text: text)  # before the table is made, which takes a while
    scores = table(_texts())
    rows = [cells(score) for score in scores]
    if arguments.write:
        _put(arguments.write, lambda text: inserted(text, markdown(HEADERS, rows)))
    if arguments.format == "json":
        print(json.dumps([asdict(score) for score in scores], indent=2))
    elif arguments.format == "markdown":
        print(markdown(HEADERS, rows))
    else:
        print("\n".join(aligned([list(HEADERS), *rows])))


def _texts() -> Texts:
    folder = files("validate").joinpath("data")
    names = {
        "collectives": "collectives_figures.csv",
        "tables": "nccl_table_figures.csv",
        "unseen": "nccl_unseen_figures.csv",
        "kernels": "kernel_figures.csv",
        "plans": "plan_figures.csv",
        "others": "plan_figures_of_other_sources.csv",
    }
    runs = [folder.joinpath(machine.folder, "plans.jsonl") for machine in MACHINES]
    return Texts(
        **{key: folder.joinpath(name).read_text(encoding="utf-8") for key, name in names.items()},
        runs=tuple(one.read_text(encoding="utf-8") for one in runs),
    )


def _put(name: str, change: Callable[[str], str]) -> None:
    """Change a document, whole or not at all."""
    try:
        path, text = Path(name), content(name, LARGEST).decode()
        changed = change(text)
        if changed == text:
            return
        draft = path.with_name(f".{path.name}.new")
        draft.write_text(changed, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise InputError(f"--write {name}: {error.strerror}") from None
    except ValueError as error:
        why = str(error) if isinstance(error, InputError) else "no text"
        raise InputError(f"--write {name}: {why}") from None


if __name__ == "__main__":
    sys.exit(main())
