"""Checks of every catalogue model by the command line: which of them, by how many processes."""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from planner.models import names

Check = Callable[[str], tuple[str, int, list[str]]]
"""Of a model: its name, how many things were checked, and what is wrong."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make the options that such checks share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--part", default="1/1", help="of the models, such as 2/8")
    made.add_argument("--processes", type=int, default=1)
    return made


def check_all(check: Check, options: argparse.Namespace, what: str) -> int:
    """Check the models of a part, and say what is wrong; 1 where something is.

    what : is counted.
    """
    place, _, parts = options.part.partition("/")
    models = list(names())[int(place) - 1 :: int(parts)]
    total, failures = 0, 0
    with ProcessPoolExecutor(options.processes) as pool:
        for model, count, said in pool.map(check, models):
            total, failures = total + count, failures + len(said)
            sys.stdout.write("\n".join([f"{model}: {count}, {len(said)} wrong", *said, ""]))
            sys.stdout.flush()
    sys.stdout.write(f"{total} {what}, {failures} wrong\n")
    return 1 if failures else 0
