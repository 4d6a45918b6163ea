"""Run a program on numpy arrays, all ranks in one process: the proof that a plan is right."""

from validate.reference.proof import Proof, prove
from validate.reference.run import DeadlockError, execute, run_plan
from validate.reference.small import shrink
from validate.reference.weights import Array, Source

__all__ = ["Array", "DeadlockError", "Proof", "Source", "execute", "prove", "run_plan", "shrink"]
