"""Numbers of GPUs worth a look beside the one that was asked for, and the hosts that they fill."""

from dataclasses import replace

from planner.engines.deployment import Deployment
from planner.engines.told import hosts_of
from topology.base import InputError, counted


def counts_up_to(gpus: int, many: int) -> list[int]:
    """List powers of two up to `gpus`, and divisors where these are not many.

    >>> counts_up_to(12, many=64), counts_up_to(96, many=64)
    ([1, 2, 3, 4, 6, 8, 12], [1, 2, 4, 8, 16, 32, 64, 96])
    """
    powers = {2**power for power in range(gpus.bit_length()) if 2**power <= gpus}
    divisors = range(1, gpus + 1) if gpus <= many else ()
    return sorted(powers | {gpus} | {count for count in divisors if gpus % count == 0})


def worth_a_look(gpus: int, deployment: Deployment, many: int) -> list[int]:
    """List `gpus` and the smaller numbers that sit evenly on their hosts."""
    counts = counts_up_to(gpus, many)
    return [count for count in counts if count == gpus or _evenly(gpus, deployment, count)]


def of_count(gpus: int, deployment: Deployment, count: int) -> Deployment:
    """Make a deployment of `gpus` one of `count`: as many on each host, on as few as hold them.

    >>> from planner.request.request import Request
    >>> from planner.engines.deployment import deployment_of
    >>> two = deployment_of(Request(model="flux.1-dev", gpus=16, nodes=2))
    >>> [of_count(16, two, count).nodes for count in (8, 16, 32)]  # 0: as many as it takes
    [0, 2, 4]
    """
    if not deployment.nodes or count == gpus:
        return deployment
    each = gpus // deployment.nodes
    return replace(deployment, nodes=count // each if count > each and deployment.nodes > 1 else 0)


def spread(gpus: int, deployment: Deployment, count: int) -> str:
    """Say the hosts of some of the `gpus` of a deployment that do not fill theirs; empty elsewhere.

    >>> from planner.request.request import Request
    >>> from planner.engines.deployment import deployment_of
    >>> ones = deployment_of(Request(model="flux.1-dev", gpus=16, nodes=16))
    >>> spread(16, ones, 8), spread(16, deployment_of(Request(model="flux.1-dev", gpus=16)), 8)
    (' on 8 hosts', '')
    """
    hosts = hosts_of(gpus, deployment)
    full = gpus == hosts * deployment.hardware.gpus
    alone = deployment.subset is not None or count == 1
    if alone or full or deployment.hardware.island(gpus, deployment.nodes) == gpus:
        return ""
    return f" on {counted(hosts_of(count, of_count(gpus, deployment, count)), 'host')}"


def _evenly(gpus: int, deployment: Deployment, count: int) -> bool:
    try:
        if deployment.subset is not None:
            deployment.subset.on(count)
        else:
            each = gpus // (deployment.nodes or 1)
            deployment.hardware.island(count, of_count(gpus, deployment, count).nodes)
            return not deployment.nodes or count <= each or count % each == 0
    except InputError:
        return False
    return True
