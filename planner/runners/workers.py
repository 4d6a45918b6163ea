"""What to type for a disaggregated deployment: a line for every worker, and one for the router."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.engines.engine import Disaggregation, Engine
from planner.engines.tables import engines
from planner.placement.placement import visible
from planner.request.plan import Plan, TwoPools
from planner.runners.launch import Launch, launch_of
from planner.scenario.scenario import Scenario

PORTS = {"prefill": 8100, "decode": 8200}
SIDE = 5600
SPACING = 64
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
        return text.replace("{host}", self.host).replace("{port}", str(self.port)).replace(
            "{side}", str(self.side)
        )  # fmt: skip


def worker_lines(
    scenario: Scenario, pools: TwoPools, told: Mapping[str, Mapping[str, int]]
) -> tuple[Launch, ...]:
    """Say how engines run every worker of two pools and the router in front, or why they cannot.

    told : sizes that workers of each pool are told of the load, as `Settings` names them.
    """
    lines: list[Launch] = []
    for engine in engines().of_kind(scenario.model.kind):
        lines += _of(scenario, engine, pools, told)
    return tuple(lines)


def _of(
    scenario: Scenario, engine: Engine, pools: TwoPools, told: Mapping[str, Mapping[str, int]]
) -> list[Launch]:
    """Write the lines of one engine; one with the reason where it cannot."""
    if reason := engine.disaggregation.reason:
        return [Launch(engine=engine.title, reason=reason)]
    kinds = {"prefill": (pools.prefill, pools.prefills), "decode": (pools.decode, pools.decodes)}
    seats = dict(zip(kinds, _seats(scenario, pools), strict=True))
    lines = []
    for name, (plan, _) in kinds.items():
        launch = launch_of(scenario.on(plan.gpus), engine, plan, told.get(name))
        if launch.reason:
            return [replace(launch, reason=f"{name} plan {plan}: {launch.reason}")]
        title = f"{engine.title}, {name}"
        lines += [
            replace(launch, engine=title, command=_command(launch.command, seat, engine, name))
            for seat in seats[name]
        ]
    return [*lines, _router(engine, seats)]


def _seats(scenario: Scenario, pools: TwoPools) -> tuple[list[Seat], list[Seat]]:
    """Give workers GPUs of one host after another, prefill workers first."""
    deployment = scenario.deployment.on(pools.gpus)
    local = pools.gpus // deployment.hosts
    found, first = [], 0
    for name, plan, count in (
        ("prefill", pools.prefill, pools.prefills),
        ("decode", pools.decode, pools.decodes),
    ):
        row = []
        for number in range(count):
            row.append(_seat(plan, first, local, PORTS[name] + number, deployment.hosts))
            first += plan.gpus
        found.append(row)
    return found[0], found[1]


def _seat(plan: Plan, first: int, local: int, port: int, hosts: int) -> Seat:
    host = "localhost" if hosts == 1 else f"HOST{first // local}"
    start = first % local
    devices = tuple(range(start, min(start + plan.gpus, local)))
    return Seat(host=host, port=port, side=SIDE + SPACING * (first % local), devices=devices)


def _command(command: str, seat: Seat, engine: Engine, kind: str) -> str:
    """Add to a worker's command what it is, and the GPUs that it may use."""
    ways = engine.disaggregation
    flags = " ".join(
        f"'{word}'" if word.startswith('{"') else word
        for word in (ways.prefill if kind == "prefill" else ways.decode).split()
    )
    before = [visible(seat.devices), ways.variables]
    words = [*filter(None, before), command, ways.worker, flags]
    return seat.filled(" ".join(words))


def _router(engine: Engine, seats: Mapping[str, list[Seat]]) -> Launch:
    ways = engine.disaggregation
    words = {key: value for name, row in seats.items() for key, value in _listed(ways, name, row)}
    note = ways.after.format(**words)
    return Launch(
        engine=f"{engine.title}, router",
        command=ways.router.format(**words),
        notes=(note,) if note else (),
    )


def _listed(ways: Disaggregation, name: str, row: list[Seat]) -> Iterator[tuple[str, str]]:
    """Yield the words of a router's command about the workers of one kind."""
    each = ways.prefill_at if name == "prefill" else ways.decode_at
    between = " " if each.startswith("-") else ", "
    yield f"{name}s", between.join(seat.filled(each) for seat in row)
    yield f"{name}_hosts", " ".join(seat.host for seat in row)
    yield f"{name}_ports", " ".join(str(seat.port) for seat in row)
    yield f"{name}_count", str(len(row))
