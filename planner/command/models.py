"""``planner models``: the models that are known, and files."""

import argparse
from typing import Final

from planner.command import options as common
from planner.command.files import render_parts
from topology.base import InputError
from topology.base.rows import flat


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_action(parser, "list", "show", "import")
    parser.add_argument(
        "name", nargs="?", help="a catalogue name, a config.json, an ONNX file or a folder"
    )
    common.add_checked_profile(parser)
    common.add_output(parser, (*common.FORMATS, "csv"))


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner.models import read_model  # noqa: PLC0415
    from planner.rendering import models  # noqa: PLC0415
    from topology.base.facts import facts  # noqa: PLC0415

    common.check_profile(options.profile)
    if options.action == "list":
        common.check_nameless(options)
        entries = models.catalogue_entries()
        text = render_parts(
            options, lambda: models.entries_json(entries), lambda: [*map(flat, entries)],
            lambda: [models.entries_table(entries)], "",
            table=models.entries_table(entries, headed=False).text,
        )  # fmt: skip
        return text, common.DONE
    if options.name is None:
        raise InputError(f"models {options.action}: wanted a name or a file")
    model_facts = read_model(options.name).to_dict()
    options.format, table = common.style_of(options), facts(model_facts)
    text = render_parts(
        options,
        lambda: model_facts,
        lambda: [flat(model_facts)],
        lambda: [table],
        "",
        table=table.text,
    )
    return text, common.DONE


COMMAND: Final = common.Command(
    help="the models that are known, and files",
    text="list: names, with those that cannot be planned yet and why.\n"
    "show: what a model is made of, by name, or from a config.json or pipeline folder.\n"
    "import: the same as JSON, to see what was read from a file.",
    examples="planner models list\n"
    "    a name a line\n"
    "planner models show flux.1-dev\n"
    "    layers, widths, parameters, usual request",
    add=_add_options,
    run=_run_command,
)
