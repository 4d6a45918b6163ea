"""A collective priced by what it took on this very machine."""

from dataclasses import dataclass, replace

from costmodels.collectives.build import Choice
from costmodels.collectives.choice import Priced
from costmodels.collectives.operations import Amount
from costmodels.collectives.times import Times
from topology.base import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Measured times; which algorithm was behind them is the library's choice to say."""

    way: Priced
    times: Times

    def at(self, message_bytes: float) -> Choice:
        """Say what is used for a message of `message_bytes`, as well known as it was measured."""
        choice, times = self.way.at(message_bytes), self.times
        fitted = replace(
            choice.fitted,
            kind=times.kind,
            source=times.source,
            ops=(times.op,),
            smallest=Bytes(times.sizes[0]),
            largest=Bytes(times.sizes[-1]),
            ranks=(times.ranks, times.ranks),
            median_error=times.median_error,
            worst_error=times.worst_error,
            own=True,
        )
        return replace(choice, fitted=fitted)

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for messages of `message_bytes`."""
        return self.times.time(message_bytes)
