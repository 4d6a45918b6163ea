"""``planner``, and ``python -m planner``."""

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; who stops it while it is still being loaded wants no word about it."""
    try:
        from planner import cli  # noqa: PLC0415  # what takes a while

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
