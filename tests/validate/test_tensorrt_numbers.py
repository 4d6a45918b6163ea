"""Layers of every strategy's networks, evaluated for all ranks, equal the unsplit model."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import testmodels
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from costmodels.program import Collective, Loop, Matmul, Part, Tensor, Weight
from planner.lowering import lower
from planner.search.plans import objections
from planner.strategies import parse_plan
from planner.tensorrt import EngineNetwork, Recipe, arrays_of, counts, document_of
from planner.tensorrt.draft import Draft
from planner.tensorrt.from_program import networks_of
from planner.tensorrt.network import Value
from planner.tensorrt.products import product
from planner.tensorrt.runner import formats
from planner.tensorrt.runner.weights import drawn
from planner.tensorrt.schedule import networks_of_stages, programs_of, schedule_of
from topology.base import IllegalPlanError
from validate.reference import run_plan
from validate.reference.weights import Source
from validate.tensorrt.evaluate import EngineMessage, Held, deliver, evaluate, run_together
from validate.tensorrt.numbers import run_networks

PLANS = [
    "single",
    "tp4",
    "ulysses4",
    "allgather_kv4",
    "allgather_kv2.ulysses2",
    "ulysses2.tp2",
    "cfg2.ulysses2",
    "cfg2.tp2",
    "dp2.ulysses2",
    "pp2",
    "pp3.tp2",
    "cfg2.pp2",
]
FAMILIES = (*testmodels.DIFFUSION, testmodels.llama)


def request(model, **changes):
    """A decoder's request has one forward, and a token where the plan can generate one."""
    if model.kind == "decoder":
        changes = {"passes": 1, "output_tokens": 0, **changes}
    return testmodels.workload(model, batch=2, **changes)


def legal(model, work, plan):
    return not any(objections(model, work, plan, plan.gpus))


@cache
def unsplit(model, work):
    return run_plan(model, work, parse_plan("single"))[0]


def error(model, work, text, recipe):
    plan = parse_plan(text)
    programs = programs_of(model, work, plan)
    made = networks_of_stages(programs, recipe)
    order = schedule_of(made, programs[0], work, plan)
    plain = testmodels.with_habits(work, wide_collectives=False, scattered_inputs=False)
    whole, worst = unsplit(model, plain), 0.0
    for one, out in zip(order["ranks"], run_networks(made, order), strict=True):
        want = whole[one["sample"] : one["sample"] + len(out)]
        worst = max(worst, np.abs(out - want).max() / np.abs(want).max())
    return worst


@pytest.mark.parametrize("text", PLANS)
def test_networks_of_all_ranks_equal_the_unsplit_model(text):
    """After one step: the next begins with what all ranks have then."""
    plan, taken = parse_plan(text), []
    for model in FAMILIES:
        work = request(model, steps=1)
        if legal(model, work, plan):
            taken.append(model)
            assert error(model, work, text, Recipe(compute="fp32")) < 1e-6, model.name
    assert taken


@pytest.mark.parametrize("text", ["tp2", "ulysses4", "allgather_kv2.ulysses2"])
def test_variants_of_collectives_change_no_result(text):
    """32-bit collectives, and inputs cut by a reduce-scatter; the text tower at every step."""
    for model in (testmodels.flux, testmodels.cosmos3):
        work = request(model, wide_collectives=True, scattered_inputs=True, text_tower="every_step")
        assert error(model, work, text, Recipe(compute="fp32")) < 1e-6


@pytest.mark.parametrize("model", [testmodels.flux, testmodels.wan], ids=lambda one: one.name)
def test_attention_on_several_devices_stands_for_the_gather(model):
    recipe = Recipe(compute="fp32", multi_device=True)
    made = networks_of(lower(model, request(model), parse_plan("allgather_kv4")), recipe)

    assert error(model, request(model), "allgather_kv4", recipe) < 1e-6
    found = counts(made[0])
    assert found["attention allgather_kv"] >= 2
    assert found["all_gather allgather_kv"] == 1  # the prediction's


def test_a_token_after_the_prompt_equals_the_unsplit_model():
    for text in ("single", "tp2", "tp4"):
        work = request(testmodels.llama, output_tokens=1)
        assert error(testmodels.llama, work, text, Recipe(compute="fp32")) < 1e-6


def said(program, stage):
    """Collectives of a program's stage, every turn of layers counted, by operation and axis."""

    def walk(items, times):
        for item in items:
            if isinstance(item, Loop):
                yield from walk(item.body, times * (item.count if item.layers else 1))
            elif isinstance(item, Collective):
                yield f"{item.kind} {item.axis}", times, float(item.x.bytes)

    found, sizes = Counter(), Counter()
    for name, times, size in walk(stage, 1):
        found[name] += times
        sizes[name] += times * size
    return found, sizes


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.name)
@pytest.mark.parametrize("text", ["tp2", "ulysses2", "allgather_kv2", "allgather_kv2.ulysses2"])
def test_collectives_are_the_program_s_in_count_and_bytes(model, text):
    """Those whose results nobody reads are left out, and are counted as left out."""
    work, plan = request(model), parse_plan(text)
    if not legal(model, work, plan):
        pytest.skip("illegal for this model")
    program = lower(model, work, plan)
    stages = {stage.name: stage.body for stage in program.stages}
    if "denoise" in stages:
        stages["forward"] = stages["denoise"][0].body

    for network in networks_of(program, Recipe()):
        if network.name == "combine":
            continue
        whole = replace(network, layers=(*network.layers, *network.unused))
        number, size = said(program, stages[network.name])
        assert counts(whole) == number
        assert moved(whole) == size


def moved(network):
    shapes = {v.name: v for layer in network.layers for v in layer.outputs}
    shapes |= {v.name: v for v in network.inputs}
    found = Counter()
    for layer in network.of("collective"):
        given = shapes[layer.inputs[0]]
        size = float(np.prod(given.shape)) * (4 if given.dtype == "fp32" else 2)
        found[f"{layer.attributes['operation']} {layer.attributes['axis']}"] += size
    return found


def test_only_what_nobody_reads_is_left_out():
    for text, dropped in (("tp2", 2), ("ulysses2", 0)):
        program = lower(testmodels.cosmos3, request(testmodels.cosmos3), parse_plan(text))
        tower, forward, _ = networks_of(program, Recipe())
        left = [layer for layer in tower.unused if layer.kind == "collective"]
        assert len(left) == dropped  # of the last layer, whose keys and values alone are kept
        assert not [layer for layer in forward.unused if layer.kind == "collective"]


@pytest.mark.parametrize(
    ("text", "shared"),
    [("single", True), ("ulysses4", True), ("allgather_kv2", True), ("cfg2.ulysses2", True),
     ("tp2", False), ("allgather_kv2.ulysses2", False)],
)  # fmt: skip
def test_context_parallel_ranks_share_one_engine(text, shared):
    """Weights cut over ranks, or collectives that name ranks, make an engine a rank's own."""
    made = networks_of(lower(testmodels.flux, request(testmodels.flux), parse_plan(text)), Recipe())

    assert made[0].shared == shared


def test_guidance_branches_have_communicators_of_their_own():
    plan = parse_plan("cfg2.ulysses2")
    work = request(testmodels.flux)
    program = lower(testmodels.flux, work, plan)
    made = networks_of(program, Recipe())

    found = schedule_of(made, program, work, plan)["groups"]

    assert found == {"forward": [[0, 1], [2, 3]], "combine": [[0, 2], [1, 3]]}
    assert made[0].axes == (("ulysses", 2),)


@pytest.mark.parametrize("text", ["ring2", "ulysses2.ring2"])
def test_plans_that_need_messages_between_two_ranks_are_refused(text):
    program = lower(testmodels.wan, request(testmodels.wan), parse_plan(text))

    with pytest.raises(IllegalPlanError, match="needs point-to-point messages"):
        networks_of(program, Recipe())


def test_stages_send_while_others_run():
    """Two forwards follow one another through three stages, as the program has them."""
    plan, work = parse_plan("pp3"), request(testmodels.wan, passes=2)
    programs = programs_of(testmodels.wan, work, plan)
    made = networks_of_stages(programs, Recipe())

    each = schedule_of(made, programs[0], work, plan)["each_step"]
    steps = [call.get("engine") or call.get("pairs") for call in each if "copy" not in call]

    assert steps == [
        "forward.stage0", [[0, 1]],
        "forward.stage0", "forward.stage1", [[0, 1], [1, 2]],
        "forward.stage1", "forward.stage2", [[1, 2]],
        "forward.stage2", [[2, 0], [2, 1]], "combine",
    ]  # fmt: skip
    denoise = next(stage for stage in programs[0].stages if stage.name == "denoise")
    assert denoise.body[0].count == 4  # turns


def test_fewer_layers_make_a_smaller_network_of_the_same_kind():
    program = lower(testmodels.flux, request(testmodels.flux), parse_plan("ulysses2"))
    one, all_layers = (networks_of(program, Recipe(layers=count))[0] for count in (1, 0))

    assert len(one.of("attention")) == 2  # a layer of each block
    assert len(all_layers.of("attention")) == 4
    assert one.inputs == all_layers.inputs


def test_weights_are_the_reference_s():
    """The runner draws what the reference draws, though it does not know it."""
    for split in ("none", "rows", "columns"):
        weight = Weight(
            name="a", rows=(Part(4, 2),), columns=(Part(4), Part(2, 2)), split=split, degree=2
        )
        draft = Draft("fp32", ({},))
        x = Value("x", (1, 3, weight.local_rows), "fp32")
        out = Tensor("y", (1, 3, weight.local_columns))
        product(draft, Matmul(x=Tensor("x", x.shape), weight=weight, out=out), [x], 1)
        share = drawn()(draft.layers[0].attributes, 1)

        np.testing.assert_allclose(share[0], Source(0).weight(weight, 1, {"tp": 1}), rtol=1e-6)


def quantised(precision):
    """Result of one product, and how far it is from the exact one."""
    weight = Weight(name="w", rows=(Part(64),), columns=(Part(32),), precision=precision)
    draft = Draft("fp32", ({},), precision=precision)
    x = Value("x", (1, 24, 64), "fp32")
    op = Matmul(x=Tensor("x", x.shape), weight=weight, out=Tensor("y", (1, 24, 32)))
    y = product(draft, op, [x], 0)
    network = EngineNetwork(
        name="one",
        axes=(),
        inputs=(x,),
        outputs=(("y", y),),
        layers=tuple(draft.layers),
        constants=draft.constants,
        tables={},
    )
    given = np.random.default_rng(0).standard_normal(x.shape)
    held = Held(arrays=arrays_of(network), weights=drawn())
    (made,) = run_together([evaluate(document_of(network), held, {"x": given})])
    exact = given @ drawn()(network.of("weight")[0].attributes, 0)[0]
    return network, np.sqrt(np.mean((made["y"] - exact) ** 2) / np.mean(exact**2))


@pytest.mark.parametrize(
    ("precision", "bound"),
    [("bf16", 1e-6), ("fp8", 0.05), ("int8", 0.06), ("nvfp4", 0.2)],
)
def test_products_in_fewer_bits_stay_close(precision, bound):
    """3 bits of fraction round by up to 1/16, 8 bits of 16 / 127 clip nothing, 1 bit by 1/4."""
    network, far = quantised(precision)
    narrow = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}.get(precision)

    assert far < bound
    kinds = [out.dtype for layer in network.of("weight") for out in layer.outputs]
    assert (narrow in kinds) == (narrow is not None)


@given(arrays(np.float32, 40, elements=st.floats(-1000, 1000, width=32)))
def test_fp8_rounds_to_the_nearest(values):
    table = formats.fp8_values()
    found = formats.floats(formats.bits(values, "fp8"), "fp8")
    clipped = np.clip(values, -448, 448)

    nearest = np.abs(clipped[:, None] - table[None]).min(axis=1)
    np.testing.assert_allclose(np.abs(found - clipped), nearest, rtol=1e-5, atol=1e-7)


@given(arrays(np.float32, 40, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_bf16_keeps_eight_bits(values):
    found = formats.floats(formats.bits(values, "bf16"), "bf16")

    np.testing.assert_allclose(found, values, rtol=2**-8, atol=1e-37)


def test_known_bits():
    """E4M3: 1 is 0 0111 000, 448 the largest; BF16 is the upper half of a 32-bit float."""
    one = np.float32([1, -2, 448, 1000, 2**-9])

    assert formats.bits(one, "fp8").tolist() == [0x38, 0xC0, 0x7E, 0x7E, 0x01]
    assert formats.bits(one[:2], "bf16").tolist() == [0x3F80, 0xC000]
    assert formats.packed(np.uint8([[1, 2, 15, 0]])).tolist() == [[0x21, 0x0F]]


def message(operation, value, members=(0, 1)):
    return EngineMessage(operation=operation, members=members, given=np.asarray(value, float))


def test_collectives_act_on_the_first_axis():
    pair = [[[1.0], [2.0]], [[3.0], [4.0]]]

    def result(operation):
        return [one.tolist() for one in deliver([message(operation, value) for value in pair])]

    assert result("all_reduce") == [[[4.0], [6.0]]] * 2
    assert result("all_gather") == [[[1.0], [2.0], [3.0], [4.0]]] * 2
    assert result("reduce_scatter") == [[[4.0]], [[6.0]]]
    assert result("all_to_all") == [[[1.0], [3.0]], [[2.0], [4.0]]]


def test_ranks_that_meet_in_different_collectives_are_refused():
    with pytest.raises(RuntimeError, match="different collectives"):
        deliver([message("all_reduce", [1.0]), message("all_gather", [1.0])])
