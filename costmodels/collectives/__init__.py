"""How long a collective takes: `collective_time`, `choose`, `basis`, `supports`.

* operations   the collectives, what their size means, the least they must move
* curve, parameters   one form for all protocols and kernels; curves with their sources
* transports   what a step and a byte cost between nodes
* algorithms   which bytes move in how many steps, and what that needs
* nccl_tuning, choice   what NCCL believes of each, and what it takes for which size
* measured     curves and times of one machine
* engines, settings   kernels of serving engines; how the library is run
* dispatch     tokens to the ranks of their experts, and results back
* pricing, calls   a price for every size; the public face
* tables       the files that ship
"""

from costmodels.collectives.calls import (
    basis,
    choose,
    collective_time,
    moves,
    steps,
    supports,
)
from costmodels.collectives.measured import Calibration, CurveCalibration, Times
from costmodels.collectives.operations import (
    INWARD_OPS,
    OPS,
    PROTOCOLS,
    ROOTED_OPS,
    Op,
    WireProtocol,
    bus_factor,
    least_bytes,
    read_op,
)
from costmodels.collectives.settings import (
    LAUNCHES,
    UNMIXED,
    Launch,
    NcclSettings,
    read_algorithm,
    read_launch,
)
from costmodels.collectives.tables import network_share

__all__ = [
    "INWARD_OPS", "LAUNCHES", "OPS", "PROTOCOLS", "ROOTED_OPS", "UNMIXED", "Calibration",
    "CurveCalibration", "Launch", "NcclSettings", "Op", "Times", "WireProtocol", "basis",
    "bus_factor", "choose", "collective_time", "least_bytes", "moves", "network_share",
    "read_algorithm", "read_launch", "read_op", "steps", "supports",
]  # fmt: skip
