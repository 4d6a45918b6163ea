"""Machines and hardware as people look at them: parts of an answer, with a drawing."""

from topology.drawing.picture import svg
from topology.drawing.report import hardware_table, parts

__all__ = ["hardware_table", "parts", "svg"]
