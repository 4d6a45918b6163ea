"""What one rank computes on PyTorch is what the reference computes, operation by operation."""

from types import SimpleNamespace

import numpy as np
import pytest
import testmodels
from hypothesis import given
from hypothesis import strategies as st

from costmodels.program import (
    Attention,
    Depthwise,
    LinearAttention,
    Loop,
    Matmul,
    Part,
    Pointwise,
    Rearrange,
    Recurrence,
    Span,
    Tensor,
    Weight,
)
from planner.lowering import lower
from planner.search.plans import objections
from planner.strategies import parse_plan
from validate.reference import functions as reference
from validate.reference.run import Here
from validate.reference.weights import Source

torch = pytest.importorskip("torch")

from validate.torch import layout, recurrent  # noqa: E402
from validate.torch.attention import (  # noqa: E402
    Ask,
    folded_heads,
    multiplied,
    plain_attention,
    query_runs,
)
from validate.torch.case_run import step_of as step_again  # noqa: E402
from validate.torch.expert_layer import ExpertLayer, with_layers  # noqa: E402
from validate.torch.experts import step_of  # noqa: E402
from validate.torch.layout import RUNNER_MOVES  # noqa: E402
from validate.torch.liveness import arriving_names, with_lifetimes  # noqa: E402
from validate.torch.proof import Comm, ProvedWork, state_for  # noqa: E402
from validate.torch.routine import make_routines, play  # noqa: E402
from validate.torch.setting import Setting  # noqa: E402
from validate.torch.steps import bind  # noqa: E402
from validate.torch.weights import drawn, fitting_layers, from_source, inputs_from_source  # noqa: E402

PLANS = (
    "single",
    "tp2",
    "tp2/ep2",
    "ulysses4",
    "ring3",
    "allgather_kv2.ulysses2",
    "ring2.ulysses2",
)
MODELS = (*testmodels.DIFFUSION, *testmodels.DECODERS)


def setting(index, *, traced=False):
    return Setting(device=torch.device("cpu"), dtype=torch.float64, index=index, traced=traced)


def programs():
    for model in MODELS:
        decoder = model.kind == "decoder"
        work = testmodels.workload(model, batch=2, passes=1 if decoder else 2)
        for text in PLANS:
            plan = parse_plan(text)
            if not any(objections(model, work, plan, plan.gpus)):
                yield lower(model, work, plan), plan


def cases():
    """Every different operation that stands alone, on every rank of its plan."""
    found = {}
    for program, plan in programs():
        ops = {
            op
            for stage in program.stages
            for op in stage.walk()
            if isinstance(op, Pointwise | Rearrange | Attention | LinearAttention)
            and not (isinstance(op, Rearrange) and op.move in RUNNER_MOVES)
            and getattr(op, "function", "") != "combine"  # in a layer of experts
        }
        for op in ops:
            for rank in range(plan.gpus):
                kind = getattr(op, "function", getattr(op, "move", type(op).__name__))
                index = plan.index_of(rank)
                found.setdefault(kind, []).append((op, index))
    return found


CASES = cases()


def numbers(op):
    """Inputs of an operation; the experts a row chooses are numbers of experts."""
    source = Source(5)
    return [source.array(t.name, tuple(map(int, t.shape))) for t in op.reads]


@pytest.mark.parametrize("traced", [False, True], ids=["kernels", "traced"])
@pytest.mark.parametrize("kind", sorted(CASES))
def test_operations_agree_with_the_reference(kind, traced):
    for op, index in CASES[kind]:
        given = numbers(op)
        if isinstance(op, Attention):
            out, total = reference.attention(op, *given, index)
            want = [out] if op.log_sum_exp is None else [out, total]
        elif isinstance(op, LinearAttention):
            want = [reference.linear_attention(op, *given)]
        elif isinstance(op, Pointwise):
            want = reference.pointwise(op, given, index)
        else:
            want = reference.rearrange(op, given, index)

        bound = bind(op, setting(index, traced=traced))
        got = bound.run([*map(torch.from_numpy, given), *bound.tables])

        for made, right in zip(got, want, strict=True):
            assert made.shape == right.shape, op
            np.testing.assert_allclose(made.numpy(), right, atol=1e-9, err_msg=str(op))


def test_convolutions_agree_with_the_reference():
    """Ranks in the middle, at the ends, and one that has the whole image."""
    found = 0
    for program, plan in programs():
        ops = [o for s in program.stages for o in s.walk() if isinstance(o, Depthwise)]
        for op in ops[:1]:
            for rank in range(plan.gpus):
                index = plan.index_of(rank)
                weight = Source(1).weight(op.weight, 0, index)
                (x,) = numbers(op)
                want = reference.depthwise(op, x, weight, index)

                run = bind(op, setting(index)).run
                (got,) = run([torch.from_numpy(x), torch.from_numpy(weight.T.copy())])

                np.testing.assert_allclose(got.numpy(), want, atol=1e-9, err_msg=str(op))
                found += 1
    assert found


def expert_layers():
    """Every different layer of experts, with a rank of each group that has some of them."""
    found = {}
    for program, plan in programs():
        for stage in program.stages:
            loops = [stage, *(loop for _, around in stage.nested() for loop in around)]
            layers = [one for loop in loops for one in with_layers(loop.body)]
            for layer in (one for one in layers if isinstance(one, ExpertLayer)):
                for rank in range(plan.gpus):
                    index = plan.index_of(rank)
                    found[layer, layer.up.weight.place(index)] = index
    return [(layer, index) for (layer, _), index in found.items()]


def test_experts_agree_with_the_reference():
    """Some experts have many rows, others none; those of other ranks add nothing."""
    layers = expert_layers()
    spread = [layer.up.weight.local_experts < layer.up.weight.experts for layer, _ in layers]
    assert {True, False} <= set(spread)
    for layer, index in layers:
        x, route, gates = (Source(2).array(t.name, tuple(map(int, t.shape))) for t in layer.reads)
        route = np.random.default_rng(3).integers(0, layer.up.weight.experts, route.shape)
        route[0, 0] = layer.up.weight.experts - 1
        matrices = {op.weight.name: Source(1).weight(op.weight, 0, index)
                    for op in (layer.up, layer.down)}  # fmt: skip
        first = layer.up.weight.place(index)[0] * layer.up.weight.local_experts

        inner = reference.matmul(x, matrices[layer.up.weight.name], route, first)
        (active,) = reference.pointwise(layer.activation, [inner], index)
        back = reference.matmul(active, matrices[layer.down.weight.name], route, first)
        (want,) = reference.pointwise(layer.combine, [back, gates], index)

        names = [tensor.name for tensor in layer.reads]
        state = SimpleNamespace(
            setting=setting(index), fuser=None, inputs=frozenset(), groups={},
            values=dict(zip(names, map(torch.from_numpy, (x, route, gates)), strict=True)),
            weights=SimpleNamespace(of=lambda weight, _, drawn=matrices: torch.from_numpy(
                np.swapaxes(drawn[weight.name], -1, -2).copy())),
        )  # fmt: skip
        step_of(layer, state)(Here())
        np.testing.assert_allclose(state.values[layer.combine.outputs[0].name], want, atol=1e-9)


@given(
    tokens=st.integers(1, 40),
    degree=st.sampled_from([1, 2, 3, 4]),
    zigzag=st.booleans(),
    causal=st.booleans(),
    window=st.sampled_from([0, 1, 5]),
    data=st.data(),
)
def test_pieces_cover_what_the_mask_shows(tokens, degree, zigzag, causal, window, data):
    """Second opinion: the reference's mask, drawn from positions pair by pair."""
    axes = (("ring", degree),) if degree > 1 else ()
    window = window if degree == 1 and causal else 0
    span = Span("x", tokens, axes, degree, zigzag=zigzag and degree > 1)
    turn = ("ring", data.draw(st.integers(0, degree - 1))) if degree > 1 else None
    x = Tensor("x", (1, span.rows, 4))
    op = Attention(
        q=x, k=x, v=x, out=x, heads=1, key_value_heads=1, size=4, query_spans=(span,),
        key_spans=(span,), causal=causal, turn=turn, window=window,
    )  # fmt: skip
    index = {"ring": data.draw(st.integers(0, degree - 1))}

    shown = np.zeros((span.rows, span.rows), dtype=bool)
    for run in query_runs(op, index):
        for piece in run.pieces:
            keys = np.concatenate([np.arange(start, stop) for _, start, stop in piece.keys])
            for place, query in enumerate(range(run.start, run.stop)):
                last = len(keys) - (run.stop - run.start) + place + 1 if piece.diagonal else None
                mine = keys[:last]
                shown[query, mine[-piece.window :] if piece.window else mine] = True

    mask = reference._visible(op, index)  # noqa: SLF001  # the judge
    np.testing.assert_array_equal(shown, np.broadcast_to(mask, shown.shape))


@given(rows=st.lists(st.integers(-1, 6), min_size=1, max_size=12))
def test_runs_bring_the_rows_they_stand_for(rows):
    x = torch.arange(1, 8).reshape(1, 7, 1)

    got = layout.join([x], layout.from_rows(np.array(rows)), 1)

    assert got.flatten().tolist() == [row + 1 if row >= 0 else 0 for row in rows]


def test_a_window_over_a_diagonal_is_what_it_says():
    q = torch.randn(1, 3, 2, 4, dtype=torch.float64)
    k = torch.randn(1, 5, 1, 4, dtype=torch.float64)

    out, sums = plain_attention(q, k, k, Ask(diagonal=True, window=2))

    for query in range(3):  # sees keys query + 1 and query + 2
        part, total = plain_attention(
            q[:, query : query + 1], *[k[:, query + 1 : query + 3]] * 2, Ask()
        )
        torch.testing.assert_close(out[:, query : query + 1], part)
        torch.testing.assert_close(sums[:, query : query + 1], total)


@pytest.mark.parametrize("text", ["tp2", "tp4"])
def test_shares_of_drawn_weights_are_those_of_the_whole(text):
    plan = parse_plan(text)
    work = testmodels.workload(testmodels.llama, passes=1)
    program = lower(testmodels.llama, work, plan)
    whole = lower(testmodels.llama, work, parse_plan("single"))
    pairs = zip(products(program), products(whole), strict=True)
    made = [drawn(setting({"tp": rank})) for rank in range(plan.gpus)]
    known = from_source(Source(0), setting({"tp": 0}))

    for cut, full in pairs:
        shares = [weights.of(cut, 1) for weights in made]
        if cut.split == "rows":
            torch.testing.assert_close(torch.cat(shares, 1), made[0].make(full, 1))
        assert shares[0].shape == known.of(cut, 1).shape


def products(program):
    return [op.weight for stage in program.stages for op in stage.walk() if isinstance(op, Matmul)]


def test_layers_share_weights_where_memory_is_short():
    op = products(lower(testmodels.llama, testmodels.workload(testmodels.llama), parse_plan("single")))[0]  # fmt: skip  # noqa: E501
    weights = drawn(setting({}), distinct=2)

    assert weights.of(op, 0) is weights.of(op, 2)
    assert weights.of(op, 0) is not weights.of(op, 1)
    assert fitting_layers(4, 4.0, 2.5) == 2


def add(left, right, out):
    x, y, z = (Tensor(name, (1, 2, 4)) for name in (left, right, out))
    return Pointwise(function="residual", inputs=(x, y), outputs=(z,))


def test_tensors_live_until_their_last_reader_and_no_longer():
    body = (add("a", "b", "c"), add("c", "b", "d"), add("d", "d", "a"))

    frees = [one.frees for one in with_lifetimes(body, frozenset({"a"}))]

    assert frees == [{"a"}, {"b", "c"}, {"d"}]


def test_what_the_next_turn_reads_lives_through_a_loop():
    loop = Loop(name="layers", count=3, body=(add("x", "y", "t"), add("t", "t", "x")))
    body = (loop, add("x", "y", "z"))

    assert arriving_names(loop.body) == {"x", "y"}
    assert [one.frees for one in with_lifetimes(body, frozenset({"z"}))] == [{"t"}, {"x", "y"}]


def test_ranks_of_a_hybrid_meet_along_each_axis():
    plan = parse_plan("cfg2.ring2.ulysses2")

    assert plan.index_of(6) == {"cfg": 1, "ring": 1, "ulysses": 0}
    assert plan.ranks_along("ring", 6) == (4, 6)
    assert plan.ranks_along("ulysses", 6) == (6, 7)


@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize("model", testmodels.DECODERS, ids=lambda model: model.name)
def test_a_step_that_is_taken_again_starts_where_it_did(model, stage):
    """Caches grow and states change in a step: each time from what they were before the first."""
    work = testmodels.workload(model, batch=2, passes=1, output_tokens=1)
    one = ProvedWork(model=model, workload=work, plan=parse_plan("single"))
    here, source = setting({}), Source()
    weights, given_ = from_source(source, here), inputs_from_source(source, here, 2)
    comm = Comm(rank=0, world=1, handles={(0,): None})
    state = state_for(one, comm, here, weights, given_, fuser=None)
    routines = make_routines(state)
    if stage == "decode":
        state.begin()
        play(routines["prefill"], state)

    again, outputs = step_again(routines[stage], state), []
    for _ in range(3):
        again()
        outputs.append(state.values[state.program.output.name].clone())

    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("rows", [1, 11, 64, 300])
@pytest.mark.parametrize("kind", ["delta", "mamba"])
def test_a_prompt_in_chunks_is_its_tokens_one_by_one(kind, rows):
    heads, groups, key, value, random = 4, 2, 16, 8, np.random.default_rng(7).standard_normal
    width, gates = 2 * groups * key + heads * value, (2 if kind == "delta" else 1) * heads
    op = Recurrence(
        kind=kind, inputs=(Tensor("x", (2, rows, width)), Tensor("g", (2, rows, gates))),
        state=Tensor("s", (2, heads, key, value), 4), after=Tensor("t", (2, heads, key, value), 4),
        weight=Weight(name="w", rows=(Part(2),), columns=(Part(heads),)),
        out=Tensor("o", (2, rows, heads * value)), heads=heads, groups=groups, key=key,
        value=value, chunk=64,
    )  # fmt: skip
    features, decays = random((2, rows, width)), random((2, rows, gates))
    state, weight = random((2, heads, key, value)), random((2, heads))
    wanted = reference.recurrence(op, features, decays, state, weight)

    here = Setting(device=torch.device("cpu"), dtype=torch.float32, index={})
    numbers = [torch.as_tensor(x).float() for x in (features, weight.T, decays, state)]
    got = recurrent.bind(op, here).run(numbers)

    for one, want in zip(got, wanted, strict=True):
        assert np.linalg.norm(one.numpy() - want) < 1e-5 * np.linalg.norm(want)


def test_a_triangle_of_like_keys_is_inverted_without_its_powers():
    """Where all keys are alike the 32nd power of the matrix has numbers of 1e18."""
    below = torch.ones(64, 64).tril(-1)

    product = recurrent.inverse(below) @ (below + torch.eye(64))

    torch.testing.assert_close(product, torch.eye(64))


@pytest.mark.parametrize("kernel", [folded_heads(plain_attention), multiplied])
@pytest.mark.parametrize(("heads", "shared"), [(8, 1), (6, 3)])
def test_one_query_may_be_attended_head_by_head_of_its_keys(heads, shared, kernel):
    draw = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn((2, rows, count, size), generator=draw, dtype=torch.float64)
        for rows, count, size in ((1, heads, 24), (5, shared, 24), (5, shared, 16))
    )
    for got, want in zip(kernel(q, k, v, Ask()), plain_attention(q, k, v, Ask()), strict=True):
        torch.testing.assert_close(got, want)
