"""What ranks of the runner are given: schedules, documents and engines of a small model."""

import json
from contextlib import ExitStack
from dataclasses import dataclass

import faketensorrt as fake
import numpy as np
import testmodels

from planner.strategies import parse_plan
from planner.tensorrt import Recipe, document_of
from planner.tensorrt.runner.connections import held_port
from planner.tensorrt.runner.run import Job, Limits
from planner.tensorrt.schedule import networks_of_stages, programs_of, schedule_of
from validate.reference.weights import Source

HELD = ExitStack()
"""Ports of setups, which stay this process's own: others run the same tests beside it."""


@dataclass
class Quiet:
    """A watch that only remembers."""

    phases: list

    def phase(self, name, seconds):
        self.phases.append(name)

    def end(self):
        pass


@dataclass(frozen=True)
class Setup:
    """All that the ranks of a plan need."""

    order: dict
    documents: list
    made: list
    world: fake.World
    port: int
    limits: Limits = Limits(meet_s=300, bind_s=300, step_s=300)


def setup(model, text, **changes):
    plan = parse_plan(text)
    work = testmodels.workload(model, batch=2, **changes)
    programs = programs_of(model, work, plan)
    made = networks_of_stages(programs, Recipe(compute="fp32"))
    order = json.loads(json.dumps(schedule_of(made, programs[0], work, plan)))
    documents = [json.loads(json.dumps(document_of(network))) for network in made]
    return Setup(order, documents, list(made), fake.World(), HELD.enter_context(held_port()))


def place(setup, name, rank):
    groups = setup.order["groups"].get(name, [])
    return next((group.index(rank) for group in groups if rank in group), 0)


def job(setup, rank, *, graph=False, spoil=None, outside=None):
    tables = {
        network.name: {
            name: array[place(setup, network.name, rank)] for name, array in network.tables.items()
        }
        for network in setup.made
    }

    def engines(name):
        network = next(one for one in setup.made if one.name == name)
        document = next(one for one in setup.documents if one["name"] == name)
        raw = fake.engine(document, network.constants, place(setup, name, rank))
        return spoil(name, rank, document, network, raw) if spoil else raw

    def given(name, forward, shape):
        return Source(0).array(f"{name}#{forward}", shape).astype(np.float32)

    return Job(
        plan=setup.order,
        rank=rank,
        documents=setup.documents,
        tables=tables,
        engines=engines,
        given=given,
        limits=setup.limits,
        graph=graph,
        **({"outside": lambda name: outside(setup, name, rank)} if outside else {}),
    )
