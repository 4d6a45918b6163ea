"""``planner models``: the models that are known, and files."""

import argparse
from typing import Final

from planner.command import options as common
from planner.command.files import render
from topology.base import InputError
from topology.base.rows import csv_text, flat


def _add(parser: argparse.ArgumentParser) -> None:
    common.add_action(parser, "list", "show", "import")
    parser.add_argument(
        "name", nargs="?", help="a catalogue name, a config.json, an ONNX file or a folder"
    )
    common.add_checked_profile(parser)
    common.add_output(parser, (*common.FORMATS, "csv"))


def _run(options: argparse.Namespace) -> common.Answer:
    from planner.models import read_model  # noqa: PLC0415
    from planner.rendering import models  # noqa: PLC0415
    from topology.base.facts import facts  # noqa: PLC0415

    common.check_profile(options.profile)
    if options.action == "list":
        common.check_nameless(options)
        entries = models.catalogue_entries()
        text = render(
            options.format,
            lambda: models.entries_json(entries),
            table=models.entries_table(entries, headed=False).text,
            markdown=models.entries_table(entries).markdown,
            csv=lambda: csv_text([*map(flat, entries)]),
        )
        return text, common.DONE
    if options.name is None:
        raise InputError(f"models {options.action}: wanted a name or a file")
    described = read_model(options.name).to_dict()
    style = common.style_of(options)
    table = facts(described)
    text = render(
        style,
        lambda: described,
        table=table.text,
        markdown=table.markdown,
        csv=lambda: csv_text([flat(described)]),
    )
    return text, common.DONE


COMMAND: Final = common.Command(
    help="the models that are known, and files",
    text="list: names, with those that cannot be planned yet and why.\n"
    "show: what a model is made of, by name, or from a config.json or pipeline folder.\n"
    "import: the same as JSON, to see what was read from a file.",
    examples=(
        ("planner models list", "a name a line"),
        ("planner models show flux.1-dev", "layers, widths, parameters, usual request"),
    ),
    add=_add,
    run=_run,
)
