"""Which links the messages of a plan load, and how much of each they take while alone.

How long a message takes on its own is the closed form's to say. Of a link it takes the bytes that
it brings there over what the link could carry in that time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Final

from costmodels.collectives import network_share
from costmodels.price import Target, moves_of
from costmodels.program import Communication
from planner.placement.seating import group_ranks
from planner.request.plan import Plan
from planner.scenario.deployment import Deployment
from topology.base.values import dataclass
from topology.catalogue import Moves, link_rates
from topology.machine import (
    MEMORY,
    Link,
    Loads,
    Survey,
    loads_of,
    machine_of,
    named_links,
    survey_of,
)

Group = tuple[int, ...]
OUTSIDE: Final = ("NVLink", "network", MEMORY)
"""Ends of links that no host names."""
NONE: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageKind:
    """Messages of a kind along an axis.

    moves : what they bring to links. seconds : of one message alone. stream : that it is on.
    """

    kind: str
    axis: str
    moves: Moves
    seconds: float
    stream: str


def sent_by(op: Communication, seconds: float, target: Target) -> MessageKind:
    """Say what a message brings to the links of its group, and in how long."""
    return MessageKind(
        kind=op.kind, axis=op.axis, moves=moves_of(op, target), seconds=seconds, stream=op.stream
    )


def _ends_taken(
    survey: Survey, traffic: Mapping[str, float]
) -> Iterator[tuple[tuple[str, str], float]]:
    """Give links by their ends in either direction, and the part of each that traffic takes.

    All NVLinks of a GPU are one link here; PCIe has the way to the memory of each processor too.
    """
    machine = survey.machine
    gpus = {gpu.name for gpu in machine.gpus}
    for name, share in traffic.items():
        edges, ports = named_links(machine, name)
        ends = [(nic.name, "network", share) for nic in ports]
        if name == "pcie":
            ends += [(cpu or "host", MEMORY, share) for cpu in {*survey.cpus.values()}]
        for edge in edges:
            if edge.kind != "nvlink":
                ends.append((edge.a, edge.b, share))
                continue
            for gpu in gpus & {edge.a, edge.b}:
                total_bandwidth = sum(
                    nvlink.bandwidth.value for nvlink in machine.links_of(gpu, "nvlink")
                )
                ends.append((gpu, "NVLink", share * edge.bandwidth.value / total_bandwidth))
        for copy, (a, b, taken_share) in product(range(machine.copies), ends):
            full_names = [end if end in OUTSIDE else machine.full_name(copy, end) for end in (a, b)]
            yield (full_names[0], full_names[1]), taken_share
            yield (full_names[1], full_names[0]), taken_share


class Wiring:
    """The links under all ranks of a plan, whose replicas are numbered one after the other.

    traffic : of others, the part of each link that it takes, by name. hosts : of the machine, where
    it has more than the plan takes. behind : GPUs of each host that another job has.

    Raises `InputError` if there is no such link.
    """

    def __init__(
        self,
        deployment: Deployment,
        plan: Plan,
        traffic: Mapping[str, float] = NONE,
        hosts: int = 0,
        behind: int = 0,
    ) -> None:
        self.plan = Plan((("dp", plan.degree("dp")), *plan.without("dp").axes))
        place, subset = deployment.placed, deployment.subset
        local: Sequence[int]
        if place is None or subset is None:
            own_hosts = deployment.hosts
            self.survey = survey_of(machine_of(deployment.hardware, hosts or own_hosts))
            hosts, local = own_hosts, range(behind, behind + plan.gpus // own_hosts)
        else:
            self.survey, hosts, local = subset.survey, place.hosts, place.devices
        host_gpus = len(self.survey.machine.gpus)
        seats = [host * host_gpus + seat for host in range(hosts) for seat in local]
        replicas = [plan.index_of(rank).get("dp", 0) for rank in range(plan.gpus)]
        self.seats = [seats[rank] for rank in sorted(range(plan.gpus), key=replicas.__getitem__)]
        self.traffic = dict(_ends_taken(self.survey, traffic))
        fabrics = deployment.fabrics(plan).values()
        network = next((f.network for f in fabrics if f.network is not None), None)
        self.reached = {False: link_rates().copy.value, True: 1.0}
        if network is not None:
            self.reached[True] = network_share(network)

    @property
    def kinds(self) -> list[str]:
        """Name the kind of the GPU that each rank has, as the machine says."""
        gpus = self.survey.machine.gpus
        return [gpus[seat % len(gpus)].hardware or "" for seat in self.seats]

    def taken(self, link: Link) -> float:
        """Give the part of a link that others take."""
        return self.traffic.get((link.a, link.b), 0.0)

    def groups(self, axis: str) -> list[Group]:
        """List the groups of ranks along an axis."""
        names, degrees = zip(*self.plan.axes, strict=True)
        return [tuple(row) for row in group_ranks(degrees, names.index(axis)).tolist()]

    def loads(self, sent: MessageKind) -> Iterator[tuple[Group, Loads]]:
        """Give the bytes over links of a message of each group along its axis."""
        for group in self.groups(sent.axis):
            seats = [self.seats[rank] for rank in group]
            moves_bytes = bool(sent.seconds * (sent.moves.sent + sent.moves.far))
            yield (
                group,
                loads_of(self.survey, seats, sent.moves) if moves_bytes else defaultdict(float),
            )

    def busy(self, sent: MessageKind) -> Iterator[tuple[Group, Mapping[Link, float]]]:
        """Give the seconds that links need for a message of each group, at the best they reach."""
        for group, loads in self.loads(sent):
            rates = {
                link: link.rate * self.reached[link.far] or sent.moves.staging for link in loads
            }
            yield group, {link: load / rates[link] for link, load in loads.items() if rates[link]}

    def shares(self, sent: MessageKind) -> Iterator[tuple[Group, Mapping[Link, float]]]:
        """Give what a message of each group takes of links, of all of a link at most.

        The closed form knows of what the groups along an axis share but leaf switches: there they
        take no more than all of a link together.
        """
        busy_groups = list(self.busy(sent))
        shared_time: dict[Link, float] = defaultdict(float)
        for _, busy in busy_groups:
            for link, time in busy.items():
                shared_time[link] += 0.0 if link.shared else time
        for group, busy in busy_groups:
            capacity_s = {
                link: max(shared_time[link], time, sent.seconds) for link, time in busy.items()
            }
            yield group, {link: time / capacity_s[link] for link, time in busy.items()}
