"""How well a time is known."""

from enum import IntEnum


class Basis(IntEnum):
    """Ordered from best to worst: a sum is as well known as its weakest part, the `max`.

    Extrapolated: by a measured or calibrated law, not far beyond the sizes it was held against.
    """

    MEASURED = 0
    CALIBRATED = 1
    EXTRAPOLATED = 2
    DATASHEET = 3
    ASSUMED = 4
