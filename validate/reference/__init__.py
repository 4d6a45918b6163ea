"""Run a program on numpy arrays, all ranks in one process: the proof that a plan is right."""

from validate.reference.run import DeadlockError, execute, run_plan

__all__ = ["DeadlockError", "execute", "run_plan"]
