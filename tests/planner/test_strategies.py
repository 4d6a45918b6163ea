"""What strategies move and compute, against counts made another way."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.program import Attention, Collective, LinearAttention, Loop, Matmul, SendReceive
from planner.lowering import lower
from planner.models import Block, Ffn, Heads, Model, Stream, Tower, read_model
from planner.models.quantisation import Quantisation
from planner.request.plan import Plan
from planner.request.workload import Habits, Workload
from planner.search.plans import notes, objections, plans
from planner.strategies import parse_plan, pp

TOKENS, QUERY, GROUPS, SIZE, ITEM = 4096, 32, 8, 128, 2


def _transformer(layers=4, vocabulary=0, **more):
    """A plain self-attention model of known sizes: one stream, grouped queries, gated FFN."""
    tower = Tower(
        streams=("video",),
        hidden=4096,
        heads=Heads(query=QUERY, key_value=GROUPS, size=SIZE),
        keys=("video",),
        ffn=Ffn(width=12288, gated=True),
    )
    return Model(
        name="plain",
        family="plain",
        kind="diffusion",
        source="made up for tests",
        blocks=(Block(name="layer", count=layers, towers=(tower,)),),
        streams=(Stream(name="video"),),
        input_features=64,
        output_features=64,
        vocabulary=vocabulary,
        **more,
    )


PLAIN = _transformer()


def _work(tokens=TOKENS, **changes):
    return Workload(tokens=(("video", tokens),), **{"steps": 1, **changes})


def _layer(plan, model=PLAIN, work=None):
    """Operations of one layer of one rank."""
    program = lower(model, work or _work(), parse_plan(plan))
    loops = [item for stage in program.stages for item in _loops(stage)]
    return list(next(loop for loop in loops if loop.layers and loop.name == "layer").walk())


def _loops(loop):
    yield loop
    for item in loop.body:
        if isinstance(item, Loop):
            yield from _loops(item)


def _sent(ops, degree):
    """Bytes that leave one rank: what each kind of collective must send of its buffers."""
    total = 0.0
    for op in ops:
        if isinstance(op, SendReceive):
            total += op.x.bytes
        elif isinstance(op, Collective):
            share = {
                "all_reduce": 2 * (degree - 1) / degree,
                "all_gather": (degree - 1) / degree,
                "all_to_all": (degree - 1) / degree,
            }[op.kind]
            total += share * op.message_bytes
    return total


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_tensor_parallel_adds_up_twice_a_layer(degree):
    """Two all-reduces of all rows: 2 x 2 (p - 1) / p x tokens x hidden (Megatron-LM)."""
    sent = _sent(_layer(f"tp{degree}"), degree)

    assert sent == pytest.approx(2 * 2 * (degree - 1) / degree * TOKENS * 4096 * ITEM)


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_ulysses_volume_falls_with_the_square_of_the_degree(degree):
    """(p - 1) / p^2 x tokens x (2 Hq + 2 Hkv) x d (Jacobs et al. 2023, with grouped queries)."""
    sent = _sent(_layer(f"ulysses{degree}"), degree)

    width = (2 * QUERY + 2 * GROUPS) * SIZE
    assert sent == pytest.approx((degree - 1) / degree**2 * TOKENS * width * ITEM)


@pytest.mark.parametrize("degree", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "allgather_kv"])
def test_ring_and_gather_move_all_keys_and_values(name, degree):
    """(p - 1) / p x tokens x 2 Hkv x d, in p - 1 messages or in one."""
    sent = _sent(_layer(f"{name}{degree}"), degree)

    assert sent == pytest.approx((degree - 1) / degree * TOKENS * 2 * GROUPS * SIZE * ITEM)


def test_grouped_queries_favour_gathering_at_two_and_four_ranks():
    """With keys and values four times narrower: fewer bytes than Ulysses at 2 and 4, more at 8."""
    fewer = {
        p: _sent(_layer(f"allgather_kv{p}"), p) < _sent(_layer(f"ulysses{p}"), p) for p in (2, 4, 8)
    }

    assert fewer == {2: True, 4: True, 8: False}


def test_cosmos3_nano_layer_volumes_at_720p():
    """44,160 tokens: Ulysses 226 / 170 / 99 MB, AllGather-KV 90 / 136 / 158 MB at 2 / 4 / 8."""
    work = _work(44160)
    found = {
        (name, p): _sent(_layer(f"{name}{p}", work=work), p) / 1e6
        for name in ("ulysses", "allgather_kv")
        for p in (2, 4, 8)
    }

    want = {2: (226, 90), 4: (170, 136), 8: (99, 158)}
    for p, (ulysses, gather) in want.items():
        assert found["ulysses", p] == pytest.approx(ulysses, abs=1)
        assert found["allgather_kv", p] == pytest.approx(gather, abs=1)


def _flop(plan, model=PLAIN):
    return sum(op.flop for op in _layer(plan, model) if isinstance(op, Matmul | Attention))


@given(data=st.data())
def test_ranks_together_do_the_whole_work(data):
    """On even sizes nothing is done twice and nothing is left out, whatever the plan."""
    gpus = data.draw(st.sampled_from([2, 4, 8]))
    legal = [
        plan
        for plan in plans(PLAIN, gpus)
        if not any(objections(PLAIN, _work(), plan, gpus)) and "pp" not in dict(plan.axes)
    ]
    plan = data.draw(st.sampled_from(legal))

    split = math.prod(degree for name, degree in plan.axes if name not in ("dp", "cfg"))
    assert split * _flop(str(plan)) == pytest.approx(_flop("single"), rel=1e-12)


def test_attention_is_two_matrix_products():
    """A second opinion on the factor 4: scores [q, d] x [d, k], values [q, k] x [k, d]."""
    attention = next(op for op in _layer("single") if isinstance(op, Attention))

    assert attention.flop == QUERY * 2 * 2 * TOKENS * TOKENS * SIZE


def test_sizes_may_be_arrays():
    """A program lowered for two lengths at once has the sizes of each alone."""
    both = _layer("ulysses4", work=_work(np.array([1024, 4096])))
    alone = [_layer("ulysses4", work=_work(tokens)) for tokens in (1024, 4096)]

    for place, op in enumerate(both):
        if isinstance(op, Matmul | Attention):
            assert [ops[place].flop for ops in alone] == list(op.flop)
        if isinstance(op, Collective):
            assert [ops[place].message_bytes for ops in alone] == list(op.message_bytes)


def _legal(plan, model=PLAIN, **changes):
    parsed = parse_plan(plan)
    return not any(objections(model, _work(**changes), parsed, parsed.gpus))


# report, heads, key-value heads, more about the model, axis, degree, legal: vllm-project/vllm #414,
# #596, #4232, #11147, #1705, #11797, #1581, #8097; huggingface/transformers#48307;
# NVIDIA/TensorRT-LLM#14012; Wan-Video/Wan2.1#109; xdit-project/xDiT#265, docs/performance/sana.md
SHAPES = [
    ("R01", 52, 52, {}, "tp", (1, 2, 4, 13, 26, 52), (3, 5, 6, 8)),
    ("R02", 40, 40, {}, "tp", (2, 4, 8), (3,)),
    ("R02", 64, 8, {}, "tp", (4, 8), (5,)),
    ("R04", 40, 40, {}, "tp", (2,), (6,)),
    ("R05", 64, 8, {}, "tp", (4,), (6,)),
    ("R06", 25, 25, {"vocabulary": 50257, "tied_embeddings": True}, "tp", (), (2, 5)),
    ("R07", 28, 4, {}, "tp", (1, 2, 4, 28), (3, 5, 6, 7, 8, 14)),
    ("R08", 12, 2, {}, "tp", (1, 2, 4), (8,)),
    ("R12", 40, 10, {}, "tp", (2, 5, 10), (4, 8)),
    ("R13", 32, 4, {}, "tp", (4, 8), ()),
    ("R14", 48, 8, {"vetoes": (25,)}, "tp", (), (2, 4)),
    ("R18", 30, 30, {}, "ulysses", (1, 2, 3, 5, 6, 10, 15, 30), (4, 8)),
    ("R21", 32, 8, {}, "ulysses", (2, 4, 8), (16,)),
    ("R24", 12, 12, {}, "ulysses", (2, 4), (8,)),
    ("R24", 40, 40, {}, "ulysses", (8,), ()),
    ("R25", 70, 70, {}, "ulysses", (1, 2), (4, 8)),
    ("R26", 16, 16, {}, "ulysses", (2, 4), (3,)),
]


@pytest.mark.parametrize(("report", "heads", "groups", "more", "axis", "good", "bad"), SHAPES)
def test_shapes_from_user_reports(report, heads, groups, more, axis, good, bad):
    tower = Tower(
        streams=("video",),
        hidden=heads * 128,
        heads=Heads(query=heads, key_value=groups, size=128),
        keys=("video",),
        ffn=Ffn(width=4 * heads * 128, gated=False),
    )
    model = Model(
        name=report,
        family="report",
        kind="diffusion",
        source="user report",
        blocks=(Block(name="layer", count=60, towers=(tower,)),),
        streams=(Stream(name="video", pads=True),),
        input_features=64,
        output_features=64,
        **more,
    )

    assert [d for d in good if not _legal(f"{axis}{d}", model)] == []
    assert [d for d in bad if _legal(f"{axis}{d}", model)] == []


def test_keys_and_values_that_are_not_repeated_bound_the_degree():
    """huggingface/transformers#48307: 32 heads, 4 key-value heads; pytorch/torchtitan#2574."""
    for groups, degree in ((4, 8), (2, 4)):
        heads = Heads(query=32, key_value=groups, size=128)
        tower = Tower(streams=("video",), hidden=4096, heads=heads, keys=("video",))
        blocks = (Block(name="layer", count=4, towers=(tower,)),)
        model = Model(
            **{**{f: getattr(PLAIN, f) for f in PLAIN.__dataclass_fields__}, "blocks": blocks}
        )

        assert _legal(f"tp{degree}", model)
        assert not _legal(f"tp{degree}", model, habits=Habits(kv_repeat=False))


@pytest.mark.parametrize(
    ("tokens", "good", "bad"),
    [
        (14310, (2, 3, 5, 6, 9), (4, 7, 8)),
        (3969, (3, 9), (2, 4)),
        (4096, (2, 4, 8), (3,)),
        (20, (4, 5), (8,)),
    ],
)
def test_tokens_must_divide(tokens, good, bad):
    """mochi-xdit#5; FLUX 1008 and 1024 squared (diffusers documentation); rCM#12."""
    assert [d for d in good if not _legal(f"ring{d}", tokens=tokens)] == []
    assert [d for d in bad if _legal(f"ring{d}", tokens=tokens)] == []


def test_degrees_multiply_to_the_gpus():
    """xdit-project/xDiT#492: ulysses2 x cfg2 on 2 GPUs."""
    plan = Plan((("ulysses", 2), ("cfg", 2)))
    reasons = list(objections(PLAIN, _work(passes=2), plan, 2))

    assert reasons == ["degrees multiply to 4 (2 x 2), not to 2 GPUs: it takes --gpus 4"]


def test_quantisation_groups_must_not_be_cut():
    """Of the width of the FFN, and of attention's output: 12288 and 4096 inputs."""
    work = replace(_work(), precision="int4")

    def parted(degree, **how):
        stored = Quantisation(method="gptq", precision="int4", **how)
        model = _transformer(quantisation=stored)
        return list(objections(model, work, parse_plan(f"tp{degree}"), degree))

    assert parted(8, group=128) == parted(32, group=128) == parted(32) == []
    assert parted(32, group=512) == [
        f"the {what} over tp32 is not a multiple of the quantisation group 512"
        for what in ("attention output's width 4096", "FFN width 12288")
    ]
    assert parted(32, group=512, kept=("attention", "output", "feed_forward")) == []
    assert parted(8, group=128, block=768) == [
        "the queries' width 4096 over tp8 is not a multiple of the quantisation block 768",
        "the keys' width 1024 over tp8 is not a multiple of the quantisation block 768",
    ]
    stored = Quantisation(method="gptq", precision="int4", group=512)
    assert _legal("tp32", _transformer(quantisation=stored))  # in bf16, which was asked for


# vllm-project/vllm#414 and #11797: degrees that divide the heads; vllm-project/vllm#16260: padding
@pytest.mark.parametrize(
    ("heads", "groups", "width", "degree", "local"),
    [
        (52, 52, 17920, 13, 1379),
        (52, 52, 17920, 26, 690),
        (52, 52, 17920, 52, 345),
        (28, 4, 18944, 28, 677),
        (32, 8, 12288, 8, 1536),
    ],
)
def test_a_ffn_that_does_not_divide_is_padded(heads, groups, width, degree, local):
    tower = Tower(
        streams=("video",),
        hidden=heads * 128,
        heads=Heads(query=heads, key_value=groups, size=128),
        keys=("video",),
        ffn=Ffn(width=width, gated=True),
    )
    block = Block(name="layer", count=4, towers=(tower,))
    model = replace(PLAIN, blocks=(block,))
    ups = [op for op in _layer(f"tp{degree}", model) if getattr(op, "out", None) is not None
           and op.out.name.endswith("ffn.inner")]  # fmt: skip

    assert _legal(f"tp{degree}", model)
    assert [op.weight.local_columns for op in ups] == [2 * local]
    said = list(notes(model, _work(24), parse_plan(f"tp{degree}")))
    assert said == [] if width % degree == 0 else f"{width} is padded with zeros to" in said[0]


def test_a_ffn_narrower_than_its_ranks_is_not_cut():
    tower = replace(PLAIN.main, ffn=Ffn(width=24, gated=False))
    model = replace(PLAIN, blocks=(Block(name="layer", count=4, towers=(tower,)),))

    assert _legal("tp16", model)
    assert not _legal("tp32", model)


def test_guidance_needs_two_forwards():
    assert not _legal("cfg2", passes=1)
    assert _legal("cfg2", passes=2)


SANA = read_model("sana-1.6b")


def _sana_work(side=4096, **changes):
    lines = side // 32
    tokens = (("text", 300), ("image", lines * lines))
    return Workload(**{"tokens": tokens, "line": lines, "steps": 1, "passes": 2, **changes})


@pytest.mark.parametrize(
    ("plan", "side", "said"),
    [  # xdit-project/xDiT docs/performance/sana.md: Ulysses of 2 at most, with any other
        ("ulysses2", 1024, ""),
        ("cfg2.ulysses2.ring2", 4096, ""),
        ("cfg2.ring4", 4096, ""),
        ("allgather_kv8", 1024, ""),
        ("pp4", 1024, ""),
        ("tp10", 1024, ""),
        ("ulysses4", 1024, "70 heads do not divide by ulysses4"),
        ("ulysses8", 4096, "70 heads do not divide by ulysses8"),
        ("tp7", 1024, "20 heads of cross attention to text do not divide by tp7"),
        ("ring64", 1024, "32 lines of image tokens, which a FFN convolves, for 64 ranks"),
    ],
)
def test_plans_of_sana(plan, side, said):
    plan = parse_plan(plan)
    reasons = list(objections(SANA, _sana_work(side), plan, plan.gpus))

    assert reasons == ([said] if said else [])


def test_states_of_linear_attention_do_not_grow_with_the_picture():
    """An all-reduce of 70 heads of 32 x 33 numbers in 32 bits; a ring moves keys and values."""

    def moved(plan, side, kind):
        found = [op for op in _blocks(plan, side) if isinstance(op, kind)]
        return [op.message_bytes for op in found]

    for side in (1024, 4096):
        sums, edges = moved("allgather_kv4", side, Collective)
        assert sums == 70 * 32 * 33 * 4
        assert edges == 4 * (2 * side // 32) * 2240 * ITEM  # two lines of every rank
        assert moved("ring4", side, SendReceive) == 3 * [(side // 32) ** 2 // 4 * 2 * 2240 * ITEM]


def _blocks(plan, side):
    program = lower(SANA, _sana_work(side), parse_plan(plan))
    loops = [item for stage in program.stages for item in _loops(stage)]
    return list(next(loop for loop in loops if loop.layers and loop.name == "layers").walk())


def test_ranks_share_linear_attention_but_not_their_neighbours_lines():
    whole, part = _blocks("single", 1024), _blocks("ulysses2", 1024)
    mixed = [sum(op.flop for op in ops if isinstance(op, LinearAttention)) for ops in (whole, part)]
    up = [next(op for op in ops if getattr(op, "weight", None) and "up" in op.weight.name)
          for ops in (whole, part)]  # fmt: skip

    assert mixed[0] == 2 * mixed[1]
    assert [op.m for op in up] == [1024, 512 + 2 * 32]


def test_both_halves_of_a_hybrid_are_checked():
    """32 heads over tp4 leave 8, and 8 key-value heads leave 2: Ulysses of 4 needs 4."""
    assert _legal("tp4.ulysses2", tokens=4096)
    assert not _legal("tp4.ulysses4", tokens=4096)


@pytest.mark.parametrize(
    ("name", "stages"),
    [("qwen3-next-80b-a3b", 4), ("nemotron-3-super", 4), ("gemma-3-27b", 2), ("gpt-oss-120b", 2)],
)
def test_every_stage_has_its_share_of_each_kind_of_layer(name, stages):
    """Layers of a hybrid take turns: cut in their order, each stage keeps as many keys."""
    model = read_model(name)

    cuts = pp.stages(model, [1.0] * len(model.blocks), stages)

    for cut in cuts:
        counts = {block.name: block.count for block, _ in pp.merged_kinds(model, cut)}
        assert counts == {block.name: block.count // stages for block in model.blocks}
