"""The line of every worker of two pools, and of the router in front."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from planner.engines.engine import Disaggregation, Engine
from planner.engines.tables import engines
from planner.placement.placement import visible_devices
from planner.request.plan import TwoPools
from planner.runners.launch import Launch, launch_of
from planner.scenario.scenario import Scenario
from topology.base.values import dataclass

PORTS: Final = {"prefill": 8100, "decode": 8200}
"""At which the first worker of each pool serves."""
SIDE_PORT: Final = 5600
SPACING: Final = 64
"""Between ports that workers have beside those that they serve at: each rank takes one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a worker is: its host and ports, and its GPUs there."""

    host: str
    port: int
    side: int
    devices: tuple[int, ...]

    def filled(self, text: str) -> str:
        """Write a text with the host and the ports."""
        for name in ("host", "port", "side"):
            text = text.replace(f"{{{name}}}", str(getattr(self, name)))
        return text


def worker_lines(
    scenario: Scenario, pools: TwoPools, told: Mapping[str, Mapping[str, int]]
) -> tuple[Launch, ...]:
    """Say how engines run every worker of two pools and the router in front, or why they cannot.

    told : sizes that workers of each pool are told of the load, as `Settings` names them.
    """
    candidates = engines().of_kind(scenario.model.kind)
    return tuple(
        line for engine in candidates for line in _workers_of(scenario, engine, pools, told)
    )


def _workers_of(
    scenario: Scenario, engine: Engine, pools: TwoPools, told: Mapping[str, Mapping[str, int]]
) -> list[Launch]:
    """Write the lines of one engine; one with the reason where it cannot."""
    if reason := engine.disaggregation.reason:
        return [Launch(engine=engine.title, reason=reason)]
    seats, lines = _seats(scenario, pools), []
    for name, plan in (("prefill", pools.prefill), ("decode", pools.decode)):
        if reason := engine.disaggregation.bars(plan):
            return [Launch(engine=engine.title, reason=f"{name} plan {plan}: {reason}")]
        launch = launch_of(scenario.on(plan.gpus), engine, plan, told.get(name))
        if launch.reason:
            return [replace(launch, reason=f"{name} plan {plan}: {launch.reason}")]
        title = f"{engine.title}, {name}"
        lines += [
            replace(launch, engine=title, command=_as_worker(launch.command, seat, engine, name))
            for seat in seats[name]
        ]
    return [*lines, _router(engine, seats)]


def _seats(scenario: Scenario, pools: TwoPools) -> dict[str, list[Seat]]:
    """Give workers GPUs, the largest first: each on the first host that has room for it."""
    kinds = (("prefill", pools.prefill, pools.prefills), ("decode", pools.decode, pools.decodes))
    deployment = scenario.deployment.on(pools.gpus)
    fixed_hosts = deployment.subset is not None or deployment.nodes
    host_gpus = pools.gpus // deployment.hosts if fixed_hosts else deployment.hardware.gpus
    one_host = pools.gpus <= host_gpus
    used_gpus: list[int] = []
    seats: dict[str, list[Seat]] = {name: [] for name, _, _ in kinds}
    for name, plan, count in sorted(kinds, key=lambda kind: -kind[1].gpus):
        for number in range(count):
            host, first_gpu = _room(used_gpus, plan.gpus, host_gpus)
            seat = Seat(
                host="localhost" if one_host else f"HOST{host}",
                port=PORTS[name] + number,
                side=SIDE_PORT + SPACING * first_gpu,
                devices=tuple(range(first_gpu, min(first_gpu + plan.gpus, host_gpus))),
            )
            seats[name].append(seat)
    return seats


def _room(used_gpus: list[int], gpus: int, local: int) -> tuple[int, int]:
    """Take GPUs of the first host that has so many left, or of new ones: host and first GPU.

    >>> taken = [8, 2]
    >>> [_room(taken, gpus, 8) for gpus in (4, 4, 16)], taken
    ([(1, 2), (2, 0), (3, 0)], [8, 6, 4, 8, 8])
    """
    host = next((n for n, used in enumerate(used_gpus) if used + gpus <= local), len(used_gpus))
    first_gpu = used_gpus[host] if host < len(used_gpus) else 0
    if host == len(used_gpus):
        used_gpus += [min(local, gpus - filled_gpus) for filled_gpus in range(0, gpus, local)]
    else:
        used_gpus[host] += gpus
    return host, first_gpu


def _as_worker(command: str, seat: Seat, engine: Engine, kind: str) -> str:
    """Add to a worker's command what it is, and the GPUs that it may use."""
    disaggregation = engine.disaggregation
    flags = " ".join(
        f"'{word}'" if word.startswith('{"') else word
        for word in (disaggregation.prefill if kind == "prefill" else disaggregation.decode).split()
    )
    prefixes = [visible_devices(seat.devices), disaggregation.variables]
    words = [*filter(None, prefixes), command, disaggregation.worker, flags]
    return seat.filled(" ".join(words))


def _router(engine: Engine, seats: Mapping[str, list[Seat]]) -> Launch:
    disaggregation = engine.disaggregation
    words = {
        key: value
        for name, row in seats.items()
        for key, value in _router_words(disaggregation, name, row)
    }
    note = disaggregation.after.format(**words)
    return Launch(
        engine=f"{engine.title}, router",
        command=disaggregation.router.format(**words),
        notes=(note,) if note else (),
    )


def _router_words(
    disaggregation: Disaggregation, name: str, row: list[Seat]
) -> Iterator[tuple[str, str]]:
    """Yield the words of a router's command about the workers of one kind."""
    address = disaggregation.prefill_at if name == "prefill" else disaggregation.decode_at
    separator = " " if address.startswith("-") else ", "
    yield f"{name}s", separator.join(seat.filled(address) for seat in row)
    yield f"{name}_hosts", " ".join(seat.host for seat in row)
    yield f"{name}_ports", " ".join(str(seat.port) for seat in row)
    yield f"{name}_count", str(len(row))
