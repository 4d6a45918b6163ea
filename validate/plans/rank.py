"""One rank of a run of cases, whoever runs them: what it is started with, and how it ends."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner.command.options import Parser
from topology.base import InputError, ModelError
from validate.launch import Place, find_place
from validate.plans import system


def run_rank(
    prog: str,
    work: Callable[[Place, Mapping[str, object], Path], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Run the cases of a job with `work`; returns the exit code."""
    parser = Parser(prog=prog)
    parser.add_argument("--job", required=True, help="a JSON file of cases")
    parser.add_argument("--output", required=True, help="a folder for results.jsonl")
    place = find_place(system.environment())
    try:
        arguments = parser.parse_args(argv)
        work(place, system.read_json(arguments.job), Path(arguments.output))
    except (InputError, OSError, ValueError) as error:
        system.complain(f"rank {place.rank}: {error}")
        return 2
    except ModelError as error:
        system.complain(f"rank {place.rank}: {error}")
        return 1
    return 0
