"""Which class of work a kernel does, by its name in a profiler's trace."""

import re
from functools import cache
from typing import cast

from costmodels.price import Class
from costmodels.tables import kernel_names


def class_of(kernel: str) -> Class | None:
    """Find the class of a kernel; None for a name that says nothing.

    >>> class_of("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"), class_of("Memcpy DtoD")
    ('gemm', 'layout')
    """
    return next((kind for kind, pattern in _patterns() if pattern.search(kernel)), None)


@cache
def _patterns() -> tuple[tuple[Class, re.Pattern[str]], ...]:
    return tuple(
        (cast("Class", row["class"]), re.compile(row["pattern"], re.IGNORECASE))
        for row in kernel_names()
    )
