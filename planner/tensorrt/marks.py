"""Which plans of a recommendation TensorRT cannot run, why, and what it can instead."""

from collections.abc import Mapping

from planner.search import Question, Recommendation
from planner.tensorrt.obstacles import cautions, mark, obstacles

SIGN = "!"
"""Stands behind a plan's name in a table; the reason follows below."""


def marks(question: Question, answer: Recommendation, version: str = "") -> Mapping[str, str]:
    """Return a line for every plan that TensorRT cannot run, by the plan's name.

    The nearest plans that it can run are chosen among those of the answer.
    """
    model, hardware = question.model, question.site.hardware
    legal = [one.plan for one in answer.plans]
    found = {}
    for one in answer.plans:
        asked = question.workload.precision
        if any(obstacles(model, one.plan, hardware, version, precision=asked)):
            same = [plan for plan in legal if plan.gpus == one.plan.gpus]
            found[str(one.plan)] = mark(model, one.plan, hardware, same, version, asked)
    return found


def footnotes(question: Question, answer: Recommendation, top: int, version: str = "") -> list[str]:
    """Return what a table of the first `top` plans says below: reasons, then what to watch."""
    shown = answer.plans[:top]
    found = marks(question, answer, version)
    names = [str(one.plan) for one in shown if str(one.plan) in found]
    lines = [f"{SIGN} {name}: {found[name]}" for name in names]
    watch = [
        said
        for one in shown
        if str(one.plan) not in found
        for said in cautions(question.model, one.plan, version)
    ]
    return [*lines, *dict.fromkeys(watch)]
