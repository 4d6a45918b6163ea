"""What runs beside what: schedules solved by hand, and laws of all of them."""

from dataclasses import replace

import generators
import numpy as np
import pytest
from generators import task
from hypothesis import example, given
from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.events import Task, run
from costmodels.overlap import hidden_share
from costmodels.price import Target, price
from costmodels.program import Collective, Loop, Matmul, Part, SendReceive, Tensor, Weight
from costmodels.tables import runtime
from costmodels.timeline import Cost, cost, makespan
from topology.catalogue import find_hardware

NODE = find_hardware("h100-sxm")


def target(name="tensorrt", **changes):
    return Target(
        **{
            "device": NODE.device,
            "fabrics": {"ring": NODE.fabric(4), "tp": NODE.fabric(4)},
            "runtime": runtime(name),
            **changes,
        }
    )


def ring(attend, send, steps=4):
    """Ring attention: each step's keys arrive while the step before is computed."""
    tasks = [task("a0", "compute", attend)]
    for step in range(1, steps):
        tasks.append(task(f"s{step}", "comm", send, [f"s{step - 1}"] if step > 1 else []))
        tasks.append(task(f"a{step}", "compute", attend, [f"s{step}"]))
    return tasks


@pytest.mark.parametrize(
    ("tasks", "finish"),
    [
        ([], 0),
        ([task("a", "compute", 3)], 3),
        ([task("a", "compute", 3), task("b", "compute", 2)], 5),  # one stream: one at a time
        ([task("a", "comm", 3), task("b", "compute", 2)], 3),  # two streams: the longer
        ([task("a", "comm", 3), task("b", "compute", 2, ["a"])], 5),  # waits
        (ring(3, 2), 12),  # 4 x 3: sends are hidden
        (ring(3, 5), 18),  # 3 x 5, then one attention of 3
        (ring(3, 3), 12),
        (ring(7, 1, steps=1), 7),
        # a diamond: 2, then 3 beside 5, then 1
        (
            [
                task("a", "compute", 2),
                task("b", "compute", 3, ["a"]),
                task("c", "comm", 5, ["a"]),
                task("d", "compute", 1, ["b", "c"]),
            ],
            8,
        ),
        # written twice: who reads waits for the second
        ([task("a", "compute", 2), task("a", "comm", 4), task("b", "compute", 1, ["a"])], 5),
    ],
)
def test_schedules_solved_by_hand(tasks, finish):
    assert makespan(tasks) == finish


def longest_chain(tasks):
    end = {}
    for op, priced in tasks:
        begin = max((end[tensor.name] for tensor in op.reads), default=0.0)
        end[op.writes[0].name] = begin + priced.seconds
    return max(end.values(), default=0.0)


@given(tasks=generators.schedules())
def test_between_full_overlap_and_none(tasks):
    busiest = max(sum(p.seconds for op, p in tasks if op.stream == s) for s in ("compute", "comm"))

    none = sum(priced.seconds for _, priced in tasks)
    assert max(busiest, longest_chain(tasks)) <= makespan(tasks) <= none


@given(tasks=generators.schedules(), more=st.integers(0, 100), data=st.data())
def test_longer_tasks_never_finish_earlier(tasks, more, data):
    if not tasks:
        return
    number = data.draw(st.integers(0, len(tasks) - 1))
    op, priced = tasks[number]
    slower = task(op.writes[0].name, op.stream, priced.seconds + more, [t.name for t in op.reads])

    assert makespan([*tasks[:number], slower, *tasks[number + 1 :]]) >= makespan(tasks)


@given(tasks=generators.schedules())
def test_leaving_out_the_last_task_never_takes_longer(tasks):
    assert makespan(tasks[:-1]) <= makespan(tasks)


def _square(name, rows=4096):
    """A product of two square matrices."""
    x = Tensor(f"{name}.x", (1, rows, 4096))
    weight = Weight(name=name, rows=(Part(4096),), columns=(Part(4096),))
    return Matmul(x=x, weight=weight, out=Tensor(f"{name}.y", (1, rows, 4096)))


def _reduce(name, size=2**20):
    x = Tensor(f"{name}.x", (size,))
    return Collective(kind="all_reduce", x=x, out=Tensor(name, (size,)), axis="tp", degree=4)


def _send(name, size):
    x = Tensor(f"{name}.x", (size,))
    return SendReceive(x=x, out=Tensor(f"{name}.y", (size,)), axis="ring", degree=4)


def _loop(*body, count=1, **more):
    return Loop(name="loop", count=count, body=body, **more)


def test_what_runs_in_order_adds_up():
    product, reduction = _square("a"), _reduce("b")
    found = cost(_loop(product, reduction, product), target())

    alone, called = price(product, target()).seconds, price(reduction, target()).seconds
    assert found.time == pytest.approx(2 * alone + called)
    assert found.classes["gemm"] == pytest.approx(2 * alone)
    assert found.classes["communication"] == pytest.approx(called)
    assert found.exposed == pytest.approx(called)
    assert found.hidden == 0


@pytest.mark.parametrize("count", [0, 1, 7, np.array([1, 2, 3])])
def test_turns_of_a_loop_take_as_many_times_as_long(count):
    body = _loop(_square("a"), _reduce("b"))
    once, all_of_them = cost(body, target()), cost(_loop(body, count=count), target())

    assert np.asarray(all_of_them.time) == pytest.approx(np.asarray(count) * once.time)
    assert np.asarray(all_of_them.exposed) == pytest.approx(np.asarray(count) * once.exposed)


def test_inner_loops_are_barriers():
    """A send in one loop cannot hide behind the next one."""
    send, product = _send("s", 2**24), _square("a")
    apart = cost(_loop(_loop(send), _loop(product)), target())

    assert apart.hidden == 0
    assert apart.time == pytest.approx(
        price(send, target()).seconds + price(product, target()).seconds
    )


@pytest.mark.parametrize("size", [2**10, 2**20, 2**24, 2**28, 2**30])
def test_a_send_beside_a_product_is_hidden_in_part(size):
    """The product keeps a share of its pace beside the send, which no product makes shorter."""
    send, product = _send("s", size), _square("a", rows=16384)
    found = cost(_loop(send, product), target())

    sending, computing = price(send, target()).seconds, price(product, target()).seconds
    share = hidden_share("send_recv", sending)
    assert found.time == pytest.approx(max(sending, computing + (1 - share) * sending))
    assert found.exposed == pytest.approx(found.time - computing)
    assert found.hidden == pytest.approx(sending - found.exposed)
    assert 0 <= found.hidden <= sending


def test_a_send_that_is_waited_for_is_exposed():
    product = _square("a")
    waits = Matmul(x=Tensor("s.y", (1, 4096, 4096)), weight=product.weight, out=product.out)
    found = cost(_loop(_send("s", 2**24), waits), target())

    assert found.hidden == pytest.approx(0, abs=1e-12)


def test_the_host_bounds_small_work():
    """A thousand tiny products: the device waits for the host unless a graph is replayed.

    The last is run when the host is done.
    """
    tiny = _loop(_square("a", rows=1), count=1000)
    graph, eager = cost(tiny, target("tensorrt")), cost(tiny, target("torch-eager"))

    assert graph.launch == 0
    assert eager.amid == pytest.approx(1000 * runtime("torch-eager").host_kernel.value)
    assert eager.lag == pytest.approx(price(_square("a", rows=1), target("torch-eager")).seconds)
    assert eager.launch == pytest.approx(eager.time - eager.device)


def test_the_host_runs_ahead_of_large_work():
    """All that is waited for is the first launch."""
    large = cost(_loop(_square("a", rows=65536), count=10), target("torch-eager"))

    assert not large.hosted
    assert large.launch == pytest.approx(runtime("torch-eager").host_kernel.value)


products = st.sampled_from([1, 512, 4096]).map(lambda rows: _square("a", rows=rows))
bodies = st.recursive(
    products,
    lambda items: st.builds(
        lambda body, count: _loop(*body, count=count),
        st.lists(items, max_size=4),
        st.integers(0, 3),
    ),
    max_leaves=12,
)


@given(body=st.lists(bodies, max_size=4), count=st.integers(1, 4))
def test_hosts_run_ahead_over_turns_as_events_of_all_of_them_do(body, count):
    """Some operations take longer than their launch, some less; none waits for the turn's end."""
    eager, loop = target("torch-eager"), _loop(*body, count=count)
    tasks = [
        Task(
            ranks=(0,),
            stream="compute",
            seconds=price(op, eager).seconds,
            issued=(number + 1) * eager.runtime.host_kernel.value,
        )
        for number, op in enumerate(_all(loop))
    ]

    assert cost(loop, eager).time == pytest.approx(run(tasks).seconds)


def _all(loop):
    """Give the operations of all turns of a loop."""
    for _ in range(loop.count):
        for item in loop.body:
            yield from _all(item) if isinstance(item, Loop) else [item]


KINDS = ["gemm", "attention", "communication"]


@st.composite
def costs_of(draw):
    """Costs whose classes are the sums of what is known of them."""
    parts = st.tuples(st.sampled_from(KINDS), st.sampled_from(list(Basis)))
    known = draw(st.dictionaries(parts, st.integers(0, 1000).map(float)))
    classes = {kind: sum(s for (one, _), s in known.items() if one == kind) for kind, _ in known}
    seconds = st.integers(0, 1000).map(float)
    cost = Cost(
        classes=classes,
        exposed=draw(seconds),
        hidden=draw(seconds),
        host=draw(seconds),
        known=known,
    )
    both = int(min(cost.host, cost.device))  # a device that begins when its host is done ends so
    return replace(cost, lag=float(draw(st.integers(0, both))))


costs = costs_of()


@given(one=costs, two=costs, three=costs)
def test_costs_add_up_in_any_order_but_for_the_lag(one, two, three):
    assert replace(one + two, lag=0.0) == replace(two + one, lag=0.0)
    assert (one + two) + three == one + (two + three)
    assert one + Cost() == Cost() + one == one


@given(one=costs, two=costs, count=st.integers(0, 50))
def test_turns_share_out(one, two, count):
    """All of one and then all of the other take as long as both in turn, but for the lag."""
    both = one.times(count) + two.times(count)
    assert replace((one + two).times(count), lag=0.0) == replace(both, lag=0.0)


@given(one=costs, counts=st.tuples(st.integers(0, 50), st.integers(0, 50)))
def test_turns_follow_turns(one, counts):
    assert one.times(sum(counts)) == one.times(counts[0]) + one.times(counts[1])


@given(one=costs)
def test_time_is_the_device_and_what_it_waits(one):
    assert one.time == one.device + one.launch
    assert one.device == one.compute + one.exposed
    assert one.launch >= 0


def known(**seconds):
    """Give communication of which so many seconds are known so well."""
    parts = {("communication", Basis[name.upper()]): float(s) for name, s in seconds.items()}
    return Cost(classes={"communication": sum(parts.values())}, known=parts)


@given(one=costs, two=costs)
@example(one=known(extrapolated=17), two=known(measured=402, calibrated=22))
def test_a_sum_is_known_no_better_than_its_best_part_and_no_worse_than_its_worst(one, two):
    for kind, basis in (one + two).basis.items():
        parts = [part.basis[kind] for part in (one, two) if kind in part.basis]
        assert min(parts) <= basis <= max(parts)


@given(one=costs, count=st.integers(1, 50))
def test_turns_are_known_as_well_as_one(one, count):
    assert one.times(count).basis == one.basis


@pytest.mark.parametrize(("seconds", "basis"), [(4.0, Basis.MEASURED), (6.0, Basis.ASSUMED)])
def test_a_small_part_does_not_decide_how_well_a_class_is_known(seconds, basis):
    """A twentieth does; less does not."""
    large = Cost(classes={"gemm": 100.0}, known={("gemm", Basis.MEASURED): 100.0})
    small = Cost(classes={"gemm": seconds}, known={("gemm", Basis.ASSUMED): seconds})

    assert (large + small).basis == {"gemm": basis}
