"""Plain tables for a terminal."""

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> Iterator[str]:
    """Write rows with their cells below each other, the first `left` at their left ends.

    >>> list(aligned([["a", "of"], ["total", "7"]]))
    ['a      of', 'total   7']
    """
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if place < left else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, wide, strict=True))
        ]
        yield "  ".join(cells).rstrip()
