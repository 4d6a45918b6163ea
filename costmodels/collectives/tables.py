"""The tables that ship with the project. Nothing else here touches a packaged file."""

from functools import cache
from importlib.resources import files
from typing import Any

from costmodels.collectives.engines import EngineKernels, Mixing, Unrecorded, load_engines
from costmodels.collectives.nccl_tuning import Tuning, load_tuning
from costmodels.collectives.parameters import Library, load_library
from costmodels.collectives.transports import (
    Losses,
    Transports,
    load_losses,
    load_transports,
    transport_of,
)
from topology.base import shipped_table
from topology.catalogue import Network

_CURVES = ("collectives_nvlink.toml", "collectives_pcie.toml", "collectives_kernels.toml")


@cache
def library() -> Library:
    """Read the curves of all protocols and kernels, once."""
    return load_library(*map(_read, _CURVES))


@cache
def tuning() -> Tuning:
    """Read NCCL's own constants, once."""
    return load_tuning(_read("nccl_tuning.toml"))


@cache
def transports() -> Transports:
    """Read the kinds of network, once."""
    networks = dict(_read("collectives_network.toml"))
    del networks["losses"]
    return load_transports(networks)


def network_share(network: Network) -> float:
    """Give the share of the nominal bandwidth of NICs that large messages reach."""
    return transport_of(network, transports()).efficiency


@cache
def losses() -> Losses:
    """Read what nodes lose of their network together, once."""
    return load_losses(_read("collectives_network.toml")["losses"])


def engines() -> dict[str, EngineKernels]:
    """Give the communication kernels of serving engines, by engine."""
    return _engines()[0]


def unrecorded() -> Unrecorded:
    """Give what a call costs that no graph replays."""
    return _engines()[1]


def mixing() -> Mixing:
    """Give what a graph adds to a call that it replays."""
    return _engines()[2]


@cache
def _engines() -> tuple[dict[str, EngineKernels], Unrecorded, Mixing]:
    """Read the engines' file, once."""
    return load_engines(_read("collectives_engines.toml"))


def _read(name: str) -> dict[str, Any]:
    return shipped_table(files("costmodels").joinpath("data", name))
