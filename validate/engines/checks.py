"""What an engine is asked to run, checked before anything is started."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from planner.runners.refusal import refusal
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, InputError
from validate.engines.diffusers_models import transformer_config
from validate.plans.cases import Case

MODES: Final = ("eager", "compile")
NEEDS: Final = {
    "torch": "pip install 'torch>=2.6,<3'",
    "diffusers": "pip install 'diffusers>=0.42,<1'",
}


def check(cases: Sequence[Case], hardware: str) -> None:
    """Refuse what an engine cannot run, or this host lacks for it.

    Raises InputError if a mode, a size or a model is none of the engine's, or a package is missing.
    Raises IllegalPlanError if the engine refuses a plan.
    """
    for case in cases:
        if case.mode not in MODES:
            raise InputError(f"mode: got {case.mode}, wanted eager or compile with {case.engine}")
        for name, default in (("precision", "bf16"), ("batch", 1), ("text_tokens", None)):
            value = getattr(case, name)
            if value != default:
                allowed_value = "none" if default is None else default
                raise InputError(f"{name}: got {value}, wanted {allowed_value} with {case.engine}")
        transformer_config(case.model)
        reason = refusal(resolve(case.request(hardware)), parse_plan(case.plan))
        if reason:
            raise IllegalPlanError(f"plan {case.plan}: {case.engine} {reason}")
    for package, install in NEEDS.items():
        if find_spec(package) is None:
            raise InputError(f"{package}: got none, wanted it: {install}")
