"""Numbers of GPUs worth a look beside the one that was asked for, and the hosts that they fill."""

from dataclasses import replace

from planner.engines.deployment import Site
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


def worth_a_look(gpus: int, site: Site, many: int) -> list[int]:
    """List `gpus` and the smaller numbers that sit evenly on their hosts."""
    counts = counts_up_to(gpus, many)
    return [count for count in counts if count == gpus or _evenly(gpus, site, count)]


def of_count(gpus: int, site: Site, count: int) -> Site:
    """Make a site of `gpus` one of `count`: as many on each host, on as few as hold them.

    >>> from planner.request.request import Request
    >>> from planner.engines.deployment import site_of
    >>> two = site_of(Request(model="flux.1-dev", gpus=16, nodes=2))
    >>> [of_count(16, two, count).nodes for count in (8, 16, 32)]  # 0: as many as it takes
    [0, 2, 4]
    """
    if not site.nodes or count == gpus:
        return site
    each = gpus // site.nodes
    return replace(site, nodes=count // each if count > each and site.nodes > 1 else 0)


def spread(gpus: int, site: Site, count: int) -> str:
    """Say the hosts of some of the `gpus` of a site that do not fill theirs; empty elsewhere.

    >>> from planner.request.request import Request
    >>> from planner.engines.deployment import site_of
    >>> ones = site_of(Request(model="flux.1-dev", gpus=16, nodes=16))
    >>> spread(16, ones, 8), spread(16, site_of(Request(model="flux.1-dev", gpus=16)), 8)
    (' on 8 hosts', '')
    """
    hosts = hosts_of(gpus, site)
    full = gpus == hosts * site.hardware.gpus
    alone = site.ground is not None or count == 1
    if alone or full or site.hardware.island(gpus, site.nodes) == gpus:
        return ""
    return f" on {counted(hosts_of(count, of_count(gpus, site, count)), 'host')}"


def _evenly(gpus: int, site: Site, count: int) -> bool:
    try:
        if site.ground is not None:
            site.ground.on(count)
        else:
            each = gpus // (site.nodes or 1)
            site.hardware.island(count, of_count(gpus, site, count).nodes)
            return not site.nodes or count <= each or count % each == 0
    except InputError:
        return False
    return True
