"""A strategy is one file: plans, legality, programs and prices follow from what it declares."""

import sys

import pytest

import planner
import planner.strategies as room
from planner.strategies import axes, parse_plan, strategies
from topology.base import IllegalPlanError, InputError

STRATEGY = '''
"""Chunks of a sequence, whose keys and values every rank gathers."""

from dataclasses import replace

from costmodels.program.emit import collective, concat_rows, move, total_rows
from costmodels.program import Tensor
from planner.strategies.attention import (
    fused_attention,
    keys_apart,
    queries_and_keys,
    query_spans,
    results_of,
)
from planner.strategies.base import SequenceStrategy
from planner.strategies.sequence import sequence_objections


class Mine(SequenceStrategy):
    axis = "mine"
    nesting = 9
    excludes = ("ring", "allgather_kv", "ulysses")

    def divide(self, share, degree):
        return replace(share, sequence=((self.axis, degree), *share.sequence))

    def objections(self, case, degree):
        yield from sequence_objections(case, degree, self.axis)
        if degree > 4:
            yield f"mine{degree}: four ranks at most"

    def attend(self, call, degree, inner):
        query, keys = yield from queries_and_keys(call)
        cut, whole = keys_apart(call, keys, self.axis)
        here = yield from concat_rows(cut.tensors, f"{call.name}.own")
        stacked = Tensor(f"{call.name}.stacked", (1, *here.shape), here.itemsize)
        yield from move("stack", [here], stacked, axis=self.axis, degree=degree)
        every = yield from collective("all_gather", stacked, self.axis, degree, f"{call.name}.all")
        joined = tuple(span.within(self.axis) for span in cut.spans)
        out = Tensor(f"{call.name}.joined", (here.shape[0], total_rows(joined), here.shape[2]))
        yield from move("unpack_rows", [every], out, axis=self.axis, degree=degree, spans=cut.spans)
        both = yield from concat_rows([out, *whole.tensors], f"{call.name}.kv")
        spans = (*joined, *whole.spans)
        result = yield from fused_attention(call, query, both, query_spans(call), spans)
        pieces = yield from results_of(call, result)
        return pieces


STRATEGY = Mine()
'''
FLUX = {"hardware": "h100-sxm", "height": 1024, "width": 1024}


@pytest.fixture
def added(monkeypatch, tmp_path):
    """Put a strategy into a folder beside the strategies that ship."""
    (tmp_path / "mine.py").write_text(STRATEGY)
    monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path)])
    strategies.cache_clear()
    yield
    strategies.cache_clear()
    sys.modules.pop("planner.strategies.mine", None)


@pytest.mark.usefixtures("added")
def test_a_strategy_is_added_by_one_file():
    assert "mine" in axes()
    assert str(parse_plan("cfg2.mine4")) == "cfg2.mine4"

    plans = {plan["plan"] for plan in planner.recommend("flux", gpus=4, **FLUX).to_dict()["plans"]}

    assert {"mine4", "mine2.tp2", "dp2.mine2"} & plans
    assert not any("mine" in plan and "ring" in plan for plan in plans)


@pytest.mark.usefixtures("added")
def test_an_added_strategy_has_a_price():
    mine = planner.estimate("flux", gpus=4, plan="mine4", **FLUX).to_dict()
    gathered = planner.estimate("flux", gpus=4, plan="allgather_kv4", **FLUX).to_dict()

    assert mine["latency_s"] == pytest.approx(gathered["latency_s"])
    assert mine["breakdown_s"]["communication_exposed"] > 0


@pytest.mark.usefixtures("added")
def test_an_added_strategy_says_what_is_illegal():
    with pytest.raises(IllegalPlanError, match="mine8: four ranks at most"):
        planner.estimate("flux", gpus=8, plan="mine8", **FLUX)
    rejected = planner.recommend("flux", gpus=8, **FLUX).to_dict()["rejected"]
    assert any("mine8" in row["plan"] for row in rejected)


def test_without_the_file_the_axis_is_unknown():
    with pytest.raises(InputError, match="unknown axis 'mine'"):
        planner.estimate("flux", gpus=4, plan="mine4", **FLUX)
