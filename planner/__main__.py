"""``planner``, and ``python -m planner``."""

import os
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; who stops it while it is still being loaded wants no word about it."""
    try:
        sys.unraisablehook = _exit_on_interrupt
        from planner.command import cli  # noqa: PLC0415  # what takes a while

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


def _exit_on_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """Stop where Python would go on: a stop that falls into its import of modules is not raised."""
    if unraisable.exc_type is KeyboardInterrupt:
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    code = main()
    if code == INTERRUPTED:  # a stop within exec, as of dataclasses, lets python -m die of SIGINT
        os._exit(code)
    sys.exit(code)
