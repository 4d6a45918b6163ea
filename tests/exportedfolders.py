"""Every folder that is exported for catalogue models starts, on engines that tell what they are.

``python tests/exportedfolders.py`` writes the folder of every plan that TensorRT runs on 2, 4 and 8
GPUs, of each model at a small size, and holds the collectives of its networks against the
program's. Of folders that are alike, along the same axes and with the same layers of whatever
size, it starts one of those that a process comes to: all of its ranks, on stand-ins for TensorRT,
CUDA and NCCL. ``--build`` has TensorRT-RTX build each network too, one of those that are alike. It
ends with 1 where something is wrong. ``--part 2/8`` is the second eighth of the models,
``--processes`` how many run at once; ``tests/validate/test_tensorrt_run.py`` draws some of them.
"""

import hashlib
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

import everymodel
import faketensorrt as fake
from engineruns import Quiet

from costmodels.program import Collective, Loop
from planner.export.files import write_folder
from planner.export.tensorrt import tensorrt_folder
from planner.models import read_model
from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners.refusal import tensorrt_refusal
from planner.scenario.scenario import Scenario, resolve
from planner.search.evaluate import price
from planner.search.plans import objections, plans
from planner.tensorrt import Recipe, written
from planner.tensorrt.runner import build as builder
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.connections import held_port, join
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.layers import Share
from planner.tensorrt.runner.library import Document, load
from planner.tensorrt.runner.run import Job, Limits, Outcome, Parts, run
from planner.tensorrt.runner.weights import drawn
from planner.tensorrt.schedule import programs_of
from topology.base import InputError
from validate.reference import shrink

GPUS: Final = (2, 4, 8)
PATIENCE_S: Final = 300


def as_built(folder, weights):
    """Open a folder as if its engines were built of the weights."""
    opened = harness.open_folder(folder)
    (folder / "engines").mkdir()
    for document in opened.documents:
        for path in opened.engines(document):
            path.write_bytes(b"engine")
    harness.save(folder / "engines", "built", {"weights": str(weights)})
    return opened


def exportable(model: str, gpus: int) -> Iterator[tuple[Scenario, Plan]]:
    """Yield the plans of a model that TensorRT runs, each in its request at a small size."""
    tokens = 1 if read_model(model).kind == "decoder" else None
    scenario = resolve(Request(model=model, gpus=gpus, output_tokens=tokens))
    work = scenario.workload
    for plan in plans(scenario.model, gpus):
        illegal = any(objections(scenario.model, work, plan, gpus))
        if plan.gpus == gpus and not illegal and not tensorrt_refusal(scenario, plan):
            small, shrunk = shrink(scenario.model, work, plan)
            yield replace(scenario, model=small, workload=shrunk), plan


def _unstarted(folder: harness.Folder) -> Iterator[str]:
    """Start a folder's ranks on stand-ins, and say which do not end well."""
    left = started(folder, steps=1)
    yield from (f"rank {rank}: {one}" for rank, one in left.items() if isinstance(one, str))


def started(
    folder: harness.Folder,
    *,
    steps: int = 0,
    graph: bool = False,
    change: Callable[[int, Job], Job] = lambda _, job: job,
) -> dict[int, object]:
    """Start a folder's ranks on stand-ins; what each left, or why it did not end well.

    change : what a rank is told otherwise.
    """
    world = fake.World()
    left: dict[int, object] = dict.fromkeys(range(len(folder.plan["ranks"])), "it does not end")

    def one(rank: int, port: int) -> None:
        try:
            job = change(rank, _told(folder, rank, steps=steps, graph=graph))
            left[rank] = _rank(folder.plan, (world, port), job)
        except Exception as error:  # noqa: BLE001  # is told of
            left[rank] = f"{type(error).__name__}: {error}"

    with held_port() as port:
        threads = [threading.Thread(target=one, args=(rank, port), daemon=True) for rank in left]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    return left


def _unbuilt(folder: harness.Folder, built: set[str]) -> Iterator[str]:
    """Say which networks TensorRT-RTX builds no engine of, with its reason.

    built : networks that it has built already; those of the folder are added.
    """
    for document in folder.documents:
        what = _layers(document)
        if what in built:
            continue
        built.add(what)
        share = Share(document=document, arrays=folder.constants(document["name"]), weights=drawn())
        try:
            made = builder.build(load(), share, builder.Options(level=0, capability="SM120"))
        except RunError as error:
            yield str(error)
        else:
            if not made.plan:
                yield f"{document['name']}: an engine of no bytes"


def _told(folder: harness.Folder, rank: int, *, steps: int, graph: bool) -> Job:
    return Job(
        plan=folder.plan,
        rank=rank,
        documents=folder.documents,
        tables={one["name"]: folder.tables(one, rank) for one in folder.documents if one["tables"]},
        engines=partial(_engine, folder, rank),
        given=harness.given_from(folder.path / "inputs"),
        limits=Limits(meet_s=PATIENCE_S, bind_s=PATIENCE_S, step_s=PATIENCE_S),
        steps=steps,
        graph=graph,
    )


def _rank(plan: Document, met: tuple[fake.World, int], job: Job) -> Outcome:
    (world, port), device, rank = met, fake.FakeDevice(), job.rank
    connections = join(rank, len(plan["ranks"]), ("127.0.0.1", port), PATIENCE_S, plan["digest"])
    parts = Parts(
        library=fake.library(world, device),
        device=device,
        nccl=world,
        connections=connections,
        guard=Quiet([]),
    )
    try:
        return run(job, parts)
    finally:
        connections.close()


def _engine(folder: harness.Folder, rank: int, name: str) -> bytes:
    document = next(one for one in folder.documents if one["name"] == name)
    place = harness.place(folder.plan, name, rank)
    return fake.engine(document, folder.constants(name), place)


def unlike(scenario: Scenario, plan: Plan, files: dict[str, bytes]) -> Iterator[str]:
    """Say where the collectives of a folder's networks are not those of the plan's program."""
    model, work = scenario.model, scenario.workload
    bodies = dict[str, Sequence[object]]()
    for place, program in enumerate(programs_of(model, work, plan, whole=True)):
        stages = {stage.name: stage.body for stage in program.stages}
        if "denoise" in stages:
            forward, *rest = stages["denoise"]
            stages |= {"forward": forward.body, f"forward.stage{place}": forward.body}
            stages |= {"combine": rest}
        elif plan.degree("pp") > 1:
            stages = dict(_turns(stages, place))
        bodies |= stages
    networks, _ = written(model, work, plan, Recipe(numerics=model.numerics))
    for network in networks:
        dropped = Counter(_named(layer) for layer in network.unused if layer.kind == "collective")
        wanted = Counter(_said(bodies[network.name], 1)) - dropped
        layers = json.loads(files[f"networks/{network.name}.json"])["layers"]
        found = Counter(
            f"{one['operation']} {one['axis']}" for one in layers if one["kind"] == "collective"
        )
        if found != wanted:
            yield f"{network.name} has {dict(found)}, and its program {dict(wanted)}"


def _turns(stages: dict[str, Sequence[object]], place: int) -> Iterator[tuple[str, object]]:
    """Yield what a stage of a decoder's pipeline does in its own turn."""
    for name, (turn, _, *scores) in stages.items():
        yield f"{name}.stage{place}", (*turn.body, *scores)


def _named(layer: object) -> str:
    return f"{layer.attributes['operation']} {layer.attributes['axis']}"


def _said(items: Sequence[object], times: int) -> Iterator[str]:
    for item in items:
        if isinstance(item, Loop):
            yield from _said(item.body, times * int(item.count))
        elif isinstance(item, Collective) and item.axis != "pp":  # which the runner passes on
            yield from [f"{item.kind} {item.axis}"] * times


def of_a_model(
    model: str, gpus: Sequence[int] = GPUS, *, build: bool = False
) -> tuple[str, int, list[str]]:
    """Write and start all folders of a model; its name, how many, and what is wrong."""
    said, count = [], 0
    for number in gpus:
        try:
            found = list(exportable(model, number))
        except InputError as error:
            said.append(f"{model} on {number}: {error}")
            continue
        for scenario, plan in found:
            count += 1
            try:
                complaints = list(wrong(scenario, plan, before(), build=build))
            except Exception as error:  # noqa: BLE001  # is told of, and the rest is asked for
                complaints = [f"{type(error).__name__}: {error}"]
            said += [f"{model} {plan}: {text}" for text in complaints]
    return model, count, said


@dataclass(frozen=True)
class Before:
    """Folders that were started, by what tells them apart, and networks that were built."""

    started: set[tuple[object, ...]] = field(default_factory=set)
    built: set[str] = field(default_factory=set)


@cache
def before() -> Before:
    """Give what this process has seen."""
    return Before()


def wrong(scenario: Scenario, plan: Plan, seen: Before, *, build: bool) -> Iterator[str]:
    """Write a plan's folder, start and build what none before it was, and say what is wrong."""
    files = tensorrt_folder(scenario, price(scenario, plan))
    yield from unlike(scenario, plan, files)
    with tempfile.TemporaryDirectory() as scratch:
        folder = harness.open_folder(write_folder(files, f"{scratch}/plan"))
        networks = [_layers(document) for document in folder.documents]
        calls = [len(folder.plan[when]) for when in ("once", "each_step")]
        what = (*(axis for axis, _ in plan.axes), *networks, *calls)
        if what not in seen.started:
            seen.started.add(what)
            yield from _unstarted(folder)
        if build:
            yield from _unbuilt(folder, seen.built)


def _layers(document: Document) -> str:
    """Say which layers a network has, whatever they are named and however large they are."""
    said = [
        [value for key, value in layer.items() if key != "name" and isinstance(value, str | bool)]
        + [[len(out["shape"]), out["dtype"]] for out in layer["outputs"]]
        for layer in document["layers"]
    ]
    inputs = [len(document[side]) for side in ("inputs", "tables", "outputs")]
    return hashlib.blake2b(json.dumps([said, inputs]).encode()).hexdigest()


def main(words: Sequence[str] | None = None) -> int:
    """Write and start all, and say what is wrong."""
    asked = everymodel.parser(__doc__)
    asked.add_argument("--build", action="store_true", help="by TensorRT-RTX, for SM 12.0")
    options = asked.parse_args(words)
    fake.PATIENCE_S = PATIENCE_S  # a busy host makes no rank late
    check = partial(of_a_model, build=options.build)
    return everymodel.check_all(check, options, "folders")


if __name__ == "__main__":
    sys.exit(main())
