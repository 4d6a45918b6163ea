"""Many questions in one: models, hardware, numbers of GPUs, sizes and plans, a row for each."""

from planner.sweeping.executors import executor_of
from planner.sweeping.questions import SIZES, Questions, questions_of, read_numbers
from planner.sweeping.rows import Rows
from planner.sweeping.run import run

__all__ = ["SIZES", "Questions", "Rows", "executor_of", "questions_of", "read_numbers", "run"]
