"""Where the rows of a span stand in their stream: what every executor must agree on."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from costmodels.program.ops import Span


def positions(span: Span, index: Mapping[str, int]) -> NDArray[np.int64]:
    """Positions of the rows that the rank at `index` holds; padding stands at -1.

    Parameters
    ----------
    span : with `tokens` a number, not an array.
    index : the rank's index along every axis of the span.

    Returns
    -------
    ndarray of shape ``[span.rows]``

    Examples
    --------
    >>> positions(Span("text", 5, (("ring", 2),), 2), {"ring": 1})
    array([ 3,  4, -1])
    >>> positions(Span("text", 8, (("ring", 2),), 2, zigzag=True), {"ring": 0})
    array([0, 1, 6, 7])
    """
    rows = np.arange(int(span.padded) if span.axes else int(span.tokens))
    for place, (axis, degree) in enumerate(span.axes):
        if span.zigzag and place == 0:
            pieces = rows.reshape(2 * degree, -1)
            rows = np.concatenate([pieces[index[axis]], pieces[2 * degree - 1 - index[axis]]])
        else:
            rows = rows.reshape(degree, -1)[index[axis]]
    return np.where(rows < span.tokens, rows + span.start, -1)
