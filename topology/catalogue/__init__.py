"""What vendors sell: devices, the nodes they come in, links and their rates, rented machines."""

from topology.catalogue.devices import Architecture, Device, Precision, load_devices
from topology.catalogue.fabric import Fabric, LinkKind, Network, NetworkKind, pcie_bandwidth
from topology.catalogue.hardware import (
    CROWD,
    NEWEST_PCIE,
    NO_PEERS,
    Hardware,
    check_pcie_generation,
    evenly,
    load_hardware,
)
from topology.catalogue.instances import Instance, load_instances, named_instance
from topology.catalogue.names import GpuName, by_device, by_product, load_names
from topology.catalogue.rates import (
    NcclRates,
    NvlinkGeneration,
    Rates,
    architecture_of,
    capability_of,
    load_rates,
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
    "CROWD",
    "NEWEST_PCIE",
    "NO_PEERS",
    "Architecture",
    "Device",
    "Fabric",
    "GpuName",
    "Hardware",
    "Instance",
    "LinkKind",
    "NcclRates",
    "Network",
    "NetworkKind",
    "NvlinkGeneration",
    "Precision",
    "Rates",
    "all_devices",
    "all_hardware",
    "architecture_of",
    "by_device",
    "by_product",
    "capability_of",
    "check_pcie_generation",
    "evenly",
    "find_hardware",
    "gpu_names",
    "link_rates",
    "load_devices",
    "load_hardware",
    "load_instances",
    "load_names",
    "load_rates",
    "named_instance",
    "names_file",
    "nvlink_generation",
    "pcie_bandwidth",
    "rented_machines",
]
