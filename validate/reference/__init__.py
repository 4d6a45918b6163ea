"""Run a program on numpy arrays, all ranks in one process: the proof that a plan is right."""

from validate.reference.proof import Proof, prove
from validate.reference.run import run_plan
from validate.reference.small import shrink

__all__ = ["Proof", "prove", "run_plan", "shrink"]
