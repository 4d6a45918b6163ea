"""One machine as a graph, and what follows from it: routes, paths, groups, warnings."""

from topology.machine.alterations import altered, named_links
from topology.machine.build import (
    MOST_HOSTS,
    Builder,
    assumed_network,
    assumed_ports,
    cluster_of,
    gpu_of,
    machine_of,
    nvlink_count,
    repeated,
    usual_nvlinks,
    usual_ports,
    with_ports,
)
from topology.machine.concerns import concerns, environment_concerns
from topology.machine.flows import bisection_bandwidth
from topology.machine.graph import (
    GRAPH,
    SLICES,
    Edge,
    Gpu,
    Machine,
    NcclGraph,
    Nic,
    Node,
    Pair,
    PairKind,
    PeerState,
    PeerStatus,
    Reached,
    mig_share,
)
from topology.machine.groups import fabric, usual_siblings
from topology.machine.loads import MEMORY, Link, Loads, loads_of
from topology.machine.paths import (
    gpudirect,
    nccl_bandwidth,
    nccl_peers,
    path_types,
    processor_of,
)
from topology.machine.routes import components, graph_pairs
from topology.machine.survey import Survey, survey_of

__all__ = [
    "GRAPH", "MEMORY", "MOST_HOSTS", "SLICES", "Builder", "Edge", "Gpu", "Link", "Loads",
    "Machine", "NcclGraph", "Nic", "Node", "Pair", "PairKind", "PeerState",
    "PeerStatus", "Reached", "Survey", "altered", "assumed_network", "assumed_ports",
    "bisection_bandwidth", "cluster_of", "components", "concerns", "environment_concerns",
    "fabric", "gpu_of", "gpudirect", "graph_pairs", "loads_of", "machine_of", "mig_share",
    "named_links", "nccl_bandwidth", "nccl_peers", "nvlink_count", "path_types", "processor_of",
    "repeated", "survey_of", "usual_nvlinks", "usual_ports", "usual_siblings", "with_ports",
]  # fmt: skip
