"""What to know of a plan and of the sizes asked for, whatever it is compared with."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import Final

from costmodels.collectives import UNMIXED
from costmodels.sizes import largest
from planner.models import Kind, Model, sides_made
from planner.request.request import Request
from planner.request.workload import Workload
from planner.runners.refusal import footnotes, refusals
from planner.scenario.scenario import Scenario
from planner.search.clients import Serving, wanted_of
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import price
from topology.base import format_seconds

SAME_PERCENT: Final = 0.5
"""Per cent below which a price is the same."""
PRIORITY_VARIABLE: Final = ("TORCH_NCCL_HIGH_PRIORITY", "1")
"""Environment variable of PyTorch that gives the streams of NCCL priority."""


def notes_on(scenario: Scenario, estimate: PlanEstimate) -> list[str]:
    """Say what to know of a plan: what is done to make it legal, and who cannot run it."""
    refusal_list = refusals(scenario, [estimate.plan])
    footnote_lines = footnotes(scenario, [estimate], refusal_list)
    variables = variable_notes(scenario, estimate)
    return [*estimate.notes, *length_notes(scenario), *variables, *footnote_lines]


def misses(request: Request, serving: Serving | None) -> Iterator[str]:
    """Say of a plan that was asked for which times it misses."""
    targets = wanted_of(request)
    if serving is not None and not serving.meets(targets):
        yield f"misses what is wanted: {' and '.join(serving.beside(targets))}"


def length_notes(scenario: Scenario) -> Iterator[str]:
    """Yield what to know of sequences as long as those asked for."""
    yield from size_notes(scenario)
    yield from sparse_note(scenario.model, scenario.workload)


def size_notes(scenario: Scenario) -> Iterator[str]:
    """Yield what stands against the sizes that are asked for."""
    model, workload = scenario.model, scenario.workload
    yield from context_note(model, workload)
    yield from sides_note(model, scenario.request)
    yield from frames_note(model, workload)


def sides_note(model: Model, request: Request) -> Iterator[str]:
    """Yield the sides of the image that is made, where the pipeline rounds those asked for down.

    >>> from planner.models import read_model
    >>> next(sides_note(read_model("flux.1-dev"), Request(model="flux.1-dev", gpus=1, height=17)))
    'height 17: the pipeline rounds it down to a multiple of 16; priced as 16'
    """
    latent, requested_sides = model.latent, (request.height or 0, request.width or 0)
    if latent is None:
        return
    sides = zip(
        ("height", "width"),
        requested_sides,
        sides_made(latent, *requested_sides),
        (latent.patch_height, latent.patch_width),
        strict=True,
    )
    for name, side, rounded_side, patch in sides:
        if rounded_side != side:
            yield (
                f"{name} {side}: the pipeline rounds it down to a multiple of "
                f"{latent.spatial * patch}; priced as {rounded_side}"
            )


def frames_note(model: Model, workload: Workload) -> Iterator[str]:
    """Yield how many frames are made, where the autoencoder cannot make those asked for.

    >>> from planner.models import read_model
    >>> next(frames_note(read_model("wan2.1-1.3b"), Workload(tokens=(), frames=80)))
    '80 frames: the autoencoder takes 4 n + 1; priced as 77, and some engines make 81'
    """
    step = 1 if model.latent is None else model.latent.temporal
    frames = int(largest(workload.frames))
    if excess := (frames - 1) % step:
        made = frames - excess
        yield (
            f"{frames} frames: the autoencoder takes {step} n + 1; priced as {made}, and some "
            f"engines make {made + step}"
        )


def sparse_note(model: Model, workload: Workload) -> Iterator[str]:
    """Yield what a choice of keys is priced as, where the model has one and sequences are longer.

    >>> from planner.models import read_model
    >>> work = Workload(tokens=(("tokens", 8000),), output_tokens=100)
    >>> next(sparse_note(read_model("glm-5"), work)).partition(": ")[2]
    'glm-5 looks at the 2,048 that its indexer chooses, which is not priced'
    """
    indexer = model.main.indexer
    if model.kind != "decoder" or indexer is None:
        return
    if _longest_request(model, workload) > indexer.chosen:
        yield (
            f"attention is priced as if each token saw all before it: {model.name} looks at the "
            f"{indexer.chosen:,} that its indexer chooses, which is not priced"
        )


def context_note(model: Model, workload: Workload) -> Iterator[str]:
    """Yield how far a request goes beyond the positions that a model was trained on, if it does.

    >>> from planner.models import read_model
    >>> work = Workload(tokens=(("tokens", 40000),), output_tokens=1000)
    >>> next(context_note(read_model("qwen3-8b"), work))
    'the context of qwen3-8b is 40,960 tokens, 41,000 are asked for: engines refuse, or stretch it'
    """
    if model.kind != "decoder" or not model.context:
        return
    tokens = _longest_request(model, workload)
    if tokens > model.context:
        yield (
            f"the context of {model.name} is {model.context:,} tokens, {tokens:,} are asked for: "
            "engines refuse, or stretch it"
        )


def _longest_request(model: Model, workload: Workload) -> int:
    """Count the tokens of the longest prompt and answer."""
    length = int(largest(workload.length(model.streams[0].name)))
    return length + int(largest(workload.output_tokens))


def throughput_note(kind: Kind, batch: int, gpus: int) -> Iterator[str]:
    """Yield what results a second are of, where a batch of another size would change them.

    >>> next(throughput_note("diffusion", 4, 8)).partition(";")[0]
    'throughput is at batch 4, which dp splits: dp4 at most'
    """
    largest_dp = gcd(batch, gpus)
    split = f", which dp splits: dp{largest_dp} at most" if largest_dp > 1 else ""
    if kind == "decoder":
        yield f"throughput is at batch {batch}{split}; a larger --batch may serve more a second"
    elif batch > 1 and batch % gpus:
        yield (
            f"throughput is at batch {batch}{split}; at batch 1 each replica serves a request of "
            "its own, which may be more a second"
        )


def variable_notes(scenario: Scenario, estimate: PlanEstimate) -> Iterator[str]:
    """Offer variables of NCCL and PyTorch that take messages off the time of a diffusion model.

    One is for graphs that mix with no other calls. Engines of language models make calls while
    graphs are under way, for which it would be wrong. The other is for rings that are passed on by
    a stream of no priority.
    """
    if scenario.model.kind != "diffusion" or estimate.gpus == 1:
        return
    if scenario.deployment.runtime.launch == "graph":
        reason = (
            "right where a graph is all that its ranks run at a time, as in what planner export "
        )
        yield from _variable_gain(UNMIXED, scenario, scenario.unmixed, estimate, f"{reason}writes")
    elif scenario.deployment.habits.rings == "passed" and estimate.plan.degree("ring") > 1:
        deployment = scenario.deployment
        habits = replace(deployment.habits, rings="urgent")
        urgent_scenario = replace(scenario, deployment=replace(deployment, habits=habits))
        reason = "messages beside attention then find room"
        yield from _variable_gain(PRIORITY_VARIABLE, scenario, urgent_scenario, estimate, reason)


def _variable_gain(
    variable: tuple[str, str], usual: Scenario, other: Scenario, estimate: PlanEstimate, reason: str
) -> Iterator[str]:
    """Say what a variable gains, if it gains anything."""
    usual_s, changed_s = (price(run, estimate.plan).latency_s for run in (usual, other))
    share = 100 * (usual_s - changed_s) / estimate.latency_s
    if share >= SAME_PERCENT:
        gain = f"{format_seconds(usual_s - changed_s)} off ({share:.1f} %)"
        yield f"{'='.join(variable)} takes {gain}: {reason}"
