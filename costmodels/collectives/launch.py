"""What the host adds to a kernel."""

from dataclasses import dataclass

import numpy as np

from costmodels.collectives.build import Choice
from costmodels.collectives.choice import Priced
from costmodels.collectives.operations import Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    r"""A call as its caller sees it, back to back with others.

    .. math:: t = \max(host, kernel + gap + m\,copy)

    with m the message; the host prepares the next call while the GPU works on this one.

    host : s of host work a call. gap : s on the GPU between kernels. copy : s a byte of a copy
    of the input. A replayed graph has none of them but the host's floor of its launcher.
    """

    way: Priced
    host: float = 0.0
    gap: float = 0.0
    copy: float = 0.0

    def at(self, message_bytes: float) -> Choice:
        """Say what is used for a message of `message_bytes`."""
        return self.way.at(message_bytes)

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for messages of `message_bytes`."""
        device = self.way.time(message_bytes) + self.gap + message_bytes * self.copy
        if isinstance(device, np.ndarray):
            return np.maximum(device, self.host)
        return max(device, self.host)
