"""What vendors sell: devices, the nodes they come in, links and their rates, rented machines."""

from topology.catalogue.devices import Architecture, Device, Precision
from topology.catalogue.fabric import (
    Fabric,
    LinkKind,
    Network,
    NetworkKind,
    Pace,
    Paced,
    Siblings,
    pcie_bandwidth,
)
from topology.catalogue.hardware import CROWD, NO_PEERS, Hardware, check_pcie_generation, even_hosts
from topology.catalogue.moves import Moves
from topology.catalogue.names import (
    by_device,
    by_product,
    named_instance,
)
from topology.catalogue.rates import (
    NcclRates,
    NvlinkGeneration,
    architecture_of,
    capability_of,
    nvlink_generation,
)
from topology.catalogue.tables import (
    all_devices,
    all_hardware,
    find_hardware,
    gpu_names,
    link_rates,
    names_file,
    rented_machines,
)

__all__ = [
    "CROWD", "NO_PEERS", "Architecture", "Device", "Fabric", "Hardware", "LinkKind", "Moves",
    "NcclRates", "Network", "NetworkKind", "NvlinkGeneration", "Pace", "Paced", "Precision",
    "Siblings", "all_devices", "all_hardware", "architecture_of", "by_device", "by_product",
    "capability_of", "check_pcie_generation", "even_hosts", "find_hardware", "gpu_names",
    "link_rates",
    "named_instance", "names_file", "nvlink_generation", "pcie_bandwidth", "rented_machines",
]  # fmt: skip
