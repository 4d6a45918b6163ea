"""One rank of a run of cases, whoever runs them: what it is started with, and how it ends."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from planner.command.options import Parser
from topology.base import InputError, ModelError, environment
from validate.launch import Place, find_place
from validate.plans import system
from validate.plans.job import Job, read_job


def run_rank(
    prog: str,
    work: Callable[[Place, Job, Path], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Run the cases of a job with `work`; returns the exit code."""
    parser = Parser(prog=prog)
    parser.add_argument("--job", required=True, help="a JSON file of cases")
    parser.add_argument("--output", required=True, help="a folder for results.jsonl")
    place = find_place(environment())
    try:
        arguments = parser.parse_args(argv)
        job = read_job(json.loads(system.read(Path(arguments.job))))
        work(place, job, Path(arguments.output))
    except (InputError, OSError, TypeError, ValueError) as error:
        system.complain(f"rank {place.rank}: {error}")
        return 2
    except ModelError as error:
        system.complain(f"rank {place.rank}: {error}")
        return 1
    return 0
