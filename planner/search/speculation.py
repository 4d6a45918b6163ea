"""Speculative decoding: what verifying a draft's tokens costs, and what the draft itself does."""

from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from costmodels import memory
from costmodels.formats import FORMATS
from costmodels.price import FoundPrices, Target
from costmodels.program import Size
from costmodels.timeline import Cost, cost
from planner.lowering import Chunk, lower_steps, one_turn
from planner.request.plan import Plan
from planner.request.workload import Speculation, Workload
from planner.scenario.deployment import usual_precision
from planner.scenario.scenario import Scenario, usual_cache
from planner.search.plans import objections
from topology.base import InputError


def answers(workload: Workload, context: Size, sequences: Size) -> Chunk:
    """Say what sequences that decode run in a step: a token each, and those that were drafted."""
    drafted = workload.speculation.tokens if workload.speculation else 0
    return Chunk(
        name="answers",
        tokens=1 + drafted,
        context=context,
        sequences=sequences,
        scored=drafted > 0,
    )


def gain_of(workload: Workload) -> float:
    """Tokens that a sequence grows by in a step, on average."""
    return workload.speculation.gain if workload.speculation else 1.0


def draft_costs(
    scenario: Scenario,
    plan: Plan,
    prompts: Chunk | None,
    decoding: Chunk,
    prices: FoundPrices | None = None,
) -> Cost:
    """Price what the draft runs for a step: one pass for each token that it proposes.

    The first takes the prompts of the step too, whose keys and values the draft keeps as well.

    plan : of the model. decoding : sequences that do, with what they have cached.
    """
    speculation = scenario.workload.speculation
    assert speculation is not None
    draft_chunk = replace(decoding, tokens=1, scored=False)
    first_pass = _draft_pass(
        scenario, plan, (draft_chunk,) if prompts is None else (prompts, draft_chunk), prices
    )
    busy = np.minimum(np.asarray(decoding.sequences), 1.0)  # nobody decodes, nothing is drafted
    later_passes = _draft_pass(scenario, plan, (draft_chunk,), prices).times(
        (speculation.tokens - 1) * busy
    )
    return first_pass + later_passes


def _draft_pass(
    scenario: Scenario, plan: Plan, chunks: tuple[Chunk, ...], prices: FoundPrices | None
) -> Cost:
    """Price one forward of the draft."""
    draft_scenario, draft_plan = draft_request(scenario, plan)
    step = lower_steps(draft_scenario.model, draft_scenario.workload, draft_plan, [chunks]).stages[
        0
    ]
    return cost(step, draft_scenario.deployment.target(draft_scenario.model, draft_plan), prices)


def draft_request(scenario: Scenario, plan: Plan) -> tuple[Scenario, Plan]:
    """Ask the draft the same: its own precision, on the ranks that share a layer of the model.

    A draft that cannot be cut as the model is runs whole on each of them.

    Raises `InputError` if it cannot run at all.
    """
    workload, speculation = scenario.workload, scenario.workload.speculation
    assert speculation is not None
    draft = speculation.draft
    tokens = workload.length(scenario.model.streams[0].name)
    streams = ((draft.streams[0].name, tokens),)
    draft_workload = replace(workload, tokens=streams, cached=0, speculation=None)
    if not speculation.own:
        precision = usual_precision(draft, scenario.deployment.hardware)
        kv_precision = usual_cache(draft, precision, workload.habits)
        draft_workload = replace(draft_workload, precision=precision, kv_precision=kv_precision)
    layer_plan = plan.without("dp").without("pp")
    cuts = (layer_plan, Plan(tuple(axis for axis in layer_plan.axes if axis[0] == "tp")), Plan())
    objection_texts = [next(objections(draft, draft_workload, cut, cut.gpus), "") for cut in cuts]
    if all(objection_texts):
        raise InputError(f"draft: got {draft.name}, {objection_texts[-1]}")
    return replace(scenario, model=draft, workload=draft_workload), cuts[objection_texts.index("")]


def draft_weights(scenario: Scenario, plan: Plan) -> float:
    """Bytes of the draft's weights on a GPU; the model's own layers use its embedding and head."""
    speculation = scenario.workload.speculation
    assert speculation is not None
    draft_scenario, draft_plan = draft_request(scenario, plan)
    step = lower_steps(
        draft_scenario.model, draft_scenario.workload, draft_plan, [[_token()]]
    ).stages[0]
    outer = (
        draft_scenario.model.outer_parameters / draft_plan.degree("tp") * FORMATS["bf16"].weights
    )
    return memory.weights([step]) * speculation.modules + outer


def draft_cache(scenario: Scenario, plan: Plan, length: Size) -> float:
    """Bytes of keys and values that the draft keeps on a GPU of a sequence of `length` tokens."""
    speculation = scenario.workload.speculation
    assert speculation is not None
    draft_scenario, draft_plan = draft_request(scenario, plan)
    itemsize = int(FORMATS[draft_scenario.workload.kv_precision].weights)
    towers = [
        (block.count, tower) for block in draft_scenario.model.blocks for tower in block.towers
    ]
    layer_bytes = (n * t.kept(draft_plan.degree("tp")).bytes(length, itemsize) for n, t in towers)
    return float(np.max(np.asarray(sum(layer_bytes, start=0.0)))) * speculation.modules


def _token() -> Chunk:
    return Chunk(name="answers", tokens=1, context=1)


def speculated_costs(
    scenario: Scenario,
    plan: Plan,
    priced_on: tuple[Target, FoundPrices],
    context: Size,
    prompt: Size,
) -> tuple[Cost, Cost]:
    """Price a step in which drafted tokens are verified, and what the draft does of a prompt.

    context : tokens cached of each sequence. prompt : those of it.
    """
    workload, model = scenario.workload, scenario.model
    batch = np.maximum(1, np.asarray(workload.batch) // plan.replicas)
    decoding = answers(workload, context, batch.item() if batch.ndim == 0 else batch)
    target, prices = priced_on
    places = range(plan.degree("pp"))
    turns = [
        one_turn(lower_steps(model, workload, plan, [[decoding]], place), place) for place in places
    ]
    verified = reduce(add, (cost(turn, target, prices) for turn in turns))
    prompt_chunk = Chunk(name="prompts", tokens=prompt, context=0, sequences=decoding.sequences)
    return (
        verified + draft_costs(scenario, plan, None, decoding, prices),
        _draft_pass(scenario, plan, (prompt_chunk,), prices),
    )


def words(speculation: Speculation) -> str:
    """Say what drafts, how much, and what comes of it.

    >>> from planner.models import read_model
    >>> draft = read_model("llama-3.1-8b")
    >>> words(Speculation(tokens=3, acceptance=0.5, draft=draft))
    '3 tokens drafted by llama-3.1-8b, 50 % accepted: 1.88 a step'
    """
    accepted = f"{100 * speculation.acceptance:.3g} % accepted: {speculation.gain:.3g} a step"
    tokens = f"{speculation.tokens} token{'s' if speculation.tokens > 1 else ''}"
    return f"{tokens} drafted by {speculation.draft.name}, {accepted}"
