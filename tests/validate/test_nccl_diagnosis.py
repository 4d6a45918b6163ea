"""Reasons that are found without a log: times of one machine beside the model of another."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.collectives import NcclSettings, collective_time
from topology.catalogue import Network, find_hardware
from validate.nccl_tests.diagnosis import MeasuredCollective, diagnose

SIZES = 2.0 ** np.arange(10, 34, 2)


def reasons(taken, real, op="all_reduce"):
    """What is said of times on `real` links that were taken for others."""
    run = MeasuredCollective(
        op=op,
        fabric=taken,
        algorithm="auto",
        settings=NcclSettings(),
        sizes=SIZES,
        seconds=collective_time(op, SIZES, real),
    )
    return " | ".join(diagnose(run))


@pytest.mark.parametrize(
    ("name", "bandwidth"), [("a40", 56.25e9), ("rtx-3090", 56.25e9), ("rtx-2080-ti", 50e9)]
)
def test_a_bridge_that_nobody_told_of(name, bandwidth):
    plain = find_hardware(name).fabric(2)
    bridged = replace(plain, link="nvlink", bandwidth=bandwidth, peer_to_peer=True)

    assert "an NVLink bridge joins the two GPUs" in reasons(plain, bridged)
    assert "NVLink bridge" not in reasons(plain, plain)


def test_no_bridge_is_suggested_to_cards_without_one():
    plain = find_hardware("l40s").fabric(2)
    fast = replace(plain, peer_to_peer=True, bandwidth=56e9)

    assert "NVLink bridge" not in reasons(plain, fast)


def test_several_nodes_lose_their_network_before_their_nvlink():
    nodes = find_hardware("gh200").fabric(8, nodes=2)
    sockets = Network(kind="ethernet", bandwidth=nodes.network.bandwidth / 4, nics=1)

    assert "TCP sockets on one NIC" in reasons(nodes, replace(nodes, network=sockets))


def test_nodes_that_did_lose_their_nvlink_are_told():
    nodes = find_hardware("a100-sxm-80gb").fabric(16, nodes=2)
    staged = replace(nodes, link="pcie", bandwidth=31.5e9, peer_to_peer=False)

    assert "copies are staged" in reasons(nodes, staged)
