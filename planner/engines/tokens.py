"""Which way an engine sends tokens to experts that are spread over ranks, and how it is told so."""

from collections.abc import Iterator, Sequence

from costmodels.collectives.dispatch import Taken, obstacle
from planner.models import Model
from planner.request.workload import TokenWay
from topology.catalogue import Device, Fabric


def taken(
    ways: Sequence[TokenWay], model: Model, fabric: Fabric | None, device: Device
) -> tuple[TokenWay, ...]:
    """List the ways that an engine takes for a model, each up to its tokens a rank.

    Parameters
    ----------
    fabric : over whose ranks the experts are spread; None where they are not.
    """
    if fabric is None or fabric.ranks == 1 or not model.has_experts:
        return ()
    top_k = max(tower.ffn.active for tower in model.towers if tower.ffn is not None)
    return tuple(_until_any(way for way in ways if _can(way, top_k, fabric, device)))


def _can(way: TokenWay, top_k: int, fabric: Fabric, device: Device) -> bool:
    inside = "rack" if fabric.hosts > 1 else "node"
    over = "network" if fabric.nodes > 1 else inside
    return (
        (not way.over or over in way.over)
        and (not way.local or fabric.local in way.local)
        and fabric.ranks <= (way.ranks or fabric.ranks)
        and top_k <= (way.top_k or top_k)
        and not obstacle(way.way, fabric, device)
    )


def _until_any(ways: Iterator[TokenWay]) -> Iterator[TokenWay]:
    """Yield ways up to the first that takes any number of tokens."""
    for way in ways:
        yield way
        if not way.most:
            return


def priced(ways: Sequence[TokenWay]) -> tuple[Taken, ...]:
    """Say the same to the cost models."""
    return tuple(
        Taken(way=way.way, sent=way.sent, **({"most": float(way.most)} if way.most else {}))
        for way in ways
    )


def ways_flags(ways: Sequence[TokenWay]) -> list[str]:
    """List the flags that ask for the ways, each once."""
    return list(dict.fromkeys(way.flag for way in ways if way.flag))
