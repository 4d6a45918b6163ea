"""``python -m validate``: how right the models are, on the figures that ship with them."""

import argparse
import json
import sys
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from planner.report import markdown
from topology.errors import InputError
from validate.accuracy import HEADERS, Texts, cells, inserted, table


def main(argv: list[str] | None = None) -> int:
    """Print the accuracy table; with ``--write`` also put it into a document."""
    parser = argparse.ArgumentParser(prog="python -m validate")
    parser.add_argument("command", choices=["accuracy"])
    parser.add_argument("--format", choices=["table", "json", "markdown"], default="table")
    parser.add_argument("--write", metavar="FILE", help="put the table into this document")
    arguments = parser.parse_args(argv)
    scores = table(_texts())
    rows = [cells(score) for score in scores]
    if arguments.write:
        try:
            _rewrite(Path(arguments.write), markdown(HEADERS, rows))
        except (InputError, OSError) as error:
            print(f"validate: {arguments.write}: {error}", file=sys.stderr)
            return 2
    if arguments.format == "json":
        print(json.dumps([asdict(score) for score in scores], indent=2))
    elif arguments.format == "markdown":
        print(markdown(HEADERS, rows))
    else:
        print(_aligned([list(HEADERS), *rows]))
    return 0


def _texts() -> Texts:
    folder = files("validate").joinpath("data")
    names = {
        "collectives": "collectives_figures.csv",
        "tables": "nccl_table_figures.csv",
        "kernels": "kernel_figures.csv",
        "plans": "plan_figures.csv",
        "runs": "2026-11-28-h100-sxm-x2/plans.jsonl",
    }
    return Texts(
        **{key: folder.joinpath(name).read_text(encoding="utf-8") for key, name in names.items()}
    )


def _rewrite(path: Path, rows: str) -> None:
    changed = inserted(path.read_text(encoding="utf-8"), rows)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(changed, encoding="utf-8")
    draft.replace(path)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        numbers = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *numbers]))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
