"""Many questions in one: models, hardware, numbers of GPUs, sizes and plans, a row for each."""

from planner.sweeping.executors import executor_of
from planner.sweeping.questions import SIZES, questions_of
from planner.sweeping.rows import Rows
from planner.sweeping.run import run

__all__ = ["SIZES", "Rows", "executor_of", "questions_of", "run"]
