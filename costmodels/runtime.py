"""What runs a program: how it launches kernels, and what it fuses."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from topology.base import CatalogueError, Sourced, read_sourced
from topology.base.values import dataclass

_UNITS: Final = {
    "host_kernel": "s",
    "host_collective": "s",
    "memory": "B",
    "convolution": "1",
    "plane_convolution": "1",
    "plane_passes": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """What an element-wise function costs: `traffic` over the bytes of its inputs and outputs.

    cycles : of one multiprocessor for each of these bytes, in kernels that stream no faster: casts,
    operands that broadcast or have strides. traffic : of all other kernels.

    They and `kernels` are counted, not fitted: a fused function reads and writes everything once,
    in one kernel; an eager one does what PyTorch issues for the lines of a model's repository. So
    ``norm(x) * (1 + scale) + shift`` reads and writes x three times, in four kernels [1]_, and
    ``x + gate * y`` moves five tensors where three would do, in two. A rotary embedding with the
    norms before it takes some thirty, in 32 bits [2]_.

    References
    ----------
    .. [1] ``AdaLayerNormZero`` in diffusers, src/diffusers/models/normalization.py
    .. [2] ``apply_rotary_emb`` and ``RMSNorm`` in diffusers, src/diffusers/models/embeddings.py
       and normalization.py
    """

    traffic: float
    kernels: float
    cycles: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A way to run a program.

    launch : ``graph`` replays captured kernels; ``stream`` issues each from the host.
    host_kernel, host_collective : seconds of host time to issue one. memory : bytes it takes.
    convolution, plane_convolution : FLOP a cycle and multiprocessor that a VAE's convolutions
    reach, over space and time and over space alone. plane_passes : bytes that what goes with
    those over space moves for each FLOP of theirs.
    kernels_of : the runtime that makes its kernels, itself or another whose kernels it replays.
    calls : seconds of host time of some kinds of collectives, where they are not `host_collective`.
    host_pixel, host_rank : seconds that a request waits for the host, for a decoded pixel that it
    takes over, and for a rank beyond the first.
    """

    name: str
    launch: Literal["graph", "stream"]
    host_kernel: Sourced
    host_collective: Sourced
    memory: Sourced
    convolution: Sourced
    plane_convolution: Sourced
    plane_passes: Sourced
    functions: Mapping[str, Fusion]
    kernels_of: str
    calls: tuple[tuple[str, float], ...] = ()
    host_pixel: float = 0.0
    host_rank: float = 0.0

    def __hash__(self) -> int:
        return hash(self.name)

    def host_call(self, kind: str) -> float:
        """Seconds of host time to issue a collective of a kind."""
        return dict(self.calls).get(kind, self.host_collective.value)

    def fusion(self, function: str) -> Fusion:
        """Look up the cost of an element-wise function; the runtime's usual one if it has none."""
        return self.functions.get(function) or self.functions["default"]

    def moving(self, traffic: Mapping[str, float]) -> "Runtime":
        """Return the runtime with other factors of traffic for some functions."""
        return self.doing({n: replace(self.fusion(n), traffic=x) for n, x in traffic.items()})

    def doing(self, functions: Mapping[str, Fusion]) -> "Runtime":
        """Return the runtime with some functions done in other ways."""
        if not functions:
            return self
        return replace(self, functions={**self.functions, **functions})


def load_runtimes(rows: Mapping[str, Any]) -> dict[str, Runtime]:
    """Read runtimes, a table a runtime."""
    runtimes = {}
    wanted = {"launch", "functions", *_UNITS}
    for name, row in rows.items():
        if row.keys() != wanted:
            raise CatalogueError(f"{name}: expected {sorted(wanted)}, got {sorted(row)}")
        maker = row["functions"] if isinstance(row["functions"], str) else name
        numbers: dict[str, Any] = {
            key: read_sourced(f"{name}.{key}", row[key], unit, row) for key, unit in _UNITS.items()
        }
        fusions = {
            function: Fusion(traffic=float(cost["traffic"]), kernels=float(cost["kernels"]))
            for function, cost in rows[maker]["functions"].items()
        }
        runtimes[name] = Runtime(
            name=name, launch=row["launch"], functions=fusions, kernels_of=maker, **numbers
        )
    return runtimes
