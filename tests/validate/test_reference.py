"""Every strategy's program, run on numbers for all ranks, equals the unsplit model."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import testmodels

from costmodels.program import Collective, Matmul, Part, Recurrence, SendReceive, Tensor, Weight
from planner.lowering import lower
from planner.search.plans import objections, plans
from planner.strategies import parse_plan
from validate.reference import functions, run_plan
from validate.reference.run import DeadlockError, execute
from validate.reference.weights import Source, own_samples

PLANS = [
    "tp2",
    "tp4",
    "ulysses2",
    "ulysses4",
    "ring2",
    "ring3",
    "ring4",
    "allgather_kv2",
    "allgather_kv4",
    "ulysses2.ring2",
    "ring2.ulysses2",
    "allgather_kv2.ulysses2",
    "cfg2",
    "cfg2.ulysses2",
    "tp2.ulysses2",
    "ring2.tp2",
    "cfg2.tp2",
    "pp2",
    "pp2.tp2",
    "pp3",
    "cfg2.pp2",
    "pp2.ulysses2",
    "cfg2.ulysses2.ring2",
    "dp2.ulysses2",
]
CASES = [(model, "once") for model in testmodels.DIFFUSION] + [(testmodels.cosmos3, "every_step")]


EXPERTS = [
    "tp2/ep2",
    "tp4/ep2",
    "tp4/ep4",
    "adp2",
    "adp4",
    "ep4",
    "adp2.tp2",
    "adp2.tp2/ep2",
    "adp2.tp2/ep4",
    "dp2.adp2/ep2",
    "pp2.adp2/ep2",
    "pp3.tp2/ep2",
]


@cache
def whole_of(model, work):
    """What the model gives on one rank."""
    return run_plan(model, work, parse_plan("single"))[0]


def unsplit(model):
    """What the model gives on one rank for two samples."""
    return whole_of(model, testmodels.workload(model, batch=2, text_tower="usual"))


def _error(outs, whole, plan):
    """Largest relative error of any rank; replicas hold their part of the batch."""
    worst, each = 0.0, len(outs) // plan.degree("dp")
    for rank, out in enumerate(outs):
        want = whole[rank // each][None] if plan.degree("dp") > 1 else whole
        worst = max(worst, np.abs(out - want).max() / np.abs(want).max())
    return worst


@pytest.mark.parametrize("text", PLANS)
def test_split_diffusion_equals_unsplit(text):
    """For every model that takes the plan, of which there is one at least.

    After a step all ranks have the same latents as one alone, so another step adds nothing but
    where a text tower runs at each.
    """
    plan, taken = parse_plan(text), []
    for model, tower in CASES:
        steps = 2 if tower == "every_step" else 1
        work = testmodels.workload(model, batch=2, text_tower=tower, steps=steps)
        if not any(objections(model, work, plan, plan.gpus)):
            taken.append(model)
            error = _error(run_plan(model, work, plan), whole_of(model, work), plan)
            assert error < 1e-9, (model.name, tower)
    assert taken


@pytest.mark.parametrize("text", ["tp2", "ulysses4", "ring2.ulysses2", "allgather_kv2", "ring3"])
def test_variants_of_collectives_change_no_result(text):
    """32-bit collectives and inputs cut by a reduce-scatter move more and give the same."""
    plan = parse_plan(text)
    for model in (testmodels.flux, testmodels.cosmos3):
        work = testmodels.workload(model, batch=2)
        variant = testmodels.with_habits(work, wide_collectives=True, scattered_inputs=True)

        assert _error(run_plan(model, variant, plan), unsplit(model), plan) < 1e-9
        assert _moved(model, variant, plan) > _moved(model, work, plan)


@pytest.mark.parametrize("text", ["ring2", "ring3", "ulysses2.ring2", "ring2.tp2", "cfg2.ring2"])
@pytest.mark.parametrize("model", [testmodels.flux, testmodels.cosmos3, testmodels.sana])
def test_a_ring_that_gathers_first_changes_no_result(model, text):
    """It moves as much in one collective a layer, and no rank passes anything on."""
    plan = parse_plan(text)
    work = testmodels.workload(model, batch=2)
    if any(objections(model, work, plan, plan.gpus)):
        pytest.skip("illegal for this model")
    variant = testmodels.with_habits(work, rings="gathered")
    ops = [op for stage in lower(model, variant, plan).stages for op in stage.walk()]

    assert _error(run_plan(model, variant, plan), unsplit(model), plan) < 1e-9
    assert not any(isinstance(op, SendReceive) for op in ops)
    assert _moved(model, variant, plan) > _moved(model, work, plan)


@pytest.mark.parametrize("text", ["ulysses2", "ulysses4", "ulysses2.ring2", "ulysses2.tp2"])
@pytest.mark.parametrize("model", [testmodels.flux, testmodels.cosmos3])
def test_exchanges_apart_change_no_result(model, text):
    """Queries, keys and values travel one after the other: as many bytes, in more calls."""
    plan = parse_plan(text)
    work = testmodels.workload(model, batch=2)
    if any(objections(model, work, plan, plan.gpus)):
        pytest.skip("illegal for this model")
    variant = testmodels.with_habits(work, exchanges_apart=True)

    assert _error(run_plan(model, variant, plan), unsplit(model), plan) < 1e-9
    assert _moved(model, variant, plan) == _moved(model, work, plan)
    assert _calls(model, variant, plan) > _calls(model, work, plan)


def test_a_causal_ring_may_gather_first():
    work = testmodels.workload(testmodels.llama, batch=2, passes=1)
    variant, plan = testmodels.with_habits(work, rings="gathered"), parse_plan("ring3")
    whole = whole_of(testmodels.llama, work)

    assert _error(run_plan(testmodels.llama, variant, plan), whole, plan) < 1e-9


def _calls(model, work, plan):
    stages = lower(model, work, plan).stages
    return sum(isinstance(op, Collective) for stage in stages for op in stage.walk())


def _moved(model, work, plan):
    stages = lower(model, work, plan).stages
    return sum(
        op.message_bytes for stage in stages for op in stage.walk() if isinstance(op, Collective)
    )


@pytest.mark.parametrize("text", [plan for plan in PLANS if "cfg" not in plan])
def test_split_decoder_equals_unsplit(text):
    """A recurrence cannot be cut, nor one row for all heads by Ulysses."""
    plan, taken = parse_plan(text), []
    for model, output in product(testmodels.DECODERS, (0, 1)):
        work = testmodels.workload(model, batch=2, passes=1, output_tokens=output)
        if not any(objections(model, work, plan, plan.gpus)):
            taken.append(model)
            outs = run_plan(model, work, plan)
            last = outs[-(len(outs) // plan.degree("pp")) :] if plan.axes[0][0] == "pp" else outs
            assert _error(last, whole_of(model, work), plan) < 1e-9, (model.name, output)
    assert taken


(_layer,) = testmodels.llama.blocks
_window = replace(_layer.towers[0], window=5)
windowed = replace(
    testmodels.llama,
    name="windowed",
    blocks=(_layer, replace(_layer, name="windowed", count=1, towers=(_window,))),
)
CUT = ["ring2", "ring3", "ring4", "allgather_kv4", "ulysses4", "ulysses2.ring2", "ring2.tp2"]
CUT += ["ring2.ulysses2.tp2", "allgather_kv2.ulysses2", "dp2.ring2", "pp2.ring2"]
CUT_PROMPTS = [(testmodels.llama, text) for text in CUT]
CUT_PROMPTS += [(testmodels.deepseek, text) for text in CUT if "ulysses" not in text]
CUT_PROMPTS += [(windowed, text) for text in CUT if "ring" not in text]
SPREAD_CUT = ("ring2/ep2", "ring4/ep4", "allgather_kv2.tp2/ep4", "ring2.tp2/ep2", "dp2.ring2/ep2")
CUT_PROMPTS += [(testmodels.deepseek, text) for text in (*SPREAD_CUT, "pp2.ring2/ep2")]


CACHED, NEW = 19, 13
"""Tokens of a prompt in two parts, of which no number of ranks divides either."""
BEHIND = ["single", "pp2", "ring3", "allgather_kv2", "pp2.ring2"]
PREFIXES = [(testmodels.hybrid, "tp2"), (windowed, "allgather_kv2")]
PREFIXES += [(testmodels.deepseek, text) for text in BEHIND]
PREFIXES += [(testmodels.llama, text) for text in (*BEHIND, "tp2", "ulysses2", "ring2.ulysses2")]
PREFIXES += [
    (testmodels.llama, text) for text in ("ring_q2", "ring_q3", "ulysses2.ring_q2", "ring_q2.tp2")
]


class InParts(Source):
    """A prompt whose parts are those of the whole."""

    def array(self, name, shape):
        if not name.startswith("prompt."):
            return Source.array(self, name, shape)
        whole = Source.array(self, name, (shape[0], CACHED + NEW, shape[2]))
        return whole[
            :, {CACHED: slice(CACHED), NEW: slice(CACHED, None)}.get(shape[1], slice(None))
        ]


def _behind(model, text, cached):
    """Run a prompt and a token; where some of it is cached, what cached that goes before."""
    plan, (stream, *_) = parse_plan(text), model.streams
    work = testmodels.workload(model, batch=1, passes=1, output_tokens=1)
    whole = replace(work, tokens=((stream.name, CACHED + NEW),), cached=cached)
    assert not list(objections(model, whole, plan, plan.gpus))
    programs = []
    for place in range(plan.degree("pp")):
        program = lower(model, whole, plan, place, ordered=True)
        if cached:
            part = replace(work, tokens=((stream.name, cached),))
            before = lower(model, part, plan, place, ordered=True)
            program = replace(program, stages=(before.stages[0], *program.stages))
        programs.append(program)
    return [out for out in execute(programs, whole, InParts(0)) if not np.isnan(out).any()]


@pytest.mark.parametrize(
    ("model", "text"), PREFIXES, ids=lambda value: getattr(value, "name", value)
)
def test_a_prompt_behind_what_is_cached_of_it_equals_the_whole_prompt(model, text):
    """Whether keys pass round a ring or queries do, and over the cache that both have left."""
    (whole,), outs = _behind(model, "single", 0), _behind(model, text, CACHED)

    assert outs
    assert max(np.abs(out - whole).max() for out in outs) < 1e-9 * np.abs(whole).max()


@pytest.mark.parametrize(
    ("model", "text"), CUT_PROMPTS, ids=lambda case: getattr(case, "name", case)
)
def test_a_prompt_of_any_length_is_cut_and_its_answer_is_the_unsplit_one(model, text):
    """It is padded to even pieces; ranks that hold no row of the cache have no say in the answer.

    The token that is decoded looks at the cache where the prompt left it, on all ranks. Of latent
    attention rows travel, and keys and values are made of them where they arrive. Layers with a
    window beside others see their neighbours' keys alone.
    """
    plan = parse_plan(text)
    for tokens, output in ((4, 1), (11, 0), (17, 1), (24, 1)):
        work = testmodels.workload(model, batch=2, passes=1, output_tokens=output)
        work = replace(work, tokens=(("tokens", tokens),))

        assert not list(objections(model, work, plan, plan.gpus))
        outs = [out for out in run_plan(model, work, plan) if not np.isnan(out).any()]
        assert len(outs) == plan.gpus // plan.degree("pp")
        assert _error(outs, whole_of(model, work), plan) < 1e-9, (tokens, output)


def test_a_prompt_shorter_than_the_ranks_is_refused():
    model, plan = testmodels.llama, parse_plan("ring4.tp2")
    work = replace(testmodels.workload(model, passes=1), tokens=(("tokens", 3),))

    assert list(objections(model, work, plan, 8)) == [
        "a prompt of 3 tokens for 4 ranks: some have none"
    ]


SPREAD = [(testmodels.deepseek, text) for text in EXPERTS]
SPREAD += [(testmodels.hybrid, "adp2.tp2/ep2"), (testmodels.hybrid, "ep4")]


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize(("model", "text"), SPREAD, ids=lambda case: getattr(case, "name", case))
def test_experts_spread_over_ranks_equal_the_unsplit_model(model, text, output):
    """Every rank ends with its own requests, whoever has their experts, of however few features."""
    plan = parse_plan(text)
    work = testmodels.workload(model, batch=4, passes=1, output_tokens=output)
    whole = whole_of(model, work)

    assert not list(objections(model, work, plan, plan.gpus))
    errors = [
        np.abs(out - own_samples(whole, plan.replicas, plan.replica_of(rank))).max()
        for rank, out in enumerate(run_plan(model, work, plan))
        if not np.isnan(out).any()
    ]
    assert len(errors) == plan.gpus // plan.degree("pp")
    assert max(errors) < 1e-9 * np.abs(whole).max()


@pytest.mark.parametrize("gpus", [2, 4, 6, 8])
def test_every_legal_plan_of_experts_gives_the_unsplit_result(gpus):
    """Whatever the search may choose: latent attention, dense layers and experts."""
    model = testmodels.deepseek
    work = testmodels.workload(model, batch=1, passes=1, output_tokens=1)
    whole = whole_of(model, work)
    legal = [plan for plan in plans(model, gpus) if not any(objections(model, work, plan, gpus))]
    if gpus > 4:  # replicas share nothing: each is a plan of fewer
        legal = [plan for plan in legal if plan.replicas == 1]

    assert len(legal) >= 3
    for plan in legal:
        outs = [out for out in run_plan(model, work, plan) if not np.isnan(out).any()]
        assert outs, plan
        assert max(np.abs(out - whole).max() for out in outs) < 1e-9 * np.abs(whole).max(), plan


@pytest.mark.parametrize("text", EXPERTS)
def test_ranks_hold_every_expert_once(text):
    """Weights over all ranks are the model's: copies of attention for adp, of everything for dp."""
    model, plan = testmodels.deepseek, parse_plan(text)
    work = testmodels.workload(model, passes=1)
    places = range(plan.degree("pp"))
    held = [
        weights_by_expert(lower(model, work, plan, plan.index_of(rank).get("pp")))
        for rank in range(plan.gpus)
    ]
    whole = weights_by_expert(lower(model, work, parse_plan("single")))

    assert len(places) == plan.degree("pp")
    routed = sum(each[True] for each in held)
    assert routed == plan.degree("dp") * whole[True]
    assert sum(each[False] for each in held) >= plan.replicas * whole[False]


def weights_by_expert(program):
    """Bytes of the layers' matrices: of experts, and of all else."""
    sizes = {True: 0.0, False: 0.0}
    seen = set()
    for stage in program.stages[:1]:
        for op, loops in stage.nested():
            if isinstance(op, Matmul) and op.weight.layered and op.weight.name not in seen:
                seen.add(op.weight.name)
                own = [loop for loop in loops if loop.layers][-1]
                sizes[op.weight.experts > 1] += op.weight.bytes * own.count
    return sizes


def _norm(x):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)


def _turn(x, places):
    """Rotary embedding by hand for one head: pairs (i, i + half) turn by place * 0.01^(i/half)."""
    half = x.shape[-1] // 2
    out = np.empty_like(x)
    for row, place in enumerate(places):
        for i in range(half):
            angle = place * 0.01 ** (i / half)
            low, high = x[row, i], x[row, i + half]
            out[row, i] = low * np.cos(angle) - high * np.sin(angle)
            out[row, i + half] = low * np.sin(angle) + high * np.cos(angle)
    return out


def _weight(source, name, rows, columns, layer):
    parts = (Part(rows),), (Part(columns),)
    return source.weight(Weight(name=name, rows=parts[0], columns=parts[1]), layer, {})


def _llama(source, x, layers=3, heads=8, groups=4, size=4, inner=32):
    """A decoder written out by hand, one sample, causal, grouped queries; the last row's scores."""
    hidden = x.shape[1]
    for layer in range(layers):
        qkv = _norm(x) @ _weight(
            source, "layer.tokens.qkv", hidden, (heads + 2 * groups) * size, layer
        )
        rows = qkv.reshape(len(x), -1, size)
        places = np.arange(len(x)) + len("tokens") / 7
        met = np.zeros((len(x), heads, size))
        for head in range(heads):
            q = _turn(_norm(rows[:, head]), places)
            k = _turn(_norm(rows[:, heads + head * groups // heads]), places)
            v = rows[:, heads + groups + head * groups // heads]
            for t in range(len(x)):
                scores = np.exp(q[t] @ k[: t + 1].T / np.sqrt(size))
                met[t, head] = scores / scores.sum() @ v[: t + 1]
        out = _weight(source, "layer.tokens.out", heads * size, hidden, layer)
        x = x + met.reshape(len(x), -1) @ out
        both = _norm(x) @ _weight(source, "layer.tokens.ffn.up", hidden, 2 * inner, layer)
        gate, up = both[:, :inner], both[:, inner:]
        x = x + (gate / (1 + np.exp(-gate)) * up) @ _weight(
            source, "layer.tokens.ffn.down", inner, hidden, layer
        )
    head = Weight(name="head", rows=(Part(hidden),), columns=(Part(24),), layered=False)
    return _norm(x[-1:]) @ source.weight(head, 0, {})


def test_prefill_and_a_decode_step_are_one_causal_forward():
    """Second opinion: the cache, the causal mask and grouped queries against loops over rows."""
    work = testmodels.workload(testmodels.llama, passes=1, output_tokens=1)
    source = Source(0)
    prompt = source.array("prompt.tokens#0", (1, 22, 16))[0]
    following = source.array("next.tokens#0", (1, 1, 16))[0]

    got = whole_of(testmodels.llama, work)

    want = _llama(source, np.concatenate([prompt, following]))
    np.testing.assert_allclose(got[0], want, rtol=1e-9)


def _expert_layer(source, name, h, layer, spec):
    """Each row by the experts with its highest scores, weighed, and by those that all rows pass."""
    scores = h @ _weight(source, f"{name}.router", h.shape[1], spec.experts, layer)
    ups, downs = (
        source.weight(
            Weight(name=f"{name}.{side}", rows=rows, columns=columns, experts=spec.experts),
            layer, {},
        )
        for side, rows, columns in (
            ("up", (Part(h.shape[1]),), (Part(spec.width),) * 2),
            ("down", (Part(spec.width),), (Part(h.shape[1]),)),
        )
    )  # fmt: skip
    out = _gated(source, f"{name}.shared", h, layer, spec.shared)
    for row, marks in enumerate(scores):
        best = np.argsort(-marks)[: spec.active]
        shares = np.exp(marks[best]) / np.exp(marks[best]).sum()
        for expert, share in zip(best, shares, strict=True):
            gate, up = np.split(h[row] @ ups[expert], 2)
            out[row] += share * (gate / (1 + np.exp(-gate)) * up) @ downs[expert]
    return out


def _gated(source, name, h, layer, width):
    gate, up = np.split(h @ _weight(source, f"{name}.up", h.shape[1], 2 * width, layer), 2, axis=1)
    down = _weight(source, f"{name}.down", width, h.shape[1], layer)
    return (gate / (1 + np.exp(-gate)) * up) @ down


def _latent_attention(source, name, h, layer, tower):
    """Keys and values of every head written out, one query at a time."""
    spec, heads, hidden = tower.latent, tower.heads.query, h.shape[1]
    score = spec.content_size + spec.rotary_size
    rank = spec.query_rank
    low = h @ _weight(source, f"{name}.down", hidden, rank + spec.row_size, layer)
    asks = _norm(low[:, :rank]) if rank else h
    query = asks @ _weight(source, f"{name}.up", rank or hidden, heads * score, layer)
    latent, shared = np.split(low[:, rank:], [spec.key_value_rank], axis=1)
    columns = (Part(heads, spec.content_size), Part(heads, spec.value_size))
    both = _norm(latent) @ source.weight(
        Weight(name=f"{name}.kv", rows=(Part(spec.key_value_rank),), columns=columns), layer, {}
    )
    places = np.arange(len(h)) + len("tokens") / 7
    out = np.zeros((len(h), heads * spec.value_size))
    for head in range(heads):
        q, own = query[:, head * score : (head + 1) * score], head * spec.content_size
        content = both[:, own : own + spec.content_size]
        q = np.hstack([q[:, : spec.content_size], _turn(q[:, spec.content_size :], places)])
        k = np.hstack([content, _turn(shared, places)])
        where = slice(head * spec.value_size, (head + 1) * spec.value_size)
        v = both[:, heads * spec.content_size :][:, where]
        for t in range(len(h)):
            weights = np.exp(q[t] @ k[: t + 1].T / np.sqrt(score))
            out[t, where] = weights / weights.sum() @ v[: t + 1]
    return out @ _weight(source, f"{name}.out", heads * spec.value_size, hidden, layer)


def test_latent_attention_and_experts_are_what_they_say():
    """Second opinion: a prompt expanded, and a token that looks at the rows of the cache."""
    model = testmodels.deepseek
    work = testmodels.workload(model, passes=1, output_tokens=1)
    source = Source(0)
    x = np.concatenate([
        source.array("prompt.tokens#0", (1, 22, 16))[0],
        source.array("next.tokens#0", (1, 1, 16))[0],
    ])  # fmt: skip

    got = whole_of(model, work)

    for block in model.blocks:
        (tower,), name = block.towers, f"{block.name}.tokens"
        for layer in range(block.count):
            x = x + _latent_attention(source, name, _norm(x), layer, tower)
            feed = (
                _expert_layer(source, f"{name}.ffn", _norm(x), layer, tower.ffn)
                if tower.ffn.experts
                else _gated(source, f"{name}.ffn", _norm(x), layer, tower.ffn.width)
            )
            x = x + feed
    head = Weight(name="head", rows=(Part(16),), columns=(Part(24),), layered=False)
    np.testing.assert_allclose(got[0], _norm(x[-1:]) @ source.weight(head, 0, {}), rtol=1e-9)


def _recurrence(kind, rows=11):
    """An operation over made-up numbers, two sequences of `rows`, and what it gives."""
    heads, groups, key, value = 4, 2, 6, 5
    random = np.random.default_rng(5).standard_normal
    width = 2 * groups * key + heads * value
    op = Recurrence(
        kind=kind, inputs=(Tensor("x", (2, rows, width)), Tensor("g", (2, rows, 2 * heads))),
        state=Tensor("s", (2, heads, key, value)), after=Tensor("t", (2, heads, key, value)),
        weight=Weight(name="w", rows=(Part(2),), columns=(Part(heads),)),
        out=Tensor("o", (2, rows, heads * value)), heads=heads, groups=groups, key=key,
        value=value, chunk=4,
    )  # fmt: skip
    given = random((2, rows, width)), random((2, rows, (2 if kind == "delta" else 1) * heads))
    return op, given, random((2, heads, key, value)), random((2, heads))


@pytest.mark.parametrize("kind", ["delta", "mamba"])
def test_a_recurrence_is_one_product_of_all_its_tokens(kind):
    """Second opinion: what kernels do with a chunk, scores of tokens and a triangular system."""
    op, (features, gates), state, weight = _recurrence(kind)

    out, after = functions.recurrence(op, features, gates, state, weight)

    step = np.logaddexp(gates[..., -4:] + weight[1], 0)
    fall = np.cumsum(-np.exp(weight[0]) * step, axis=1)
    for batch, head in np.ndindex(2, 4):
        x, group, d = features[batch], head // 2, fall[batch, :, head]
        first = 20 if kind == "mamba" else 0
        left, right = (
            x[:, start + 6 * group :][:, :6] for start in (first, first + 12)
        )  # fmt: skip
        value = x[:, 24 if kind == "delta" else 0 :][:, 5 * head :][:, :5]
        ages = np.exp(np.tril(d[:, None] - d[None]))
        old = state[batch, head]
        if kind == "delta":
            query = left / np.linalg.norm(left, axis=1, keepdims=True) / np.sqrt(6)
            key = right / np.linalg.norm(right, axis=1, keepdims=True)
            size = 1 / (1 + np.exp(-gates[batch, :, head]))[:, None]
            matrix = np.eye(11) + np.tril(size * ages * (key @ key.T), -1)
            change = np.linalg.solve(matrix, size * (value - np.exp(d)[:, None] * key @ old))
        else:
            query, key, change = right, left, step[batch, :, head, None] * value
        want = np.tril(ages * (query @ key.T)) @ change + np.exp(d)[:, None] * query @ old
        kept = (key * np.exp(d[-1] - d)[:, None]).T @ change + np.exp(d[-1]) * old

        np.testing.assert_allclose(out[batch, :, 5 * head :][:, :5], want, rtol=1e-9)
        np.testing.assert_allclose(after[batch, head], kept, rtol=1e-9)


def _relu_attention(rows, heads, size):
    """Linear attention as a sum over pairs of rows: relu(q) . relu(k) in place of a softmax."""
    out = np.zeros((len(rows), heads * size))
    for head in range(heads):
        q, k, v = (
            rows[:, (part * heads + head) * size : (part * heads + head + 1) * size]
            for part in range(3)
        )
        for t in range(len(rows)):
            scores = [np.maximum(q[t], 0) @ np.maximum(k[s], 0) for s in range(len(rows))]
            total = sum(score * v[s] for s, score in enumerate(scores))
            out[t, head * size : (head + 1) * size] = total / (sum(scores) + 1e-12)
    return out


def _softmax_attention(queries, both, heads, size):
    out = np.zeros_like(queries)
    for head in range(heads):
        here = slice(head * size, (head + 1) * size)
        k, v = both[:, here], both[:, heads * size :][:, here]
        for t in range(len(queries)):
            scores = np.exp(queries[t, here] @ k.T / np.sqrt(size))
            out[t, here] = scores / scores.sum() @ v
    return out


def _convolved(x, kernels, line):
    """Every feature by its own nine numbers, line by line of the image."""
    lines = len(x) // line
    image = x.reshape(lines, line, -1)
    out = np.zeros_like(image)
    for y in range(lines):
        for z in range(line):
            for dy in (-1, 0, 1):
                for dz in (-1, 0, 1):
                    if 0 <= y + dy < lines and 0 <= z + dz < line:
                        kernel = kernels[(dy + 1) * 3 + dz + 1]
                        out[y, z] += image[y + dy, z + dz] * kernel
    return out.reshape(len(x), -1)


def _sana(source, x, text, inner=12):
    """SANA's forward written out by hand, one sample: no state, no matrix of a head."""
    whole = {"rows": (Part(6),), "columns": (Part(16),), "layered": False}
    x = x @ source.weight(Weight(name="embed", **whole), 0, {})
    for layer in range(2):
        name = "layers.image"
        qkv = _norm(x) @ _weight(source, f"{name}.qkv", 16, 48, layer)
        x = x + _relu_attention(qkv, 4, 4) @ _weight(source, f"{name}.out", 16, 16, layer)
        query = _norm(x) @ _weight(source, f"{name}.to_text.q", 16, 12, layer)
        both = text @ _weight(source, f"{name}.to_text.kv", 12, 24, layer)
        back = _weight(source, f"{name}.to_text.out", 12, 16, layer)
        x = x + _softmax_attention(query, both, 2, 6) @ back
        up = _norm(x) @ _weight(source, f"{name}.ffn.up", 16, 2 * inner, layer)
        kernels = _weight(source, f"{name}.ffn.kernels", 9, 2 * inner, layer)
        mixed = _convolved(up / (1 + np.exp(-up)), kernels, testmodels.LINE)
        gate, value = mixed[:, :inner], mixed[:, inner:]
        down = _weight(source, f"{name}.ffn.down", inner, 16, layer)
        x = x + (gate / (1 + np.exp(-gate)) * value) @ down
    head = {"rows": (Part(16),), "columns": (Part(6),), "layered": False}
    return _norm(x) @ source.weight(Weight(name="head", **head), 0, {})


def test_linear_attention_and_convolutions_are_what_they_say():
    """Second opinion on a step of SANA: sums over pairs of tokens, and over neighbours."""
    work = testmodels.workload(testmodels.sana, steps=1, passes=1)
    source = Source(0)
    x = source.array("input.image#0", (1, 24, 6))[0]
    text = source.array("context.text#0", (1, 5, 12))[0]

    got = run_plan(testmodels.sana, work, parse_plan("single"))[0]

    np.testing.assert_allclose(got[0], x + 0.1 * _sana(source, x, text), rtol=1e-9)


def test_weights_differ_by_layer_seed_and_name():
    weight = Weight(name="a", rows=(Part(4),), columns=(Part(4),))

    base = Source(0).weight(weight, 0, {})

    assert not np.allclose(base, Source(0).weight(weight, 1, {}))
    assert not np.allclose(base, Source(1).weight(weight, 0, {}))


def test_a_rank_that_never_arrives_is_named():
    """A program whose collective one stage lacks ends in an error, not in a hang."""
    model = testmodels.wan
    work = testmodels.workload(model)
    programs = [lower(model, work, parse_plan("pp2"), place) for place in (0, 1)]
    x = Tensor("x.video", (1, 24, 16))
    lost = Collective(kind="all_reduce", x=x, out=x, axis="pp", degree=2)
    denoise = programs[1].stages[1]
    body = (*denoise.body[:1], lost, *denoise.body[1:])
    broken = type(denoise)(name="denoise", count=denoise.count, body=body)
    stages = (programs[1].stages[0], broken, programs[1].stages[2])
    wrong = type(programs[1])(
        axes=programs[1].axes, stages=stages, inputs=programs[1].inputs, output=programs[1].output
    )

    with pytest.raises(DeadlockError, match=r"rank 1 at x\.video"):
        execute([programs[0], wrong], work, Source(0))


def test_send_receive_passes_round_the_ring():
    plan = parse_plan("ring3")
    program = lower(testmodels.wan, testmodels.workload(testmodels.wan), plan)
    sends = [op for stage in program.stages for op in stage.walk() if isinstance(op, SendReceive)]

    assert len(sends) == 2  # one layer: a chunk moves on degree - 1 times
