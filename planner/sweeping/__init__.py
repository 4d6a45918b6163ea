"""Many questions in one: models, hardware, numbers of GPUs, sizes and plans, a row for each."""

from planner.sweeping.executors import executor_of
from planner.sweeping.grid import Grid, read_numbers
from planner.sweeping.rows import Rows
from planner.sweeping.run import run

__all__ = ["Grid", "Rows", "executor_of", "read_numbers", "run"]
