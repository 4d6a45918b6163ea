"""Numbers of GPUs worth a look beside the one that was asked for, and the hosts that they fill."""

from dataclasses import replace

from planner.site import Site
from topology.errors import InputError


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


def of_fewer(gpus: int, site: Site, count: int) -> Site:
    """Narrow a site of `gpus` to `count` of them: as many on each host, on as few as hold them.

    >>> from planner.request import Request
    >>> from planner.site import site_of
    >>> two = site_of(Request(model="flux.1-dev", gpus=16, nodes=2))
    >>> [of_fewer(16, two, count).nodes for count in (8, 16)]  # 0: as many as it takes
    [0, 2]
    """
    if not site.nodes or count == gpus:
        return site
    each = gpus // site.nodes
    return replace(site, nodes=0 if count <= each else count // each)


def _evenly(gpus: int, site: Site, count: int) -> bool:
    try:
        if site.ground is not None:
            site.ground.on(count)
        else:
            each = gpus // (site.nodes or 1)
            site.hardware.island(count, of_fewer(gpus, site, count).nodes)
            return not site.nodes or count <= each or count % each == 0
    except InputError:
        return False
    return True
