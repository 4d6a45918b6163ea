"""Time of a whole program: what runs after what on two streams, and what that leaves exposed.

A body's operations are issued in order, each on its stream, and start when their inputs and their
stream are free. Loops inside a body are barriers. A collective that runs beside compute hides only
part of itself, because it takes multiprocessors and power away from it.

A host issues without waiting, from one operation and one turn to the next. So many turns take what
the slower of host and device takes for all, and the lag that the device has behind it once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add
from typing import Final, TypeVar, cast

from costmodels.basis import Basis
from costmodels.overlap import hidden_share, waiting_share
from costmodels.price import Class, FoundPrices, Priced, Target, cached_price, host_seconds
from costmodels.program import Collective, Communication, Loop, Op
from costmodels.sizes import Real, Size, any_true, larger, smaller
from topology.base.values import dataclass

K = TypeVar("K")
_TINY: Final = 2.0**-100  # s, keeps a share of nothing finite

SHARE: Final = 0.05
"""Share of a time below which a part does not decide how well the time is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time of a piece of a program. Costs add, one after the other, and multiply by a count.

    classes : busy seconds by class of operation, `communication` in full.
    exposed, hidden : communication that adds to the time, and that runs beside compute.
    waiting : seconds until the slowest of the ranks that exchange something has come as far.
    host : seconds the host takes to issue it all. lag : until it is done, behind the slower of host
    and device: of work that had to wait for its host though the device is the slower one, or that
    is still to do when the host is done; the same for one turn and for many.
    known : busy seconds by class and by how well they are known.
    """

    classes: Mapping[Class, Real] = field(default_factory=dict)
    exposed: Real = 0.0
    hidden: Real = 0.0
    waiting: Real = 0.0
    host: Real = 0.0
    lag: Real = 0.0
    known: Mapping[tuple[Class, Basis], Real] = field(default_factory=dict)

    @property
    def basis(self) -> dict[Class, Basis]:
        """How well each class is known: what a real share of it is known no better than."""
        weakest: dict[Class, Basis] = {}
        share: dict[Class, Real] = {}
        for (kind, basis), seconds in sorted(self.known.items(), key=lambda row: -row[0][1]):
            share[kind] = share.get(kind, 0.0) + seconds
            if kind not in weakest and any_true(share[kind] >= SHARE * self.classes[kind]):
                weakest[kind] = basis
        return weakest

    @property
    def compute(self) -> Real:
        """Busy seconds of everything but communication."""
        return _compute_seconds(self.classes)

    @property
    def device(self) -> Real:
        """Seconds on the device, were the host infinitely fast."""
        return self.compute + self.exposed + self.waiting

    @property
    def launch(self) -> Real:
        """Seconds that the device waits for the host, which runs ahead where it can."""
        return larger(self.host - self.device, 0.0) + self.lag

    @property
    def hosted(self) -> bool:
        """Whether the host sets the pace, of any of several sizes."""
        return any_true(self.host > self.device)

    @property
    def amid(self) -> Real:
        """Seconds that it adds amid many turns like it."""
        return larger(self.host, self.device)

    @property
    def time(self) -> Real:
        """Seconds in all, where the host begins no earlier than the device."""
        return self.amid + self.lag

    def __add__(self, other: "Cost") -> "Cost":
        host, lag = self.host + other.host, cast(Real, 0.0)
        if any_true(host > 0):
            device = self.device + other.device
            end = larger(self.host + other.time, self.time + other.device)
            lag = larger(end - larger(host, device), 0.0)
        return Cost(
            classes=_summed(self.classes, other.classes),
            exposed=self.exposed + other.exposed,
            hidden=self.hidden + other.hidden,
            waiting=self.waiting + other.waiting,
            host=host,
            lag=lag,
            known=_summed(self.known, other.known),
        )

    def times(self, count: Size | Real) -> "Cost":
        """Return the cost of `count` turns, or of a part of one."""
        if isinstance(count, int) and count == 1:
            return self
        return Cost(
            classes={kind: seconds * count for kind, seconds in self.classes.items()},
            exposed=self.exposed * count,
            hidden=self.hidden * count,
            waiting=self.waiting * count,
            host=self.host * count,
            lag=self.lag * (count > 0),
            known={part: seconds * count for part, seconds in self.known.items()},
        )


def _summed(first: Mapping[K, Real], second: Mapping[K, Real]) -> dict[K, Real]:
    total = dict(first)
    for key, seconds in second.items():
        total[key] = total[key] + seconds if key in total else seconds
    return total


def _compute_seconds(classes: Mapping[Class, Real]) -> Real:
    total: Real = 0.0
    for kind, seconds in classes.items():
        if kind != "communication":
            total = total + seconds
    return total


def sequential_cost(costs: Sequence[Cost]) -> Cost:
    """Cost of what different ranks do one after another: their hosts begin at the same time."""
    end: Real = 0.0
    device: Real = 0.0
    for piece in reversed(costs):
        end, device = larger(end, piece.time + device), device + piece.device
    whole = replace(
        reduce(add, costs), host=reduce(larger, [piece.host for piece in costs]), lag=0.0
    )
    return replace(whole, lag=larger(end - whole.amid, 0.0))


def cost(loop: Loop, target: Target, prices: FoundPrices | None = None) -> Cost:
    """Price all turns of a loop on `target`.

    prices : of operations met before on this device; it is added to.
    """
    prices = FoundPrices() if prices is None else prices
    total = _price_turns(
        loop, target, prices, prices.settings.setdefault(target.beside_links, _FoundCosts())
    )
    if "communication" not in total.classes:
        return total
    return replace(total, waiting=total.compute * waiting_share(target.ranks))


@dataclass(frozen=True, slots=True)
class _FoundCosts:
    """What was found on one device, run in one way.

    bodies : costs of bodies, by their identity and their links. ops : prices, by the number of an
    operation and its links. straight : costs of operations between barriers on one stream, by the
    identities of their prices.
    """

    bodies: dict[tuple[object, ...], Cost] = field(default_factory=dict)
    ops: dict[object, Priced] = field(default_factory=dict)
    straight: dict[tuple[int, ...], Cost] = field(default_factory=dict)


def _price_turns(loop: Loop, target: Target, prices: FoundPrices, memo: _FoundCosts) -> Cost:
    """Price a loop, whose body may be that of others: layers of other stages and plans."""
    body = _priced_body(loop, prices.contents.bodies)
    key = id(body), *[target.fabrics[axis] for axis in body.axes]
    turn_cost = memo.bodies.get(key)
    if turn_cost is None:
        turn_cost = memo.bodies[key] = reduce(
            add,
            (
                _price_turns(part, target, prices, memo)
                if isinstance(part, Loop)
                else _straight_cost(part, target, prices, memo)
                for part in body.parts
            ),
        )
    return turn_cost.times(loop.count)


@dataclass(frozen=True, slots=True)
class _PricedBody:
    """The body of a loop; kept, so that its id stays its.

    parts : loops and the operations between them. axes : along which it communicates, inner loops
    included.
    """

    items: Sequence[Op | Loop]
    parts: list[list[Op] | Loop]
    axes: list[str]


def _priced_body(loop: Loop, bodies: dict[int, _PricedBody]) -> _PricedBody:
    """Give what is known of the body of a loop."""
    body = bodies.get(id(loop.body))
    if body is None:
        ops, axes = list[Op](), set[str]()
        parts: list[list[Op] | Loop] = [ops]
        for item in loop.body:
            if isinstance(item, Loop):
                ops = []
                parts += [item, ops]
                axes.update(_priced_body(item, bodies).axes)
                continue
            ops.append(item)
            if isinstance(item, Communication):
                axes.add(item.axis)
        body = bodies[id(loop.body)] = _PricedBody(loop.body, parts, sorted(axes))
    return body


def _linked_price(op: Op, target: Target, prices: FoundPrices, memo: _FoundCosts) -> Priced:
    """Price an operation, or take the price of one like it over the same links."""
    number = prices.contents.number(op)
    key = (number, target.fabrics[op.axis]) if isinstance(op, Communication) else number
    priced = memo.ops.get(key)
    if priced is None:
        priced = memo.ops[key] = cached_price(op, target, prices)
    return priced


def _straight_cost(ops: list[Op], target: Target, prices: FoundPrices, memo: _FoundCosts) -> Cost:
    """Price operations between barriers; on one stream they cost what their prices add up to."""
    priced = [(op, _linked_price(op, target, prices, memo)) for op in ops]
    if any(op.stream != "compute" for op in ops):
        return _summed_cost(priced, target)
    key = tuple([id(price) for _, price in priced])
    if key not in memo.straight:
        memo.straight[key] = _summed_cost(priced, target)
    return memo.straight[key]


def _summed_cost(priced: list[tuple[Op, Priced]], target: Target) -> Cost:
    classes: dict[Class, Real] = {}
    seconds_by_basis: dict[tuple[Class, Basis], Real] = {}
    host: Real = 0.0
    issued: list[Real] = []
    for op, price in priced:
        host = host + host_seconds(op, price, target.runtime)
        issued.append(host)
        if price.kernels or price.calls:
            classes[price.kind] = classes.get(price.kind, 0.0) + price.seconds
            part = price.kind, price.basis
            seconds_by_basis[part] = seconds_by_basis.get(part, 0.0) + price.seconds
    kept = [_kept_pace(op, price, target) for op, price in priced]
    exposed, hidden = _overlap(priced, classes, kept)
    cost = Cost(classes=classes, exposed=exposed, hidden=hidden, host=host, known=seconds_by_basis)
    if not any_true(host > 0):
        return cost
    return replace(cost, lag=larger(makespan(priced, kept, issued) - cost.amid, 0.0))


def _overlap(
    priced: list[tuple[Op, Priced]], classes: Mapping[Class, Real], paces: Sequence[Real]
) -> tuple[Real, Real]:
    """Communication that adds to the time, and communication that does not."""
    communication = classes.get("communication", 0.0)
    if all(op.stream == "compute" for op, _ in priced):
        return communication, 0.0
    exposed = larger(makespan(priced, paces) - _compute_seconds(classes), 0.0)
    return exposed, larger(communication - exposed, 0.0)


def _kept_pace(op: Op, priced: Priced, target: Target) -> Real:
    """Share of its pace that compute keeps beside an operation."""
    if op.stream == "compute" or not isinstance(op, Communication):
        return 1.0
    urgent = target.hides(op.axis) or _of_weights(op)
    return hidden_share(op.kind, priced.seconds, target.profile, urgent=urgent)


def _of_weights(op: Op) -> bool:
    """Whether a message brings weights, which have all kernels of a layer to pass between."""
    return isinstance(op, Collective) and bool(op.weights)


def makespan(
    priced: Sequence[tuple[Op, Priced]], kept: Sequence[Real] = (), issued: Sequence[Real] = ()
) -> Real:
    """Finish time of operations issued in this order on their streams.

    kept : share of its pace that compute keeps beside each of them, all of it where left out.
    issued : when a host has issued each, at once where left out.
    """
    stream_free: dict[str, Real] = {}
    ready: dict[str, Real] = {}
    messages: list[tuple[Real, Real, Real]] = []
    finish: Real = 0.0
    last_reader = {
        tensor.name: number for number, (op, _) in enumerate(priced) for tensor in op.reads
    }
    for number, ((op, price), share) in enumerate(
        zip(priced, kept or [1.0] * len(priced), strict=True)
    ):
        start: Real = stream_free.get(op.stream, 0.0)
        if issued:
            start = larger(start, issued[number])
        for tensor in op.reads:
            start = larger(start, ready.get(tensor.name, 0.0))
            if last_reader[tensor.name] == number:
                ready.pop(tensor.name, None)
        if op.stream == "compute":
            messages = [
                entry for entry in messages if any_true(entry[1] > start)
            ]  # none begins before this
            end = _slowed_end(start, price.seconds, messages)
        else:
            end = start + price.seconds
            messages.append((start, end, share))
            for times in (stream_free, ready):  # of compute that was issued before
                later_times = {
                    entry: moment for entry, moment in times.items() if any_true(moment > start)
                }
                times.update(
                    {
                        entry: _delayed_end(moment, messages[-1:])
                        for entry, moment in later_times.items()
                    }
                )
        stream_free[op.stream] = end
        for tensor in op.writes:
            if last_reader.get(tensor.name, -1) > number:
                ready[tensor.name] = end
        finish = larger(finish, end)
    return finish


def _delayed_end(end: Real, messages: Sequence[tuple[Real, Real, Real]]) -> Real:
    """When compute ends that would end at a moment, were there not this message."""
    start = messages[0][0]
    return end + _slowed_end(start, larger(end - start, 0.0), messages) - larger(end, start)


def _slowed_end(start: Real, work: Real, messages: Sequence[tuple[Real, Real, Real]]) -> Real:
    """When compute ends that keeps a share of its pace beside each of these messages."""
    moment = start
    for begin, end, share in messages:
        free_work = smaller(work, larger(begin - moment, 0.0))
        moment, work = moment + free_work, work - free_work
        window = larger(end - larger(begin, moment), 0.0)
        moment = moment + smaller(work / larger(share, _TINY), window)
        work = work - smaller(work, share * window)
    return moment + work
